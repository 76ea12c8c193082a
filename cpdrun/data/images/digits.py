"""scikit-learn's digits: 1,797 real 8x8 grey images of ten classes (Alpaydin and Kaynak 1998, UCI).

The file lies in scikit-learn's wheel. It is read without importing scikit-learn, whose import alone takes
longer than an epoch.
"""

import importlib.util
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cpdrun.data.base import DataError, ImageTensors

SPLIT_SEED = 0  # part of what the dataset is: every run of every seed is tested on the same images


class Digits:
    """train and test of (float32 (1, 8, 8), int64 ()); raises DataError where scikit-learn lacks the file."""

    num_classes = 10
    in_channels = 1
    image_size = 8

    def __init__(self, test_fraction: float):
        if not 0 < test_fraction < 1:
            raise DataError(f"data.test_fraction must lie between 0 and 1, not {test_fraction}")
        x_Nx1x8x8, y_N = _read(_digits_file())
        order_N = torch.randperm(len(y_N), generator=torch.Generator().manual_seed(SPLIT_SEED))
        held_out = math.ceil(len(y_N) * test_fraction)
        self.test = _images(x_Nx1x8x8, y_N, order_N[:held_out])
        self.train = _images(x_Nx1x8x8, y_N, order_N[held_out:])


def _digits_file() -> Path:
    sklearn = importlib.util.find_spec("sklearn")
    if sklearn is None or sklearn.origin is None:
        raise DataError("the digits ship with scikit-learn, which is not installed: pip install scikit-learn")
    path = Path(sklearn.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if not path.exists():
        raise DataError(f"scikit-learn no longer ships its digits as {path}")
    return path


def _read(path: Path) -> tuple[Tensor, Tensor]:
    rows_Nx65 = np.loadtxt(path, delimiter=",", dtype=np.uint8)
    x_Nx64, y_N = (
        torch.from_numpy(rows_Nx65[:, :64].copy()),
        torch.from_numpy(rows_Nx65[:, 64].astype(np.int64)),
    )
    return x_Nx64.view(-1, 1, 8, 8), y_N


def _images(x_Nx1x8x8: Tensor, y_N: Tensor, index: Tensor) -> ImageTensors:
    return ImageTensors(x_Nx1x8x8[index], y_N[index], scale=16, mean=0.305, std=0.376)
