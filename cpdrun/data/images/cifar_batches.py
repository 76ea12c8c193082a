"""The files of CIFAR-10 and CIFAR-100: pickled dicts of b"data" (n, 3072) uint8, channels first, and labels.

A pickle can run any code when it is loaded, so these are read with an allow-list of what numpy's arrays need.
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
    """Loads plain values and numpy arrays, and refuses to look up any other name."""

    ALLOWED = frozenset(
        {
            *(("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct")),
            *(("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")),
            *(("numpy.core.numeric", "_frombuffer"), ("numpy._core.numeric", "_frombuffer")),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no batch needs")
        return super().find_class(module, name)


@dataclass(frozen=True)
class Layout:
    """One of the two: its name and archive, under which key its labels stand, mean and deviation of its pixels."""

    name: str
    archive: str
    labels: bytes
    mean: Sequence[float]
    std: Sequence[float]

    def images(self, folder: Path, files: Sequence[str], samples: int | None) -> ImageTensors:
        """The first `samples` images of these files, in order. Raises DataError where one is absent or damaged."""
        parts = [self._read(folder / file) for file in files]
        x_Nx3072, y_N = (
            torch.from_numpy(np.concatenate(arrays))[:samples] for arrays in zip(*parts, strict=True)
        )
        return ImageTensors(x_Nx3072.view(-1, 3, 32, 32), y_N, scale=255, mean=self.mean, std=self.std)

    def _read(self, path: Path) -> tuple[np.ndarray, np.ndarray]:
        if not path.exists():
            raise DataError(
                f"{self.name} is not in {path.parent} (no {path.name}): unpack {self.archive} of "
                "www.cs.toronto.edu/~kriz/cifar.html, and name the folder it lies in with data.data_dir=PATH"
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
