"""Cityscapes (Cordts et al., arXiv 1604.01685): street scenes with a class for every pixel, 19 of which count.

leftImg8bit/{train,val}/<city>/*_leftImg8bit.png and gtFine/{train,val}/<city>/*_gtFine_labelIds.png; torchvision finds
and decodes them, and knows which label ids are trained. Training: scaled by a factor from .5 to 2, a random square of
`crop` pixels (arXiv 1411.4038 and its successors), half of them mirrored. Evaluation: the whole image.
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
from cpdrun.data.images.image_folder import normalised, on_images

if TYPE_CHECKING:
    from torchvision import datasets

IGNORED = -100  # as cross_entropy has it


class Cityscapes:
    """train of (float32 (3, crop, crop), int64 (crop, crop)), test of whole images; pixels of no class are -100.

    Raises DataError where the folders are absent.
    """

    num_classes = 19
    in_channels = 3

    def __init__(self, data_dir: str, crop: int):
        self.path = folder = Path(data_dir).expanduser()
        self.train, self.test = (Scenes(_find(folder, split), crop) for split in ("train", "val"))


class Scenes(Dataset):
    """The images of one split, decoded when fetched."""

    def __init__(self, found: "datasets.Cityscapes", crop: int):
        self.found, self.crop = found, crop

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """As for evaluation."""
        image, labels = self.found[index]
        return normalised(image), _train_ids(on_images().pil_to_tensor(labels)[0])

    def fetch_augmented(
        self, indices: Sequence[int] | Tensor, draws: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """A batch as for training: (B, 3, crop, crop) float32, (B, crop, crop) int64."""
        pairs = [self._part(index, draws) for index in torch.as_tensor(indices).tolist()]
        images, labels = zip(*pairs, strict=True)
        return torch.stack(images), torch.stack(labels)

    def _part(self, index: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
        from torchvision.transforms import InterpolationMode

        tv = on_images()
        image, labels = self.found[index]
        factor = math.exp2(2 * float(torch.rand((), generator=draws)) - 1)
        size = [max(1, round(image.height * factor)), max(1, round(image.width * factor))]
        x = normalised(tv.resize(image, size, antialias=True))
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
    """(256,): the class that is trained for each label id, IGNORED for the others."""
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
            f"Cityscapes is not in {folder} (no leftImg8bit/{split} or gtFine/{split} with images): "
            "fetch leftImg8bit_trainvaltest and gtFine_trainvaltest of www.cityscapes-dataset.com, unpack both in one "
            "folder, and name it with data.data_dir=PATH"
        )
    return found
