"""What becomes of one layer of one role in one step, and of several together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

from cpdrun.whatif.collect.observation import Seen
from cpdrun.whatif.simulate.rounding_error import Tally
from cpdrun.whatif.simulate.worker_sums import Summed

Judge = Callable[[int, Mapping[str, Seen]], "list[Part]"]
"""Of the layers of a role in one step."""


@dataclass(frozen=True)
class Part:
    """What becomes of one layer in one step. total: of the workers' sum; lost: of updates, (lost, all)."""

    format: str
    shift: float
    tally: Tally
    exact: bool
    total: Summed | None = None
    lost: tuple[float, float] | None = None


def figures(parts: Sequence[Part]) -> dict[str, float]:
    """Of all of them together; NaN where there is nothing to say."""
    found = reduce(add, [part.tally for part in parts]).figures()
    totals = [part.total for part in parts if part.total is not None]
    if totals:
        found |= reduce(add, totals).figures()
    lost = [part.lost for part in parts if part.lost is not None]
    if lost:
        of_all = sum(n for _, n in lost)
        found["update_lost"] = sum(n for n, _ in lost) / of_all if of_all else math.nan
    return found
