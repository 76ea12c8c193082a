"""The sum of N workers' gradients in a run's own order, of the sampled elements: by the code that forms it in a run
(`cpdrun.comm.sums`), so that any format, order, rounding, Kahan and compat says here what it does there.

A shift is a matter of the whole layer: the first level of an order has each worker's largest magnitude of it, as it was
seen. Of later levels, whose sums are not here as a whole, it is the largest of the sampled elements and of the one
whose sum of all workers is the largest, which is always among them. `aps_delayed` goes by the same step's magnitudes,
for the step before was not seen.

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
class Summed(Additive):
    """Of one layer in one step, squares over the sampled elements: of the exact sum, of its error, of what came out,
    and of the product of both; the same of the first two workers' sum, which is the first addition."""

    exact: float = 0.0
    error: float = 0.0
    result: float = 0.0
    product: float = 0.0
    first_exact: float = 0.0
    first_error: float = 0.0

    def figures(self) -> dict[str, float]:
        """sum_error, growth and cosine; NaN where they say nothing: a sum of zeros, or one that is not finite."""
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


class SeenShifts(Shifts):
    """A rule that goes by the magnitudes that were seen, (N, P)."""

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


class _Given(ScalingRule):
    """The shifts of layers, by their names."""

    def __init__(self, shifts: dict[str, int]):
        self.shifts = shifts

    def shift(self, layer: str, magnitude: float, summands: int, fmt: NumberFormat) -> int:
        return self.shifts[layer]


def first_shifts(
    how: Sum, rule: ScalingRule | None, names: Sequence[str], maxima_NxP: Tensor
) -> list[list[int]]:
    """[j][p] of the first level's group j and layer p: with what workers' gradients are rounded."""
    workers = Workers(len(maxima_NxP))
    level = how.ordering.levels(workers.world_size)[0]
    shifts = SeenShifts(rule, maxima_NxP)
    return shifts.of_level(level, names, lambda: [], how.fmt, workers)[0]


def summed(
    how: Sum,
    rule: ScalingRule | None,
    names: Sequence[str],
    values: Sequence[np.ndarray],
    extremes: Sequence[np.ndarray],
    maxima: Sequence[np.ndarray],
    key: tuple,
) -> tuple[list[Summed], list[np.ndarray]]:
    """Of each layer, and the sums (n,) that come out. values[p]: (N, n); extremes[p]: (N, 1); maxima[p]: (N,). key: of
    stochastic rounding.

    Raises ValueError where the sum does not fit the number of workers.
    """
    n_workers = len(values[0])
    maxima_NxP = torch.from_numpy(np.stack(maxima, 1))
    # without a rule nothing is shifted, and one element more would change the blocks of a format with scales
    whole = (
        values if rule is None else [np.concatenate(pair, 1) for pair in zip(values, extremes, strict=True)]
    )
    stacks = [torch.from_numpy(np.ascontiguousarray(x)) for x in whole]
    results = _run(how, SeenShifts(rule, maxima_NxP), names, stacks, key)
    shifts = first_shifts(how, rule, names, maxima_NxP)[0]
    first = [stack[:2].contiguous() for stack in stacks]
    pair_how = replace(how, order="rank", group_size=None) if how.ordering.is_stated else how
    given = Shifts(_Given(dict(zip(names, shifts, strict=True)))) if rule is not None else None
    of_two = _run(pair_how, given, names, first, key) if n_workers > 1 else [s[0] for s in first]
    found = [_squares(values[p], results[p].numpy(), of_two[p].numpy()) for p in range(len(names))]
    return found, [results[p].numpy()[: values[p].shape[1]] for p in range(len(names))]


def _run(
    how: Sum, shifts: Shifts | None, names: Sequence[str], stacks: Sequence[Tensor], key: tuple
) -> list[Tensor]:
    out = [torch.empty_like(stack[0]) for stack in stacks]
    summation_of(how, Workers(len(stacks[0])), shifts).run(Layers(names, stacks, out, key))
    return out


def _squares(values_Nxn: np.ndarray, result: np.ndarray, first: np.ndarray) -> Summed:
    n = values_Nxn.shape[1]  # what follows are the extremes
    exact = values_Nxn.astype(np.float64).sum(0)
    came, first_exact = result[:n].astype(np.float64), values_Nxn[:2].astype(np.float64).sum(0)
    first = first[:n].astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        return Summed(
            float(exact @ exact),
            float(((came - exact) ** 2).sum()),
            float(came @ came),
            float(came @ exact),
            float(first_exact @ first_exact),
            float(((first - first_exact) ** 2).sum()),
        )
