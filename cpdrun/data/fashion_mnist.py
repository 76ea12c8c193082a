"""Fashion-MNIST (Xiao et al., arXiv 1708.07747): 60,000 + 10,000 grey 28x28 images of ten kinds of clothing.

torchvision reads the idx files; here they are found, unpacked where gzipped, and kept in memory as bytes.
"""

import gzip
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torchvision.datasets.mnist import read_image_file, read_label_file

from cpdrun.data.augment import crop_and_flip
from cpdrun.data.base import DataError, ImageTensors

DEBIAN_DIR = Path("/usr/share/datasets/fashion-mnist")


class FashionMNIST:
    """train and test of (float32 (1, 28, 28), int64 ()); raises DataError where the idx files are absent."""

    num_classes = 10
    in_channels = 1

    def __init__(
        self, data_dir: str | None, augment: bool, train_samples: int | None, test_samples: int | None
    ):
        self.path = folder = Path(data_dir).expanduser() if data_dir else DEBIAN_DIR
        self.train = _images(folder, "train", train_samples)
        self.test = _images(folder, "t10k", test_samples)
        self.augments = augment

    def augment(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return crop_and_flip(x, padding=2, generator=generator) if self.augments else x


def _images(folder: Path, split: str, samples: int | None) -> ImageTensors:
    x_NxHxW = _read(read_image_file, folder, f"{split}-images-idx3-ubyte")[:samples]
    y_N = _read(read_label_file, folder, f"{split}-labels-idx1-ubyte")[:samples]
    return ImageTensors(x_NxHxW[:, None], y_N, scale=255, mean=0.286, std=0.353)


def _read(reader: Callable[[str], Tensor], folder: Path, name: str) -> Tensor:
    plain, gzipped = folder / name, folder / f"{name}.gz"
    if not plain.exists() and not gzipped.exists():
        raise DataError(
            f"Fashion-MNIST is not in {folder} (no {name} or {name}.gz): "
            "apt-get install dataset-fashion-mnist, or name its folder with data.data_dir=PATH"
        )
    try:
        if plain.exists():
            return reader(str(plain))
        with gzip.open(gzipped) as packed, tempfile.NamedTemporaryFile() as unpacked:
            shutil.copyfileobj(packed, unpacked)
            unpacked.flush()
            return reader(unpacked.name)
    except (OSError, EOFError, AssertionError, ValueError) as error:
        path = plain if plain.exists() else gzipped
        raise DataError(f"{path} is not a whole idx file ({error or type(error).__name__})") from None
