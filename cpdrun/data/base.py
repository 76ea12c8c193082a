"""The interface of datasets, images in memory, and functions on batches.

The docstring of cpdrun/tasks/__init__.py describes everything that a dataset may provide.

Shapes: B samples per batch, N samples of a dataset, C channels, H x W pixels.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from cpdrun.errors import UserError

Batch = Any  # (inputs, targets), or a mapping with the key `labels`; nested containers of tensors
NO_FACTS = (
    "train",
    "test",
    "augment",
    "path",
    "sha256",
    "label_names",
)  # attributes that are not passed to models and tasks


class IndexedDataset(Protocol):
    """A dataset with numbered samples, such as a map-style dataset of torch."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class Data(Protocol):
    """A training set and a test set. A class of your own needs these two attributes and no base class.

    Attributes:
        train: The training set. If it is an IterableDataset of torch, `cpdrun.train.build` numbers its samples.
        test: The test set, of finite length. It may be an IterableDataset, too.
    """

    train: IndexedDataset
    test: IndexedDataset


class DataError(UserError):
    """A dataset is missing or damaged. The message says how to get it."""


class ImageTensors(Dataset):
    """Images that are kept in memory as bytes and normalized when they are read.

    A sample is an image (C, H, W) float32 and its class () int64. `fetch_batch` returns a whole batch at once.

    Args:
        x_NxCxHxW: The images, uint8.
        y_N: The classes, int64.
        scale: The pixel value that is mapped to 1 before normalization.
        mean: The mean of pixel / scale, for all channels or for each channel.
        std: The standard deviation of pixel / scale, for all channels or for each channel.
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
        """Return the images (..., C, H, W) float32 and the classes (...) int64 for indices (...)."""
        index_B = torch.as_tensor(indices)
        return self.x_NxCxHxW[index_B].float().mul_(self.gain).add_(self.offset), self.y_N[index_B]


def fetch_batch(
    dataset: IndexedDataset, indices: Tensor, draws: Callable[[], torch.Generator] | None = None
) -> Batch:
    """Return some samples of a dataset as one batch.

    Args:
        dataset: The dataset. Its method `fetch_batch(indices)` is used if it has one. Otherwise, single samples are
            collated.
        indices: The indices of the samples, (B,) int64.
        draws: Makes the random generator of a training batch. With None, the batch is not augmented. A dataset that
            crops images while it decodes them has a method `fetch_augmented(indices, generator)`, which draws random
            numbers from that generator only.
    """
    if draws is not None and hasattr(dataset, "fetch_augmented"):
        return dataset.fetch_augmented(indices, draws())
    if hasattr(dataset, "fetch_batch"):
        return dataset.fetch_batch(indices)
    return collated([dataset[i] for i in indices.tolist()])


def collated(samples: list[Any]) -> Batch:
    """Return one batch of samples. Samples are (inputs, targets) or mappings, for which the batch is a dict."""
    batch = default_collate(samples)
    return dict(batch) if isinstance(batch, Mapping) else tuple(batch)


def augmented(data: Data, batch: Batch, generator: torch.Generator) -> Batch:
    """Apply `data.augment` to a training batch, if the data has this method.

    The method receives the inputs of the batch, or the whole batch if it is a mapping.
    """
    if not hasattr(data, "augment"):
        return batch
    if isinstance(batch, Mapping):
        return data.augment(batch, generator)
    return data.augment(batch[0], generator), *batch[1:]


def targets_of(batch: Batch) -> Any:
    """Return the targets of a batch.

    Raises:
        ValueError: The batch is a mapping without the key `labels`.
    """
    if not isinstance(batch, Mapping):
        return batch[1]
    if "labels" not in batch:
        raise ValueError(
            f"a batch that is a mapping must have its targets under the key 'labels'; it has {', '.join(batch)}"
        )
    return batch["labels"]


def states(data: Data, fact: str) -> bool:
    """Return whether the data has an attribute `fact` that may be passed to a model or a task."""
    return fact not in NO_FACTS and not fact.startswith("_") and getattr(data, fact, None) is not None
