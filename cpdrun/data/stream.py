"""An IterableDataset as numbered samples, which are read in their order.

So a stream is dealt to workers by number, as any dataset: whoever plays them, each process reads all of it and keeps
what is asked of it, and a run that goes on reads up to where it stopped.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from cpdrun.data.base import Batch, DataError, collated


class Stream(Dataset):
    """Sample i is the i-th of the source's first pass, then of the second, and so on. Reading on costs what lies
    between; going back begins again, with the pass of that sample where the source says how long a pass is.

    samples: its length, that of an epoch or of a test set. Raises DataError where a pass is empty, or shorter than the
    source says.
    """

    def __init__(self, source: IterableDataset, samples: int):
        self.source, self.samples = source, samples
        self.in_pass = length_of(source)
        self._pass: Iterator[Any] | None = None
        self._passes = self._first = self._next = (
            0  # the pass begun, its first sample's number, the next sample's
        )

    def __len__(self) -> int:
        return self.samples

    def fetch_batch(self, indices: Tensor) -> Batch:
        return collated([self[i] for i in torch.as_tensor(indices).tolist()])

    def __getitem__(self, index: int) -> Any:
        if self._pass is None or index < self._next:
            passes = index // self.in_pass if self.in_pass else 0
            self._begin(passes, passes * (self.in_pass or 0))
        while True:
            for sample in self._pass:
                self._next += 1
                if self._next > index:
                    return sample
            self._check_whole()
            self._begin(self._passes + 1, self._next)

    def _begin(self, passes: int, first: int) -> None:
        if hasattr(self.source, "set_epoch"):
            self.source.set_epoch(passes)
        self._pass, self._passes, self._first, self._next = iter(self.source), passes, first, first

    def _check_whole(self) -> None:
        given, name = self._next - self._first, type(self.source).__name__
        if given == 0:
            raise DataError(f"{name} gave no sample in its pass {self._passes}")
        if self.in_pass not in (None, given):
            raise DataError(f"{name} says that it has {self.in_pass} samples and gave {given}")


def length_of(dataset: Dataset) -> int | None:
    """None where it does not say."""
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None
