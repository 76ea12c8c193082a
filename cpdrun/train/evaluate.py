"""Metrics on held-out data: the same bits whatever the number of ranks.

Batches of a fixed size are dealt to the ranks in turn; what a task sums is added in the order of the batches, what it
counts is exact in any order.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cpdrun.comm.workers import Workers
from cpdrun.record import MAX_EXAMPLES, ExampleOutcomes
from cpdrun.train.batches import fetched
from cpdrun.train.build import Parts
from cpdrun.train.ranks import pulse


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found: the metrics, each as test_NAME, and which examples were answered right, if the task
    is judged by their share."""

    metrics: dict[str, float]
    outcomes: ExampleOutcomes | None = None


@torch.no_grad()
def evaluate(parts: Parts, workers: Workers, device: torch.device, samples: int | None = None) -> Evaluation:
    """Evaluate `parts.model` as it stands on the test set of `parts.data`, or on its first `samples`.

    The ranks of `workers` share the work. Collective.
    """
    model, task, dataset = parts.model, parts.task, parts.data.test
    model.eval()
    index_n = torch.arange(len(dataset))[:samples]
    batches = index_n.split(parts.eval_batch)
    mine = range(workers.rank, len(batches), workers.ranks)
    totals = Totals(len(batches))
    examples_nx2: Tensor | None = None
    looked_at = mine or range(1)  # a rank without a batch looks at one, to know the names and shapes
    ready = fetched(dataset, [batches[i] for i in looked_at], parts.batches.loaders, device)
    for i, batch in zip(looked_at, ready, strict=True):
        outputs = task.outputs(model, batch)
        totals.add(i, task.sums(outputs, batch), counted=i in mine)
        found_Bx2 = task.example_outcomes(outputs, batch)
        if found_Bx2 is not None and len(index_n) <= MAX_EXAMPLES:
            if examples_nx2 is None:
                examples_nx2 = found_Bx2.new_zeros(len(index_n), 2)
            if i in mine:
                examples_nx2[i * parts.eval_batch :][: len(found_Bx2)] = found_Bx2
        pulse.beat()
    model.train()
    metrics = task.metrics({name: totals.of(name, workers) for name in totals.tables})
    metrics = {f"test_{name}": value for name, value in metrics.items()}
    if examples_nx2 is None:
        return Evaluation(metrics)
    outcomes = _outcomes(f"test_{task.judged_by}", workers.sum_of_disjoint(examples_nx2))
    # They differ where targets are left out of the metric, or where a task of the user's own counts otherwise.
    return Evaluation(metrics, outcomes if outcomes.mean == metrics.get(outcomes.metric) else None)


def _outcomes(metric: str, examples_nx2: Tensor) -> ExampleOutcomes:
    table_nx2 = examples_nx2.cpu().numpy()
    labels = table_nx2[:, 0].astype("<i8").tobytes()
    bits = np.packbits(table_nx2[:, 1].astype(bool)).tobytes()
    return ExampleOutcomes(metric, len(table_nx2), hashlib.sha256(labels).hexdigest(), bits)


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
