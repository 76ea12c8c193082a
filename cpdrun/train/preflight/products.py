"""The products of a model: the formats that they read, what stays in float32, and the operations of a step.

Some products of a model stay in float32 (custom_fp.recipe.layers). They include the products of recurrent layers and
transposed convolutions, which rules cannot select. They also include the products of functions that a `forward` calls,
unless a rule selects the operation. `emulated_products` finds all products in float32 by running a forward and a
backward pass with one sample (custom_fp.recipe.coverage).
"""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from custom_fp.recipe.apply import placement_in
from custom_fp.recipe.coverage import Coverage, measure
from torch import nn

from cpdrun.comm.model_parallel import model_workers_of
from cpdrun.train.build import Parts
from cpdrun.train.instantiate import naming
from cpdrun.train.precision.product_entries import (
    Operation,
    arithmetics,
    by_elements,
    operations_entry,
    products_of,
    sum_operand_bits,
)


def emulated_products(parts: Parts) -> dict[str, Any] | None:
    """Return the entry `products` of env.json, or None if no product is rounded.

    The products are counted with the first training sample. This does not change the results of the run, because the
    random state and the statistics of the model are restored. The call is collective if the workers of one model are on
    several ranks.

    Raises:
        BuildError: If a rule selects only layers that the model does not call.
    """
    if not parts.precision.rounds_products:
        return None
    batch = parts.batches.fetch(torch.tensor([0]), 0, 0)
    coverage = coverage_of(parts.model, lambda: parts.task.outputs(parts.model, batch))
    with naming("precision"):
        parts.precision.check_called(coverage.never_called)
    return products_of(arithmetics(parts.model), coverage)


def coverage_of(model: nn.Module, forward: Callable[[], object]) -> Coverage:
    """Return, for each format, the share of multiply-accumulates in a forward and a backward pass with such operands.

    The model runs in evaluation mode, because some layers cannot train with one sample. Its mode is restored. If the
    workers that share a model are on several ranks, only the forward pass is counted.

    Args:
        model: The model.
        forward: Calls the model with a batch.
    """
    training = model.training
    model.eval()
    try:
        return measure(model, placement_in(model), forward, backward=not model_workers_of(model))
    finally:
        model.train(training)


def step_operations(parts: Parts, batch_size: int) -> dict[str, Any] | None:
    """Return the entry `products` of done.json: the operations of one worker's step, averaged over the run's steps.

    Returns:
        None if workers share a model. {"problem": reason} if the model cannot process a single sample.
    """
    if model_workers_of(parts.model):
        return None
    try:
        by_format, operand_bits, uncounted = _operations_by_format(parts)
    except Exception as error:  # an error in the model must not turn a complete run into a failed one
        return {"problem": f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]}
    by_format = {kind: batch_size * n for kind, n in by_format.items()}
    return operations_entry(by_format, batch_size * operand_bits, uncounted)


def _operations_by_format(parts: Parts) -> tuple[dict[Operation, float], float, list[str]]:
    """Return the number of operations per sample in a step, averaged over the steps of the run.

    Returns:
        A tuple of three elements: the mean number of multiply-accumulates, keyed as in `by_elements`; the mean of
        `sum_operand_bits`; and the multiplying operators that cannot be counted.
    """
    batch, steps = parts.batches.first_samples(1), parts.duration.steps
    starts = [start for start in parts.precision.phase_starts() if start < steps] or [0]
    totals: Counter[Operation] = Counter()
    operand_bits = 0.0
    uncounted: dict[str, None] = {}
    for start, end in pairwise([*starts, max(steps, 1)]):
        parts.precision.at(start)
        coverage = coverage_of(parts.model, lambda: parts.task.outputs(parts.model, batch))
        uncounted |= dict.fromkeys(coverage.uncounted)
        operand_bits += sum_operand_bits(coverage) * (end - start)
        totals.update({kind: count * (end - start) for kind, count in by_elements(coverage).items()})
    by_format = {kind: count / max(steps, 1) for kind, count in totals.items()}
    return by_format, operand_bits / max(steps, 1), list(uncounted)
