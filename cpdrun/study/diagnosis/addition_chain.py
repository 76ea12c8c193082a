"""The number of rounded additions in series in a reduction order, and how many workers one scale must leave room for.

`cpdrun.comm.sums.orders` adds in these orders. A test compares both, because reports import nothing of the trainer.
"""

import math
from collections.abc import Mapping
from typing import Any

FLAT_UP_TO = 8  # group_size=auto adds up to this many workers in one chain


def longest_chain(sync: Mapping[str, Any], workers: int) -> int | None:
    """Return the largest number of rounded additions in series; None for an unknown order."""
    order = sync.get("order")
    if order in ("rank", "ring"):
        return workers - 1
    if order == "exact" or str(order).startswith("aligned"):
        return min(1, workers - 1)
    if order == "tree":
        return math.ceil(math.log2(workers))
    if order == "hierarchical":
        group = group_size(sync, workers)
        return group - 1 + math.ceil(workers / group) - 1
    return None


def workers_per_scale(sync: Mapping[str, Any], workers: int) -> int:
    """Return the number of workers in one chain. A scale leaves powers of two free for their sum."""
    order = sync.get("order")
    if order == "tree":
        return min(2, workers)
    return group_size(sync, workers) if order == "hierarchical" else workers


def group_size(sync: Mapping[str, Any], workers: int) -> int:
    """Return the number of workers in a group of the hierarchical order."""
    given = sync.get("group_size")
    if isinstance(given, int):
        return min(given, workers)
    if workers <= FLAT_UP_TO:
        return workers
    root = math.sqrt(workers)
    divisors = [n for n in range(2, workers) if workers % n == 0]
    return min(divisors, key=lambda n: (abs(n - root), n)) if divisors else math.ceil(root)
