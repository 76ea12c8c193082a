"""The effects on one layer of one role in one step, and the figures of several of them together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

from cpdrun.whatif.collect.observation import TensorStatistics
from cpdrun.whatif.simulate.rounding_error import RoundingError
from cpdrun.whatif.simulate.worker_sums import SumAccuracy

# A function that computes the effects on all layers of a role in one step.
RoleSimulator = Callable[[int, Mapping[str, TensorStatistics]], "list[LayerEffect]"]


@dataclass(frozen=True)
class LayerEffect:
    """The effects on one layer in one step.

    Attributes:
        format: The name of the format.
        shift: The exponent of the scale 2^shift by which values are multiplied before rounding. For gradients, the
            mean over workers.
        error: The rounding-error statistics.
        exact: Whether `error` is exact. If not, it is computed from samples or is an approximation.
        total: The accuracy of the workers' sum; None for roles other than gradients.
        lost: The number of updates that leave the weight unchanged, and the number of nonzero updates. Both are
            extrapolated from the sample to the layer. None for roles other than updates.
    """

    format: str
    shift: float
    error: RoundingError
    exact: bool
    total: SumAccuracy | None = None
    lost: tuple[float, float] | None = None


def figures(parts: Sequence[LayerEffect]) -> dict[str, float]:
    """Return the figures of all parts together; NaN if a figure is not defined."""
    found = reduce(add, [part.error for part in parts]).figures()
    totals = [part.total for part in parts if part.total is not None]
    if totals:
        found |= reduce(add, totals).figures()
    lost = [part.lost for part in parts if part.lost is not None]
    if lost:
        of_all = sum(n for _, n in lost)
        found["update_lost"] = sum(n for n, _ in lost) / of_all if of_all else math.nan
    return found
