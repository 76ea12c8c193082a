"""Images in folders by class, as ImageNet's are laid out: train/<class>/*.JPEG and val/<class>/*.JPEG.

torchvision finds and decodes them. Training: a random part of the image scaled to size x size, half of them mirrored
where `mirror` (arXiv 1409.4842, section 6). Evaluation: the shorter side scaled to size * 8 / 7, the middle of it.
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
    """train and test of (float32 (3, size, size), int64 ()); raises DataError where the folders are absent or empty."""

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
                raise ValueError(f"data.{name} must be three numbers, of red, green and blue, not {value}")
        self.path = folder = Path(data_dir).expanduser()
        train, test = (_find(folder, split) for split in (train_folder, test_folder))
        if train.classes != test.classes:
            odd = sorted(set(train.classes) ^ set(test.classes))[0]
            raise DataError(
                f"{folder}: {train_folder} and {test_folder} have different classes ({odd} is in one of them alone)"
            )
        self.num_classes, self.image_size = len(train.classes), size
        self.train, self.test = (
            Decoded(found, size, smallest_area, mirror, mean, std) for found in (train, test)
        )


class Decoded(Dataset):
    """The images of one split, decoded when fetched."""

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
        """As for evaluation."""
        tv = on_images()
        image, label = self.found[index]
        image = tv.resize(image, [self.size * 8 // 7], antialias=True)
        return normalised(tv.center_crop(image, [self.size, self.size]), self.mean, self.std), label

    def fetch_augmented(
        self, indices: Sequence[int] | Tensor, draws: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """A batch as for training: (B, 3, size, size) float32, (B,) int64."""
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
            images.append(normalised(image, self.mean, self.std))
            labels.append(label)
        return torch.stack(images), torch.tensor(labels)


def on_images() -> ModuleType:
    """torchvision's functions on images. Its import takes longer than torch's: not before there are images."""
    from torchvision.transforms.v2 import functional

    return functional


def normalised(image: object, mean: Sequence[float] = MEAN, std: Sequence[float] = STD) -> Tensor:
    """(3, H, W) float32 of a PIL image: (pixel / 255 - mean) / std of each channel, ImageNet's where none are given."""
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
        f"no images in {folder}: they lie as train/<class>/*.JPEG and val/<class>/*.JPEG (data.train_folder and "
        "data.test_folder where they are called otherwise); name the folder above with data.data_dir=PATH"
    )
