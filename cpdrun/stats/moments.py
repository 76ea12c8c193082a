"""The mean and the standard deviation of a few values."""

import math
from collections.abc import Sequence
from statistics import fmean


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
