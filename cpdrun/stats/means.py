"""Means and deviations of a few values, and the choice of the best of several settings by their means."""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any


def mean(values: Sequence[float]) -> float:
    """Return the mean; NaN without values."""
    return fmean(values) if values else math.nan


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of at least two values, with n - 1 in the denominator.

    The sum of squares is rounded only once (math.fsum). statistics.stdev computes with fractions and is far slower.
    """
    middle = fmean(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1))


def is_zero(width: float) -> bool:
    """Return whether a spread is zero up to rounding, as it is for equal values."""
    return abs(width) < 1e-12


# The first seed of the runs that choose. Runs that are compared afterwards have smaller seeds.
FIRST_SEED = 1000


def choose(arms: Sequence[Sequence[float]], *, higher_is_better: bool) -> int:
    """Return the index of the best setting.

    The best setting has the fewest diverged runs and, among settings with equally few, the best mean over its other
    runs. A setting without runs comes last. Ties go to the first setting. Only the given runs influence the choice, so
    it is independent of the runs on other seeds that are compared afterwards.

    Args:
        arms: The metric of the runs of each setting. NaN for a run that diverged.
        higher_is_better: The direction of the metric.
    """
    sign = 1.0 if higher_is_better else -1.0

    def merit(values: Sequence[float]) -> tuple[bool, int, float]:
        healthy = [value for value in values if math.isfinite(value)]
        return bool(values), len(healthy) - len(values), sign * fmean(healthy) if healthy else -math.inf

    return max(range(len(arms)), key=lambda i: merit(arms[i]))  # max returns the first of several maxima


def edges(chosen: Mapping[str, Any], tried: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, str]]:
    """Yield each chosen value that is the largest or the smallest number tried, as ("optim.lr", "largest").

    A better value may lie beyond such an end.

    Args:
        chosen: The chosen value of each key.
        tried: The values that were tried for each key.
    """
    for key, value in chosen.items():
        values = tried.get(key, ())
        if len(values) > 1 and all(map(_is_number, values)):
            if value == max(values):
                yield key, "largest"
            elif value == min(values):
                yield key, "smallest"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
