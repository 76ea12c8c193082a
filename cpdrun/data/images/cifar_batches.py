"""A reader for the files of CIFAR-10 and CIFAR-100: pickled dicts of b"data" (n, 3072) uint8 and labels.

A pickle file can run any code when it is loaded. So the reader allows only the names that numpy arrays need.
"""

import io
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cpdrun.data.base import DataError, ImageTensors


class _Arrays(pickle.Unpickler):
    """An unpickler that loads plain values and numpy arrays and refuses any other name."""

    ALLOWED = frozenset(
        {
            *(("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct")),
            *(("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")),
            *(("numpy.core.numeric", "_frombuffer"), ("numpy._core.numeric", "_frombuffer")),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it contains {module}.{name}, which no batch needs")
        return super().find_class(module, name)


@dataclass(frozen=True)
class Layout:
    """The layout and the statistics of one of the two datasets.

    Attributes:
        name: The name of the dataset.
        archive: The name of the archive that contains the files.
        labels: The key of the labels in a file.
        mean: The mean of pixel / 255 for each channel.
        std: The standard deviation of pixel / 255 for each channel.
    """

    name: str
    archive: str
    labels: bytes
    mean: Sequence[float]
    std: Sequence[float]

    def images(self, folder: Path, files: Sequence[str], samples: int | None) -> ImageTensors:
        """Return the first `samples` images of the files, in order.

        Raises:
            DataError: A file is missing or damaged.
        """
        parts = [self._read(folder / file) for file in files]
        x_Nx3072, y_N = (
            torch.from_numpy(np.concatenate(arrays))[:samples] for arrays in zip(*parts, strict=True)
        )
        return ImageTensors(x_Nx3072.view(-1, 3, 32, 32), y_N, scale=255, mean=self.mean, std=self.std)

    def _read(self, path: Path) -> tuple[np.ndarray, np.ndarray]:
        if not path.exists():
            raise DataError(
                f"{self.name} is not in {path.parent} (no {path.name}): unpack {self.archive} of "
                "www.cs.toronto.edu/~kriz/cifar.html, and give the folder that contains it with data.data_dir=PATH"
            )
        try:
            batch = _Arrays(io.BytesIO(path.read_bytes()), encoding="bytes").load()
            images, labels = batch[b"data"], np.asarray(batch[self.labels], dtype=np.int64)
            if images.dtype != np.uint8 or images.shape != (len(labels), 3 * 32 * 32):
                raise ValueError(f"data {images.shape} {images.dtype} for {len(labels)} labels")
            return images, labels
        except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"{path} is not a whole {self.name} batch ({error or type(error).__name__})"
            ) from None
