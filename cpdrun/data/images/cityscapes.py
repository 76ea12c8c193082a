"""Cityscapes (Cordts et al., arXiv 1604.01685): street scenes with a class for every pixel, of which 19 are evaluated.

The images are leftImg8bit/{train,val}/<city>/*_leftImg8bit.png, and the labels are
gtFine/{train,val}/<city>/*_gtFine_labelIds.png. torchvision finds and decodes the files and knows which label ids are
trained. Training images are scaled by a random factor from 0.5 to 2, cropped to a random square and mirrored at random
(arXiv 1411.4038 and later work). Test images are whole.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

from cpdrun.data.base import DataError
from cpdrun.data.images.augment import randint
from cpdrun.data.images.image_folder import normalize, on_images

if TYPE_CHECKING:
    from torchvision import datasets

IGNORED = -100  # the default ignore_index of torch.nn.functional.cross_entropy


class Cityscapes:
    """Cityscapes, with samples of an image (3, H, W) float32 and the classes of its pixels (H, W) int64.

    H and W are `crop` in training batches and the size of the image in test batches. Pixels without a class are -100.

    Args:
        data_dir: The folder that contains leftImg8bit and gtFine.
        crop: The height and width of training images.

    Raises:
        DataError: The folders are missing.
    """

    num_classes = 19
    in_channels = 3

    def __init__(self, data_dir: str, crop: int):
        self.path = folder = Path(data_dir).expanduser()
        self.train, self.test = (Scenes(_find(folder, split), crop) for split in ("train", "val"))


class Scenes(Dataset):
    """The images of one split, which are decoded when they are read."""

    def __init__(self, found: "datasets.Cityscapes", crop: int):
        self.found, self.crop = found, crop

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return a whole image and its classes, for evaluation."""
        image, labels = self.found[index]
        return normalize(image), _train_ids(on_images().pil_to_tensor(labels)[0])

    def fetch_augmented(
        self, indices: Sequence[int] | Tensor, draws: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return a training batch: images (B, 3, crop, crop) float32 and classes (B, crop, crop) int64."""
        pairs = [self._part(index, draws) for index in torch.as_tensor(indices).tolist()]
        images, labels = zip(*pairs, strict=True)
        return torch.stack(images), torch.stack(labels)

    def _part(self, index: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
        from torchvision.transforms import InterpolationMode

        tv = on_images()
        image, labels = self.found[index]
        factor = math.exp2(2 * float(torch.rand((), generator=draws)) - 1)
        size = [max(1, round(image.height * factor)), max(1, round(image.width * factor))]
        x = normalize(tv.resize(image, size, antialias=True))
        y = _train_ids(tv.pil_to_tensor(tv.resize(labels, size, InterpolationMode.NEAREST))[0])
        below, right = max(0, self.crop - size[0]), max(0, self.crop - size[1])
        x, y = F.pad(x, (0, right, 0, below)), F.pad(y, (0, right, 0, below), value=IGNORED)
        top, left = (randint(side - self.crop + 1, draws) for side in y.shape)
        x = x[:, top : top + self.crop, left : left + self.crop]
        y = y[top : top + self.crop, left : left + self.crop]
        return (x.flip(2), y.flip(1)) if randint(2, draws) else (x, y)


def _train_ids(labels_HxW: Tensor) -> Tensor:
    return train_id_of_label()[labels_HxW.long()]


@cache
def train_id_of_label() -> Tensor:
    """Return the class of each label id, (256,) int64, which is IGNORED for label ids that are not trained."""
    from torchvision.datasets import Cityscapes as Labelled

    train_id_256 = torch.full((256,), IGNORED)
    for kind in Labelled.classes:
        if 0 <= kind.train_id < 19:
            train_id_256[kind.id] = kind.train_id
    return train_id_256


def _find(folder: Path, split: str) -> "datasets.Cityscapes":
    found = []
    if folder.is_dir():
        from torchvision import datasets

        with suppress(RuntimeError, FileNotFoundError):
            found = datasets.Cityscapes(str(folder), split=split, mode="fine", target_type="semantic")
    if len(found) == 0:
        raise DataError(
            f"Cityscapes is not in {folder} (no leftImg8bit/{split} or gtFine/{split} with images): download "
            "leftImg8bit_trainvaltest and gtFine_trainvaltest from www.cityscapes-dataset.com, unpack both in one "
            "folder, and give it with data.data_dir=PATH"
        )
    return found
