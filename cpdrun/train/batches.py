"""Training batches, fetched when asked for or ahead of time by processes of their own.

A batch is a tree of tensors (`cpdrun.data.base`), a function of the samples' numbers and of (seed, step, worker);
neither the number of processes nor who asks changes a bit of it.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader, Dataset

from cpdrun.data.base import Batch, Data, augmented, fetch_batch
from cpdrun.data.stream import Stream
from cpdrun.train.seeds import generator

AHEAD = 2  # batches that each process holds ready

Place = tuple[int, int]  # step from the start of the run, worker


def fetched(dataset: Dataset, batches: list[Tensor], loaders: int, device: torch.device) -> Iterator[Batch]:
    """The batches of `dataset` with these sample numbers (B,) each, on `device`, for evaluation."""
    ready = (fetch_batch(dataset, index_B) for index_B in batches)
    if loaders:
        planned = Planned(dataset, [(None, index_B) for index_B in batches], seed=None)
        ready = (batch for _, batch in _loader(planned, loaders, device))
    for batch in ready:
        yield _on(device, batch)


class Batches:
    """The batches of one rank's workers, on `device`.

    loaders: processes that decode and crop ahead; 0: none, batches are fetched when asked for.
    """

    def __init__(self, data: Data, seed: int, device: torch.device, loaders: int, channels_last: bool):
        self.data, self.seed, self.device, self.loaders = data, seed, device, loaders
        self.channels_last = channels_last
        self._ahead: Iterator[tuple[Place, Batch]] | None = None

    def plan(self, index_SxNxB: Tensor, mine: range, first_step: int) -> None:
        """What `fetch` will be asked for next: the steps from `first_step` on, each for the workers `mine` in order."""
        if self.loaders == 0:
            return
        plan = [
            ((first_step + s, worker), index_NxB[worker])
            for s, index_NxB in enumerate(index_SxNxB)
            for worker in mine
        ]
        self._ahead = iter(_loader(Planned(self.data.train, plan, self.seed), self.loaders, self.device))

    def fetch(self, index_B: Tensor, step: int, worker: int) -> Batch:
        """The samples `index_B`, their inputs augmented as this step and worker draw."""
        if self._ahead is None:
            batch = fetch_batch(self.data.train, index_B, _draws(self.seed, (step, worker)))
        else:
            place, batch = next(self._ahead)
            assert place == (step, worker), f"planned {place}, asked for {(step, worker)}"
        batch = augmented(self.data, _on(self.device, batch), generator("augment", self.seed, step, worker))
        return tree_map_only(Tensor, _channels_last, batch) if self.channels_last else batch

    def plain(self, samples: int) -> Batch:
        """The first training samples as they are, for a look at what a batch is like."""
        return _on(self.device, fetch_batch(self.data.train, torch.arange(samples)))


class Planned(Dataset):
    """Whole batches as items, for a DataLoader: (place, batch). Those without a place are for evaluation."""

    def __init__(self, dataset: Dataset, plan: list[tuple[Place | None, Tensor]], seed: int | None):
        self.dataset, self.plan, self.seed = dataset, plan, seed

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, i: int) -> tuple[Place | None, Batch]:
        place, index_B = self.plan[i]
        return place, fetch_batch(self.dataset, index_B, place and _draws(self.seed, place))


def _on(device: torch.device, batch: Batch) -> Batch:
    if type(batch) is tuple and all(isinstance(part, Tensor) for part in batch):
        return tuple(t.to(device, non_blocking=True) for t in batch)  # as below, without a pytree's overhead
    return tree_map_only(Tensor, lambda t: t.to(device, non_blocking=True), batch)


def _channels_last(t: Tensor) -> Tensor:
    return t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t


def _draws(seed: int, place: Place) -> Callable[[], torch.Generator]:
    """What a dataset draws from that crops while it decodes."""
    return partial(generator, "decode", seed, *place)


def _loader(planned: Planned, loaders: int, device: torch.device) -> DataLoader:
    return DataLoader(
        planned,
        batch_size=None,
        num_workers=1 if isinstance(planned.dataset, Stream) else loaders,  # a stream is read once, in order
        prefetch_factor=AHEAD,
        pin_memory=device.type == "cuda",
        collate_fn=lambda item: item,
        generator=torch.Generator(),  # else it draws from the one that dropout uses
    )
