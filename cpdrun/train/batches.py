"""Batches for training and evaluation, fetched on demand or in advance by loader processes.

A batch is a tree of tensors (`cpdrun.data.base`). It depends only on its sample indices and on (seed, step, worker). It
has the same bits for any number of loader processes, and on any rank that fetches it.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.utils._pytree import tree_map, tree_map_only
from torch.utils.data import DataLoader, Dataset

from cpdrun.data.base import Batch, Data, ImageTensors, IndexedDataset, augmented, fetch_batch
from cpdrun.data.stream import Stream
from cpdrun.train.seeds import generator

PREFETCHED = 2  # the number of batches that each loader process prepares in advance

Place = tuple[int, int]  # (step of the run, worker)


def evaluation_batches(
    dataset: IndexedDataset, batches: list[Tensor], loaders: int, device: torch.device
) -> Iterator[Batch]:
    """Yield batches for evaluation on `device`.

    Args:
        dataset: The test set.
        batches: Sample indices of each batch, of shape (B,).
        loaders: Number of loader processes.
        device: Where to put the batches.
    """
    fetched: Iterator[Batch] = (fetch_batch(dataset, index_B) for index_B in batches)
    if loaders:
        planned = PlannedBatches(dataset, [(None, index_B) for index_B in batches], seed=0)
        fetched = (batch for _, batch in _loader(planned, loaders, device))
    for batch in fetched:
        yield _to(device, batch)


class Batches:
    """The training batches of one rank's workers.

    Args:
        data: The dataset.
        seed: The run's seed.
        device: Where to put the batches.
        loaders: Number of processes that decode and crop in advance. With 0, batches are fetched on demand.
        channels_last: Whether image tensors get the memory format channels_last.
    """

    def __init__(self, data: Data, seed: int, device: torch.device, loaders: int, channels_last: bool):
        self.data, self.seed, self.device, self.loaders = data, seed, device, loaders
        self.channels_last = channels_last
        self._ahead: Iterator[tuple[Place, Batch]] | None = None

    def plan(self, index_SxNxB: Tensor, mine: range, first_step: int) -> None:
        """Start to fetch the batches of the workers `mine`, for all steps from `first_step` on.

        Later calls of `fetch` must have the same order of steps and workers.
        """
        if self.loaders == 0:
            return
        plan = [
            ((first_step + s, worker), index_NxB[worker])
            for s, index_NxB in enumerate(index_SxNxB)
            for worker in mine
        ]
        self._ahead = iter(
            _loader(PlannedBatches(self.data.train, plan, self.seed), self.loaders, self.device)
        )

    def fetch(self, index_B: Tensor, step: int, worker: int) -> Batch:
        """Return the batch with the given samples, augmented with the random numbers of this step and worker."""
        if self._ahead is None:
            batch = fetch_batch(self.data.train, index_B, _generator_factory(self.seed, (step, worker)))
        else:
            place, batch = next(self._ahead)
            assert place == (step, worker), f"planned {place}, requested {(step, worker)}"
        batch = augmented(self.data, _to(self.device, batch), generator("augment", self.seed, step, worker))
        return tree_map_only(Tensor, _channels_last, batch) if self.channels_last else batch

    def fetch_stacked(self, index_NxB: Tensor, step: int, workers: range) -> Batch:
        """Return the batches of several workers, stacked along a new first dimension."""
        train = self.data.train
        is_plain = self._ahead is None and not self.channels_last and not hasattr(self.data, "augment")
        if is_plain and type(train) is ImageTensors:
            # One call fetches the samples of all workers, because no random numbers depend on the worker.
            return _to(self.device, train.fetch_batch(index_NxB[workers.start : workers.stop]))
        batches = [self.fetch(index_NxB[worker], step, worker) for worker in workers]
        stack = getattr(train, "stack_batches", None)
        return tree_map(lambda *t: torch.stack(t), *batches) if stack is None else stack(batches)

    def first_samples(self, samples: int) -> Batch:
        """Return the first training samples in the shapes of a training batch.

        Images that are cropped while they are decoded are cropped. There is no other augmentation.
        """
        crops = _generator_factory(self.seed, (0, 0))
        return _to(self.device, fetch_batch(self.data.train, torch.arange(samples), crops))


class PlannedBatches(Dataset):
    """A dataset for a DataLoader. Each item is a batch and its place, which is None for evaluation batches."""

    def __init__(self, dataset: IndexedDataset, plan: Sequence[tuple[Place | None, Tensor]], seed: int):
        self.dataset, self.plan, self.seed = dataset, plan, seed

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, i: int) -> tuple[Place | None, Batch]:
        place, index_B = self.plan[i]
        return place, fetch_batch(
            self.dataset, index_B, _generator_factory(self.seed, place) if place else None
        )


def _to(device: torch.device, batch: Batch) -> Batch:
    if type(batch) is tuple and all(isinstance(part, Tensor) for part in batch):
        return tuple(
            t.to(device, non_blocking=True) for t in batch
        )  # the common case, without the overhead of a pytree
    return tree_map_only(Tensor, lambda t: t.to(device, non_blocking=True), batch)


def _channels_last(t: Tensor) -> Tensor:
    return t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t


def _generator_factory(seed: int, place: Place) -> Callable[[], torch.Generator]:
    """Return a function that makes the generator for a dataset that crops while it decodes."""
    return partial(generator, "decode", seed, *place)


def _loader(planned: PlannedBatches, loaders: int, device: torch.device) -> DataLoader:
    return DataLoader(
        planned,
        batch_size=None,
        num_workers=1
        if isinstance(planned.dataset, Stream)
        else loaders,  # A single process reads a stream in order.
        prefetch_factor=PREFETCHED,
        pin_memory=device.type == "cuda",
        collate_fn=lambda item: item,
        generator=torch.Generator(),  # The default is the global generator, which must not change because of dropout.
    )
