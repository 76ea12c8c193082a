"""Images in one folder per class, in the layout of ImageNet: train/<class>/*.JPEG and val/<class>/*.JPEG.

torchvision finds and decodes the images. A training image is a random part of an image, scaled to the size of the
samples and mirrored at random (arXiv 1409.4842, section 6). A test image is scaled so that its shorter side is 8/7 of
the size of the samples, and its center is cropped.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.data import Dataset

from cpdrun.data.base import DataError
from cpdrun.data.images.augment import randint, random_resized_crop

if TYPE_CHECKING:
    from torchvision.datasets import ImageFolder

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class ImageFolders:
    """Images in one folder per class, with samples of an image (3, size, size) float32 and a class () int64.

    Args:
        data_dir: The folder that contains the folders of both splits.
        size: The height and width of the samples.
        smallest_area: The smallest fraction of an image that a random crop covers.
        mirror: Whether training images are mirrored at random.
        mean: The mean of pixel / 255 for red, green and blue.
        std: The standard deviation of pixel / 255 for red, green and blue.
        train_folder: The name of the folder of training images.
        test_folder: The name of the folder of test images.

    Raises:
        DataError: The folders are missing or empty, or have different classes.
        ValueError: `mean` or `std` does not have three numbers.
    """

    in_channels = 3

    def __init__(
        self,
        data_dir: str,
        size: int,
        smallest_area: float,
        *,
        mirror: bool = True,
        mean: Sequence[float] = MEAN,
        std: Sequence[float] = STD,
        train_folder: str = "train",
        test_folder: str = "val",
    ):
        for name, value in (("mean", mean), ("std", std)):
            if len(value) != 3:
                raise ValueError(f"data.{name} must be three numbers, for red, green and blue, not {value}")
        self.path = folder = Path(data_dir).expanduser()
        train, test = (_find(folder, split) for split in (train_folder, test_folder))
        if train.classes != test.classes:
            odd = sorted(set(train.classes) ^ set(test.classes))[0]
            raise DataError(
                f"{folder}: {train_folder} and {test_folder} have different classes ({odd} is in only one of them)"
            )
        self.num_classes, self.image_size = len(train.classes), size
        self.train, self.test = (
            Decoded(found, size, smallest_area, mirror, mean, std) for found in (train, test)
        )


class Decoded(Dataset):
    """The images of one split, which are decoded when they are read."""

    def __init__(
        self,
        found: "ImageFolder",
        size: int,
        smallest_area: float,
        mirror: bool,
        mean: Sequence[float],
        std: Sequence[float],
    ):
        self.found, self.size, self.smallest_area, self.mirror = found, size, smallest_area, mirror
        self.mean, self.std = mean, std

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return the center of an image and its class, for evaluation."""
        tv = on_images()
        image, label = self.found[index]
        image = tv.resize(image, [self.size * 8 // 7], antialias=True)
        return normalize(tv.center_crop(image, [self.size, self.size]), self.mean, self.std), label

    def fetch_augmented(
        self, indices: Sequence[int] | Tensor, draws: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return a training batch: images (B, 3, size, size) float32 and classes (B,) int64."""
        tv = on_images()
        images, labels = [], []
        for index in torch.as_tensor(indices).tolist():
            image, label = self.found[index]
            top, left, height, width = random_resized_crop(
                image.height, image.width, self.smallest_area, draws
            )
            image = tv.resized_crop(image, top, left, height, width, [self.size, self.size], antialias=True)
            if self.mirror and randint(2, draws):
                image = tv.horizontal_flip(image)
            images.append(normalize(image, self.mean, self.std))
            labels.append(label)
        return torch.stack(images), torch.tensor(labels)


def on_images() -> ModuleType:
    """Return the functions of torchvision on images.

    The import is here and not at the top of the file because it takes longer than the import of torch.
    """
    from torchvision.transforms.v2 import functional

    return functional


def normalize(image: object, mean: Sequence[float] = MEAN, std: Sequence[float] = STD) -> Tensor:
    """Return (pixel / 255 - mean) / std of a PIL image, (3, H, W) float32.

    The default mean and standard deviation are those of ImageNet.
    """
    tv = on_images()
    return tv.normalize(
        tv.to_dtype(tv.pil_to_tensor(image), torch.float32, scale=True), list(mean), list(std)
    )


def _find(parent: Path, name: str) -> "ImageFolder":
    if (folder := parent / name).is_dir():
        from torchvision.datasets import ImageFolder

        with suppress(FileNotFoundError):
            return ImageFolder(str(folder))
    raise DataError(
        f"no images in {folder}: data.data_dir=PATH must be a folder that contains train/<class>/*.JPEG and "
        "val/<class>/*.JPEG. If train and val have other names, give them with data.train_folder and "
        "data.test_folder."
    )
