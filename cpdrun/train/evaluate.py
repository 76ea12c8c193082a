"""Evaluation on held-out data, with the same bits for any number of ranks.

The ranks take batches of a fixed size in turn. Floating-point sums of a task are added in the order of the batches.
Integer counts are exact in any order.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cpdrun.comm.workers import Workers
from cpdrun.record import MAX_EXAMPLES, ExampleOutcomes
from cpdrun.train.batches import evaluation_batches
from cpdrun.train.build import Parts
from cpdrun.train.ranks import heartbeat


@dataclass(frozen=True)
class Evaluation:
    """The results of an evaluation.

    Attributes:
        metrics: Values by name, each name prefixed with test_.
        outcomes: For each example, whether it was answered correctly. None if another metric judges the task.
    """

    metrics: dict[str, float]
    outcomes: ExampleOutcomes | None = None


@torch.no_grad()
def evaluate(parts: Parts, workers: Workers, device: torch.device, samples: int | None = None) -> Evaluation:
    """Evaluate `parts.model` on the test set of `parts.data`, or on its first `samples` samples.

    The batches are divided among the ranks of `workers`. Collective.
    """
    model, task, dataset = parts.model, parts.task, parts.data.test
    model.eval()
    index_n = torch.arange(len(dataset))[:samples]
    batches = index_n.split(parts.eval_batch)
    mine = range(workers.rank, len(batches), workers.ranks)
    totals = Totals(len(batches))
    examples_nx2: Tensor | None = None
    evaluated = mine or range(
        1
    )  # A rank without batches evaluates one to find the names and shapes of the sums.
    fetched = evaluation_batches(dataset, [batches[i] for i in evaluated], parts.batches.loaders, device)
    for i, batch in zip(evaluated, fetched, strict=True):
        outputs = task.outputs(model, batch)
        totals.add(i, task.sums(outputs, batch), counted=i in mine)
        outcomes_Bx2 = task.example_outcomes(outputs, batch)
        if outcomes_Bx2 is not None and len(index_n) <= MAX_EXAMPLES:
            if examples_nx2 is None:
                examples_nx2 = outcomes_Bx2.new_zeros(len(index_n), 2)
            if i in mine:
                examples_nx2[i * parts.eval_batch :][: len(outcomes_Bx2)] = outcomes_Bx2
        heartbeat.beat()
    model.train()
    metrics = task.metrics({name: totals.total(name, workers) for name in totals.tables})
    metrics = {f"test_{name}": value for name, value in metrics.items()}
    if examples_nx2 is None:
        return Evaluation(metrics)
    outcomes = _outcomes(f"test_{task.judged_by}", workers.sum_of_disjoint(examples_nx2))
    # The mean differs if the metric ignores some targets, or if a user's task counts in another way.
    return Evaluation(metrics, outcomes if outcomes.mean == metrics.get(outcomes.metric) else None)


def _outcomes(metric: str, examples_nx2: Tensor) -> ExampleOutcomes:
    table_nx2 = examples_nx2.cpu().numpy()
    labels = table_nx2[:, 0].astype("<i8").tobytes()
    bits = np.packbits(table_nx2[:, 1].astype(bool)).tobytes()
    return ExampleOutcomes(metric, len(table_nx2), hashlib.sha256(labels).hexdigest(), bits)


class Totals:
    """Sums over batches. Floats are stored in one row per batch and added in order. Integers are added directly."""

    def __init__(self, batches: int):
        self.batches = batches
        self.tables: dict[str, Tensor] = {}

    def add(self, i: int, sums: dict[str, Tensor], *, counted: bool) -> None:
        """Add the sums of the i-th batch. If `counted` is false, only create the tables of their shapes."""
        for name, value in sums.items():
            is_float = value.is_floating_point()
            if name not in self.tables:
                shape, dtype = (
                    ((self.batches, *value.shape), torch.float64) if is_float else (value.shape, torch.int64)
                )
                self.tables[name] = value.new_zeros(shape, dtype=dtype)
            if counted:
                (self.tables[name][i] if is_float else self.tables[name]).add_(value)

    def total(self, name: str, workers: Workers) -> Tensor:
        """Return the sum over the batches of all ranks. Collective."""
        table = workers.sum_of_disjoint(self.tables[name])
        return table.sum(dim=0) if table.is_floating_point() else table
