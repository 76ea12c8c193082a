"""Sums of N workers' gradients over the sampled elements, in the reduction order of a run.

The sums are computed by the code that computes them in a run (`cpdrun.comm.sums`). Every format, order, rounding, Kahan
summation and compat setting therefore has the same effect as in a run.

A shift depends on the whole layer. For the first level of an order, it follows from each worker's observed largest
magnitude in the whole layer. The sums of later levels are known only for the sampled elements. Their shifts follow from
the largest of these elements and of the element whose sum over all workers is largest, which is always included.
`aps_delayed` uses the magnitudes of the same step, because the previous step was not observed.

Legend: N workers, n sampled elements of a layer, P layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from custom_fp.formats.protocol import NumberFormat
from torch import Tensor

from cpdrun.comm.sums.magnitudes import ThisStep
from cpdrun.comm.sums.orders import Level
from cpdrun.comm.sums.scaling import ScalingRule, Shifts
from cpdrun.comm.sums.sum import Sum
from cpdrun.comm.sums.summations import summation_of
from cpdrun.comm.sums.summations.base import Layers
from cpdrun.comm.workers import Workers
from cpdrun.whatif.simulate.additive import Additive


@dataclass(frozen=True)
class SumAccuracy(Additive):
    """The accuracy of the workers' sum for one layer in one step, as sums over the sampled elements.

    Attributes:
        exact: The sum of squares of the exact sum.
        error: The sum of squares of the difference between the computed sum and the exact sum.
        result: The sum of squares of the computed sum.
        product: The inner product of the computed sum and the exact sum.
        first_exact: The sum of squares of the exact sum of workers 0 and 1.
        first_error: The sum of squares of the error of the first addition, that of workers 0 and 1.
    """

    exact: float = 0.0
    error: float = 0.0
    result: float = 0.0
    product: float = 0.0
    first_exact: float = 0.0
    first_error: float = 0.0

    def figures(self) -> dict[str, float]:
        """Return cosine, sum_error and growth.

        A figure is NaN if it is not defined. All are NaN if the exact sum is zero or the error is not finite.
        """
        if not (self.exact > 0 and math.isfinite(self.error)):
            return dict.fromkeys(("cosine", "sum_error", "growth"), math.nan)
        error = math.sqrt(self.error / self.exact)
        first = math.sqrt(self.first_error / self.first_exact) if self.first_exact else 0.0
        norms = math.sqrt(self.exact * self.result)
        return {
            "cosine": self.product / norms if norms else math.nan,
            "sum_error": error,
            "growth": error / first if first > 0 and math.isfinite(first) else math.nan,
        }


class ObservedShifts(Shifts):
    """Choose shifts by the observed magnitudes.

    Args:
        rule: The scaling rule; None for no scaling.
        maxima_NxP: The observed largest magnitude of each worker in each layer.
    """

    def __init__(self, rule: ScalingRule | None, maxima_NxP: Tensor):
        super().__init__(rule)
        if self.asks:
            self.magnitudes = ThisStep()
        self.maxima_NxP = maxima_NxP

    def of_level(
        self,
        level: Level,
        layers: Sequence[str],
        local: Callable[[], Sequence[Tensor]],
        fmt: NumberFormat,
        workers: Workers,
    ) -> tuple[list[list[int]], int]:
        if level.first:
            rows = [self.maxima_NxP[group.start : group.stop].amax(0) for group in level.groups]
            return super().of_level(level, layers, lambda: list(torch.cat(rows)), fmt, workers)
        return super().of_level(level, layers, local, fmt, workers)


class _FixedShifts(ScalingRule):
    """A scaling rule that returns a given shift for each layer, by its name."""

    def __init__(self, shifts: dict[str, int]):
        self.shifts = shifts

    def shift(self, layer: str, magnitude: float, summands: int, fmt: NumberFormat) -> int:
        return self.shifts[layer]


def first_shifts(
    how: Sum, rule: ScalingRule | None, names: Sequence[str], maxima_NxP: Tensor
) -> list[list[int]]:
    """Return the shifts with which the workers' gradients are rounded.

    Args:
        how: The sum.
        rule: The scaling rule; None for no scaling.
        names: The names of the layers.
        maxima_NxP: The observed largest magnitude of each worker in each layer.

    Returns:
        shifts[j][p] for group j of the first level and layer p.
    """
    workers = Workers(len(maxima_NxP))
    level = how.ordering.levels(workers.world_size)[0]
    shifts = ObservedShifts(rule, maxima_NxP)
    return shifts.of_level(level, names, lambda: [], how.fmt, workers)[0]


def simulate_sums(
    how: Sum,
    rule: ScalingRule | None,
    names: Sequence[str],
    values: Sequence[np.ndarray],
    extremes: Sequence[np.ndarray],
    maxima: Sequence[np.ndarray],
    key: tuple,
) -> tuple[list[SumAccuracy], list[np.ndarray]]:
    """Compute the sums of several layers in one step, and their accuracy.

    Args:
        how: The sum.
        rule: The scaling rule; None for no scaling.
        names: The names of the layers.
        values: values[p] is (N, n) float32. The sampled gradients of layer p.
        extremes: extremes[p] is (N, 1) float32. The element of layer p whose sum has the largest magnitude.
        maxima: maxima[p] is (N,) float32. The largest finite magnitude of each worker in layer p.
        key: The key of stochastic rounding, such as (seed, step).

    Returns:
        The accuracy of each layer's sum, and the sums, (n,) float32.

    Raises:
        ValueError: The sum cannot be computed with this number of workers.
    """
    n_workers = len(values[0])
    maxima_NxP = torch.from_numpy(np.stack(maxima, 1))
    # Without a rule, nothing is shifted, and an appended element would change the blocks of formats with scales.
    whole = (
        values if rule is None else [np.concatenate(pair, 1) for pair in zip(values, extremes, strict=True)]
    )
    stacks = [torch.from_numpy(np.ascontiguousarray(x)) for x in whole]
    results = _run(how, ObservedShifts(rule, maxima_NxP), names, stacks, key)
    shifts = first_shifts(how, rule, names, maxima_NxP)[0]
    first = [stack[:2].contiguous() for stack in stacks]
    pair_how = replace(how, order="rank", group_size=None) if how.ordering.is_stated else how
    given = Shifts(_FixedShifts(dict(zip(names, shifts, strict=True)))) if rule is not None else None
    of_two = _run(pair_how, given, names, first, key) if n_workers > 1 else [s[0] for s in first]
    found = [_squares(values[p], results[p].numpy(), of_two[p].numpy()) for p in range(len(names))]
    return found, [results[p].numpy()[: values[p].shape[1]] for p in range(len(names))]


def _run(
    how: Sum, shifts: Shifts | None, names: Sequence[str], stacks: Sequence[Tensor], key: tuple
) -> list[Tensor]:
    out = [torch.empty_like(stack[0]) for stack in stacks]
    summation_of(how, Workers(len(stacks[0])), shifts).run(Layers(names, stacks, out, key))
    return out


def _squares(values_Nxn: np.ndarray, result: np.ndarray, first: np.ndarray) -> SumAccuracy:
    n = values_Nxn.shape[1]  # the elements after the first n are the extremes
    exact = values_Nxn.astype(np.float64).sum(0)
    came, first_exact = result[:n].astype(np.float64), values_Nxn[:2].astype(np.float64).sum(0)
    first = first[:n].astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        return SumAccuracy(
            float(exact @ exact),
            float(((came - exact) ** 2).sum()),
            float(came @ came),
            float(came @ exact),
            float(first_exact @ first_exact),
            float(((first - first_exact) ** 2).sum()),
        )
