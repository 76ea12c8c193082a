"""How long the chain of rounded additions of an order is, and how many workers' sum a scale makes room for.

cpdrun.comm.sums.orders adds in these orders; a test holds the two together. A report imports nothing of the trainer.
"""

import math
from collections.abc import Mapping
from typing import Any

FLAT_UP_TO = 8  # workers that group_size=auto adds in one chain


def chain(sync: Mapping[str, Any], workers: int) -> int | None:
    """The most rounded additions in series; None of an order that this does not know."""
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


def together(sync: Mapping[str, Any], workers: int) -> int:
    """Workers of one chain: a scale keeps powers of two free for their sum."""
    order = sync.get("order")
    if order == "tree":
        return min(2, workers)
    return group_size(sync, workers) if order == "hierarchical" else workers


def group_size(sync: Mapping[str, Any], workers: int) -> int:
    given = sync.get("group_size")
    if isinstance(given, int):
        return min(given, workers)
    if workers <= FLAT_UP_TO:
        return workers
    root = math.sqrt(workers)
    divisors = [n for n in range(2, workers) if workers % n == 0]
    return min(divisors, key=lambda n: (abs(n - root), n)) if divisors else math.ceil(root)
