"""Metrics on held-out data: the same bits whatever the number of ranks.

Batches of a fixed size are dealt to the ranks in turn; what a task sums is added in the order of the batches, what it
counts is exact in any order.
"""

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from cpdrun.comm.workers import Workers
from cpdrun.tasks.base import Task
from cpdrun.train.batches import fetched
from cpdrun.train.ranks import pulse


@torch.no_grad()
def evaluate(
    model: nn.Module,
    task: Task,
    dataset: Dataset,
    workers: Workers,
    device: torch.device,
    *,
    batch: int,
    samples: int | None = None,
    loaders: int = 0,
) -> dict[str, float]:
    """The task's metrics, each as test_NAME.

    batch: samples at once; samples: only the first so many of the dataset, None: all; loaders: processes that fetch
    ahead, 0: none.
    """
    model.eval()
    batches = torch.arange(len(dataset))[:samples].split(batch)
    mine = range(workers.rank, len(batches), workers.ranks)
    totals = Totals(len(batches))
    looked_at = mine or range(1)  # a rank without a batch looks at one, to know the names and shapes
    for i, of_batch in zip(
        looked_at, fetched(dataset, [batches[i] for i in looked_at], loaders, device), strict=True
    ):
        totals.add(i, task.sums(task.outputs(model, of_batch), of_batch), counted=i in mine)
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
            if value.is_floating_point():
                table = self.tables.setdefault(
                    name, value.new_zeros(self.batches, *value.shape, dtype=torch.float64)
                )
                table = table[i]
            else:
                table = self.tables.setdefault(name, torch.zeros_like(value, dtype=torch.int64))
            if counted:
                table += value

    def of(self, name: str, workers: Workers) -> Tensor:
        """Collective."""
        table = workers.sum_of_disjoint(self.tables[name])
        return table.sum(dim=0) if table.is_floating_point() else table
