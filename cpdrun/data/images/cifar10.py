"""CIFAR-10 (Krizhevsky 2009): 50,000 + 10,000 color images of 32x32 pixels in ten classes, in its Python layout.

The folder cifar-10-batches-py contains data_batch_1 to data_batch_5 and test_batch. Each is a pickled dict of b"data"
(n, 3072) uint8, channels first, and b"labels". The images are kept in memory as bytes and augmented on the device.
"""

from pathlib import Path

import torch
from torch import Tensor

from cpdrun.data.images.augment import crop_and_flip, cutout
from cpdrun.data.images.cifar_batches import Layout

FOLDER = "cifar-10-batches-py"
LAYOUT = Layout(
    name="CIFAR-10",
    archive="cifar-10-python.tar.gz",
    labels=b"labels",
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
)


class CIFAR10:
    """CIFAR-10, with samples of an image (3, 32, 32) float32 and a class () int64.

    Args:
        data_dir: The folder cifar-10-batches-py or the folder that contains it.
        augment: Whether training images are padded, cropped at random places and mirrored at random.
        cutout: The size of the square that is set to 0 in training images, or 0 for none.
        dawnbench_augment: Whether to pad with the mirrored image and to keep the whole square inside the image, as
            David Page's DAWNBench entry does.
        train_samples: The number of training images that are used, from the start. With None, all are used.
        test_samples: The number of test images that are used, from the start. With None, all are used.

    Raises:
        DataError: The files are missing or damaged.
    """

    num_classes = 10
    in_channels = 3
    image_size = 32

    def __init__(
        self,
        data_dir: str,
        augment: bool,
        cutout: int,
        dawnbench_augment: bool,
        train_samples: int | None,
        test_samples: int | None,
    ):
        folder = Path(data_dir).expanduser()
        self.path = folder = folder if folder.name == FOLDER else folder / FOLDER
        self.train = LAYOUT.images(folder, [f"data_batch_{i}" for i in range(1, 6)], train_samples)
        self.test = LAYOUT.images(folder, ["test_batch"], test_samples)
        self.augments, self.cutout, self.dawnbench = augment, cutout, dawnbench_augment

    def augment(self, x: Tensor, generator: torch.Generator) -> Tensor:
        if self.augments:
            x = crop_and_flip(x, padding=4, generator=generator, reflect=self.dawnbench)
        return cutout(x, self.cutout, generator, whole=self.dawnbench) if self.cutout else x
