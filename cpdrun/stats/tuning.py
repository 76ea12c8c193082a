"""Which of several settings did best on the seeds that are there to choose it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

FIRST_SEED = 1000
"""Of runs that choose what is judged afterwards: those that judge have the seeds below it."""


def choose(arms: Sequence[Sequence[float]], *, higher_is_better: bool) -> int:
    """The index of the best: of fewest diverged runs, and among those of the best mean over its others.

    `arms`: for each setting the metric of its runs, NaN for one that diverged. A setting of which no run has a value
    is behind all others; of equals the one listed first is taken. Nothing else is looked at, so that what is certified
    afterwards on other seeds had no part in the choice.
    """
    sign = 1.0 if higher_is_better else -1.0

    def merit(values: Sequence[float]) -> tuple[bool, int, float]:
        healthy = [value for value in values if math.isfinite(value)]
        return bool(values), len(healthy) - len(values), sign * fmean(healthy) if healthy else -math.inf

    return max(range(len(arms)), key=lambda i: merit(arms[i]))  # the first of the largest


def edges(chosen: Mapping[str, Any], tried: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, str]]:
    """`("optim.lr", "largest")` for each value of `chosen` at an end of the numbers `tried` of its key: a better one
    may lie beyond."""
    for key, value in chosen.items():
        values = tried.get(key, ())
        if len(values) > 1 and all(map(_is_number, values)):
            if value == max(values):
                yield key, "largest"
            elif value == min(values):
                yield key, "smallest"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
