"""CIFAR-100 (Krizhevsky 2009): 50,000 + 10,000 color images of 32x32 pixels in a hundred classes, in its Python layout.

The folder cifar-100-python contains `train` and `test`. Each is a pickled dict of b"data" (n, 3072) uint8, channels
first, b"fine_labels" (the hundred classes, which are used) and b"coarse_labels" (twenty classes). The images are kept
in memory as bytes.
"""

from pathlib import Path

import torch
from torch import Tensor

from cpdrun.data.images.augment import crop_and_flip
from cpdrun.data.images.cifar_batches import Layout

FOLDER = "cifar-100-python"
LAYOUT = Layout(
    name="CIFAR-100",
    archive="cifar-100-python.tar.gz",
    labels=b"fine_labels",
    mean=(0.5071, 0.4867, 0.4408),
    std=(0.2675, 0.2565, 0.2761),
)


class CIFAR100:
    """CIFAR-100, with samples of an image (3, 32, 32) float32 and a class () int64.

    Args:
        data_dir: The folder cifar-100-python or the folder that contains it.
        augment: Whether training images are padded, cropped at random places and mirrored at random.
        train_samples: The number of training images that are used, from the start. With None, all are used.
        test_samples: The number of test images that are used, from the start. With None, all are used.

    Raises:
        DataError: The files are missing or damaged.
    """

    num_classes = 100
    in_channels = 3
    image_size = 32

    def __init__(
        self, data_dir: str, augment: bool, train_samples: int | None, test_samples: int | None
    ) -> None:
        folder = Path(data_dir).expanduser()
        self.path = folder = folder if folder.name == FOLDER else folder / FOLDER
        self.train = LAYOUT.images(folder, ["train"], train_samples)
        self.test = LAYOUT.images(folder, ["test"], test_samples)
        self.augments = augment

    def augment(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return crop_and_flip(x, padding=4, generator=generator) if self.augments else x
