"""Recognize numbers, and compute means, deviations, and the setting with the best mean."""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, TypeGuard


def is_number(value: object) -> TypeGuard[float]:
    """Return True for ints and floats, including NaN and infinity. A bool is no number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def as_float(value: object) -> float:
    """Return a number as a float, or NaN for any other value."""
    return float(value) if is_number(value) else math.nan


def mean(values: Sequence[float]) -> float:
    """Return the mean, or NaN without values."""
    return fmean(values) if values else math.nan


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of at least two values, with n - 1 in the denominator.

    statistics.stdev is far slower because it computes with fractions. math.fsum rounds the sum of squares only once.
    """
    middle = fmean(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1))


def is_zero(width: float) -> bool:
    """Return True if a spread is 0 or may be a rounding error."""
    return abs(width) < 1e-12


# Runs that choose tuned values have seeds from this one on. Compared runs have smaller seeds.
FIRST_SEED = 1000


def choose(arms: Sequence[Sequence[float]], *, higher_is_better: bool) -> int:
    """Return the index of the best setting, from the given runs only.

    This is the setting with the fewest diverged runs. Ties go to the better mean of the other runs, and then to the
    first one. A setting without runs comes last.

    Args:
        arms: For each setting, the metric of its runs. A run that diverged has NaN.
        higher_is_better: Whether larger values of the metric are better.
    """
    sign = 1.0 if higher_is_better else -1.0

    def merit(values: Sequence[float]) -> tuple[bool, int, float]:
        healthy = [value for value in values if math.isfinite(value)]
        return bool(values), len(healthy) - len(values), sign * fmean(healthy) if healthy else -math.inf

    return max(range(len(arms)), key=lambda i: merit(arms[i]))  # Of equal maxima, max returns the first.


def edges(chosen: Mapping[str, Any], tried: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, str]]:
    """Yield the keys whose chosen value is the smallest or largest tried number.

    A better value may lie beyond it. Example: ("optim.lr", "largest").
    """
    for key, value in chosen.items():
        values = tried.get(key, ())
        if len(values) > 1 and all(map(is_number, values)):
            if value == max(values):
                yield key, "largest"
            elif value == min(values):
                yield key, "smallest"
