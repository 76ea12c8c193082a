"""An adapter that turns an IterableDataset into a dataset with numbered samples.

With numbers, the samples of a stream can be assigned to workers as those of any dataset can. Each process reads the
whole stream and keeps the samples that it needs, so the samples of a worker do not depend on the number of processes. A
resumed run reads the stream up to the sample where it stopped.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from cpdrun.data.base import Batch, DataError, collated


class Stream(Dataset):
    """The samples of an IterableDataset, numbered in the order in which they are read.

    After the last sample of a pass over the source, the numbers continue with the next pass. A read of a later sample
    reads all samples before it. A read of an earlier sample starts again, at the beginning of the pass that contains it
    if the source has a length, and at the first pass otherwise.

    Args:
        source: The stream. If it has a method `set_epoch(n)`, the method is called before pass n, counted from 0.
        samples: The length of this dataset: of an epoch or of a test set.

    Raises:
        DataError: A pass is empty, or its number of samples differs from the length of the source. Raised by reads.
    """

    def __init__(self, source: IterableDataset, samples: int):
        self.source, self.samples = source, samples
        self.in_pass = length_of(source)
        self._pass: Iterator[Any] = iter(())
        # The index of the current pass or -1, the number of its first sample, and the number of the next sample.
        self._passes, self._first, self._next = -1, 0, 0

    def __len__(self) -> int:
        return self.samples

    def fetch_batch(self, indices: Tensor) -> Batch:
        """Return some samples as one batch."""
        return collated([self[i] for i in torch.as_tensor(indices).tolist()])

    def __getitem__(self, index: int) -> Any:
        if self._passes < 0 or index < self._next:
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
            raise DataError(f"{name} gave no samples in pass {self._passes}")
        if self.in_pass not in (None, given):
            raise DataError(f"{name} says that it has {self.in_pass} samples and gave {given}")


def length_of(dataset: Any) -> int | None:
    """Return the length of a dataset, or None if it has no length."""
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None
