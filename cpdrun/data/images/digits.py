"""The digits of scikit-learn: 1,797 real gray images of 8x8 pixels in ten classes (Alpaydin and Kaynak 1998, UCI).

The file is part of the wheel of scikit-learn. It is read without an import of scikit-learn, which would take longer
than an epoch of training.
"""

import importlib.util
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cpdrun.data.base import DataError, ImageTensors

SPLIT_SEED = 0  # part of the definition of the dataset: runs of all seeds are tested on the same images


class Digits:
    """The digits, with samples of an image (1, 8, 8) float32 and a class () int64.

    Args:
        test_fraction: The fraction of the images that is the test set.

    Raises:
        DataError: The fraction is out of range, or scikit-learn is not installed or does not contain the file.
    """

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
        raise DataError(
            "the digits are part of scikit-learn, which is not installed: pip install scikit-learn"
        )
    path = Path(sklearn.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if not path.exists():
        raise DataError(f"the installed scikit-learn does not contain the digits ({path})")
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
