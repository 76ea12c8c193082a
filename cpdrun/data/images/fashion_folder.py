"""Fashion-MNIST as JPEG files in the layout of ImageNet, for an ImageNet training that takes minutes.

The files are written once, from the idx files of Fashion-MNIST, and read by the loader of ImageNet.
"""

from pathlib import Path

from torch import Tensor

from cpdrun.data.cache import written_once
from cpdrun.data.images.fashion_mnist import FashionMNIST
from cpdrun.data.images.image_folder import ImageFolders, on_images

CLASSES = ["T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Boot"]


class FashionFolder(ImageFolders):
    """Fashion-MNIST as an `ImageFolders` dataset. The files are written when the dataset is first used.

    Args:
        data_dir: The folder that contains the idx files, as in `FashionMNIST`.
        cache_dir: The folder that contains the cache.
        train_images: The number of training images, from the start of the training set.
        test_images: The number of test images, from the start of the test set.
        size: The height and width of the samples.
        smallest_area: The smallest fraction of an image that a random crop covers.
    """

    def __init__(
        self,
        data_dir: str | None,
        cache_dir: str,
        train_images: int,
        test_images: int,
        size: int,
        smallest_area: float,
    ):
        def write(folder: Path) -> None:
            fashion = FashionMNIST(data_dir, False, train_images, test_images)
            for split, images in (("train", fashion.train), ("val", fashion.test)):
                _write(folder / split, images.x_NxCxHxW, images.y_N)

        folder = written_once(cache_dir, f"fashion-folder-{train_images}-{test_images}", write)
        super().__init__(str(folder), size, smallest_area)


def _write(folder: Path, x_Nx1xHxW: Tensor, y_N: Tensor) -> None:
    for name in CLASSES:
        (folder / name).mkdir(parents=True)
    for i, (x_1xHxW, y) in enumerate(zip(x_Nx1xHxW, y_N.tolist(), strict=True)):
        on_images().to_pil_image(x_1xHxW).convert("RGB").save(
            folder / CLASSES[y] / f"{i:06d}.JPEG", quality=95
        )
