"""Metrics on held-out data: the same bits whatever the number of ranks.

Batches of a fixed size are dealt to the ranks in turn; what a task sums is added in the order of the batches, what it
counts is exact in any order.
"""

import torch
from torch import Tensor

from cpdrun.comm.workers import Workers
from cpdrun.train.batches import fetched
from cpdrun.train.build import Parts
from cpdrun.train.ranks import pulse


@torch.no_grad()
def evaluate(
    parts: Parts, workers: Workers, device: torch.device, samples: int | None = None
) -> dict[str, float]:
    """The task's metrics of `parts.model` as it stands, each as test_NAME, on the test set of `parts.data` or its first
    `samples`; `workers`' ranks share the work."""
    model, task, dataset = parts.model, parts.task, parts.data.test
    model.eval()
    batches = torch.arange(len(dataset))[:samples].split(parts.eval_batch)
    mine = range(workers.rank, len(batches), workers.ranks)
    totals = Totals(len(batches))
    looked_at = mine or range(1)  # a rank without a batch looks at one, to know the names and shapes
    ready = fetched(dataset, [batches[i] for i in looked_at], parts.batches.loaders, device)
    for i, batch in zip(looked_at, ready, strict=True):
        totals.add(i, task.sums(task.outputs(model, batch), batch), counted=i in mine)
        pulse.beat()
    model.train()
    metrics = task.metrics({name: totals.of(name, workers) for name in totals.tables})
    return {f"test_{name}": value for name, value in metrics.items()}


class Totals:
    """Sums over batches: floats in a float64 row for each batch, to be added in their order; counts at once."""

    def __init__(self, batches: int):
        self.batches, self.tables = batches, {}

    def add(self, i: int, sums: dict[str, Tensor], *, counted: bool) -> None:
        for name, value in sums.items():
            floats = value.is_floating_point()
            if name not in self.tables:
                shape, dtype = (
                    ((self.batches, *value.shape), torch.float64) if floats else (value.shape, torch.int64)
                )
                self.tables[name] = value.new_zeros(shape, dtype=dtype)
            if counted:
                (self.tables[name][i] if floats else self.tables[name]).add_(value)

    def of(self, name: str, workers: Workers) -> Tensor:
        """Collective."""
        table = workers.sum_of_disjoint(self.tables[name])
        return table.sum(dim=0) if table.is_floating_point() else table
