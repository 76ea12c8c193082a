"""What the training loop asks of a dataset.

B samples a batch, C channels, H x W pixels.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate


class Data(Protocol):
    """Two map-style datasets of (x, y), and what a model has to know of them.

    A class of your own needs these attributes and nothing else: no base class, no registration. With `path`, the file
    or folder that it was read from, or `sha256`, a digest of what it holds, the record tells one data from another;
    else what its yaml names is looked at.
    """

    train: Dataset
    test: Dataset
    num_classes: int
    in_channels: int

    def augment(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """A training batch (B, ...) changed at random, drawing from `generator` alone; a new tensor."""


class DataError(Exception):
    """A dataset is not there or not whole; the message says how to get it."""


class ImageTensors(Dataset):
    """Images held in memory as bytes, normalised when fetched.

    x_NxCxHxW: uint8; y_N: int64 classes; mean and std, of all channels or of each, in units of the full scale
    (pixel / scale).
    Items are (float32 (C, H, W), int64 ()); `fetch_batch` gives a whole batch at once.
    """

    def __init__(
        self,
        x_NxCxHxW: Tensor,
        y_N: Tensor,
        *,
        scale: float,
        mean: float | Sequence[float],
        std: float | Sequence[float],
    ):
        self.x_NxCxHxW, self.y_N = x_NxCxHxW, y_N
        mean_C, std_C = (torch.tensor(value, dtype=torch.float64).reshape(-1, 1, 1) for value in (mean, std))
        self.gain, self.offset = (1.0 / (scale * std_C)).float(), (-mean_C / std_C).float()

    def __len__(self) -> int:
        return len(self.y_N)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self.fetch_batch([index])
        return x[0], y[0]

    def fetch_batch(self, indices: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
        index_B = torch.as_tensor(indices)
        return self.x_NxCxHxW[index_B].float().mul_(self.gain).add_(self.offset), self.y_N[index_B]


def fetch_batch(
    dataset: Dataset, indices: Tensor, draws: Callable[[], torch.Generator] | None = None
) -> tuple[Tensor, Tensor]:
    """The samples `indices` (B,) of `dataset` as one batch: at once where it knows how, else collated.

    draws: makes a generator, for training. A dataset that crops while it decodes has `fetch_augmented(indices,
    generator)`, which draws from that one alone.
    """
    if draws is not None and hasattr(dataset, "fetch_augmented"):
        return dataset.fetch_augmented(indices, draws())
    if hasattr(dataset, "fetch_batch"):
        return dataset.fetch_batch(indices)
    return tuple(default_collate([dataset[i] for i in indices.tolist()]))
