"""What the training loop asks of a dataset: cpdrun/tasks/__init__.py has the contract.

B samples a batch, C channels, H x W pixels.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from cpdrun.errors import UserError

Batch = Any  # (inputs, targets) or a mapping with labels; trees of tensors
NO_FACTS = ("train", "test", "augment", "path", "sha256")  # what a model cannot ask for


class Data(Protocol):
    """Two datasets, and what they state of themselves. A class of your own needs these two and no base class."""

    train: Dataset
    test: Dataset


class DataError(UserError):
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
) -> Batch:
    """The samples `indices` (B,) of `dataset` as one batch: at once where it knows how, else collated.

    draws: makes a generator, for training. A dataset that crops while it decodes has `fetch_augmented(indices,
    generator)`, which draws from that one alone.
    """
    if draws is not None and hasattr(dataset, "fetch_augmented"):
        return dataset.fetch_augmented(indices, draws())
    if hasattr(dataset, "fetch_batch"):
        return dataset.fetch_batch(indices)
    return collated([dataset[i] for i in indices.tolist()])


def collated(samples: Sequence[Any]) -> Batch:
    """One batch of samples, each (inputs, targets) or a mapping, which becomes a dict."""
    batch = default_collate(samples)
    return dict(batch) if isinstance(batch, Mapping) else tuple(batch)


def augmented(data: Data, batch: Batch, generator: torch.Generator) -> Batch:
    """`data.augment`, where it has one, of the inputs of a training batch, or of the whole mapping."""
    if not hasattr(data, "augment"):
        return batch
    if isinstance(batch, Mapping):
        return data.augment(batch, generator)
    return data.augment(batch[0], generator), *batch[1:]


def targets_of(batch: Batch) -> Any:
    """Raises ValueError for a mapping without labels."""
    if not isinstance(batch, Mapping):
        return batch[1]
    if "labels" not in batch:
        raise ValueError(f"a batch that is a mapping has its targets under labels; it has {', '.join(batch)}")
    return batch["labels"]


def states(data: Data, fact: str) -> bool:
    """Whether `data` has an attribute `fact` that a model or a task may ask for."""
    return fact not in NO_FACTS and not fact.startswith("_") and getattr(data, fact, None) is not None
