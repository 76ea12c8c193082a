"""CIFAR-10 (Krizhevsky 2009): 50,000 + 10,000 colour 32x32 images of ten classes, in its own Python layout.

The folder cifar-10-batches-py holds data_batch_1 .. data_batch_5 and test_batch, each a pickled dict of
b"data" (n, 3072) uint8, channels first, and b"labels". Kept in memory as bytes; augmentation runs on the device.
"""

import pickle
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cpdrun.data.augment import crop_and_flip, cutout
from cpdrun.data.base import DataError, ImageTensors

FOLDER = "cifar-10-batches-py"
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


class CIFAR10:
    """train and test of (float32 (3, 32, 32), int64 ()); raises DataError where the batches are absent or damaged."""

    num_classes = 10
    in_channels = 3

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
        self.train = _images(folder, [f"data_batch_{i}" for i in range(1, 6)], train_samples)
        self.test = _images(folder, ["test_batch"], test_samples)
        self.augments, self.cutout, self.dawnbench = augment, cutout, dawnbench_augment

    def augment(self, x: Tensor, generator: torch.Generator) -> Tensor:
        if self.augments:
            x = crop_and_flip(x, padding=4, generator=generator, reflect=self.dawnbench)
        return cutout(x, self.cutout, generator, whole=self.dawnbench) if self.cutout else x


def _images(folder: Path, names: list[str], samples: int | None) -> ImageTensors:
    parts = [_read(folder / name) for name in names]
    x_Nx3072, y_N = (
        torch.from_numpy(np.concatenate(arrays))[:samples] for arrays in zip(*parts, strict=True)
    )
    return ImageTensors(x_Nx3072.view(-1, 3, 32, 32), y_N, scale=255, mean=MEAN, std=STD)


def _read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    if not path.exists():
        raise DataError(
            f"CIFAR-10 is not in {path.parent} (no {path.name}): unpack cifar-10-python.tar.gz of "
            "www.cs.toronto.edu/~kriz/cifar.html, and name the folder it lies in with data.data_dir=PATH"
        )
    try:
        with path.open("rb") as file:
            batch = pickle.load(file, encoding="bytes")
        images, labels = batch[b"data"], np.asarray(batch[b"labels"], dtype=np.int64)
        if images.dtype != np.uint8 or images.shape != (len(labels), 3 * 32 * 32):
            raise ValueError(f"data {images.shape} {images.dtype} for {len(labels)} labels")
        return images, labels
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path} is not a whole CIFAR-10 batch ({error or type(error).__name__})") from None
