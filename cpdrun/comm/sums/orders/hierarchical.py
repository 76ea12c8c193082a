"""Rank order inside each group of `group_size` consecutive workers; the groups' sums are then added the same way, in
group order. One group of all workers is rank, bit for bit. A chain of (g - 1) + (N/g - 1) in groups of g.

`group_size: auto` is all of up to 8 workers, beyond that the divisor of N nearest its square root, for the shortest
chains. A prime N has no such divisor: it takes groups of ceil(sqrt N), the last of them smaller (13: 4, 4, 4, 1).
"""

import math
from dataclasses import dataclass

from cpdrun.comm.sums.orders.base import AUTO, Order, consecutive

FLAT_UP_TO = 8  # workers that group_size=auto adds in one chain


@dataclass(frozen=True)
class Hierarchical(Order):
    """group_size: a divisor of N or "auto"."""

    group_size: int | str

    @classmethod
    def of(cls, group_size: int | str | None) -> Order:
        size, given = group_size, "null" if group_size is None else group_size
        if size != AUTO and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
            raise ValueError(
                f"group_size={given}: order=hierarchical takes auto, or a number of workers that divides world_size"
            )
        return cls(size)

    def cuts(self, n_workers: int) -> list[tuple[range, ...]]:
        size = auto_group_size(n_workers) if self.group_size == AUTO else self.group_size
        if self.group_size != AUTO and n_workers % size:
            raise ValueError(f"group_size={size} does not divide the {n_workers} workers")
        groups = consecutive(n_workers, size)
        return [groups] if len(groups) == 1 else [groups, consecutive(len(groups), len(groups))]

    def mark(self, depth: int, j: int) -> str:
        return f"@group{j}"


def auto_group_size(n_workers: int) -> int:
    """Workers a group of `group_size: auto`; the last group of a prime number of more than 8 is smaller."""
    if n_workers <= FLAT_UP_TO:
        return n_workers
    root = math.sqrt(n_workers)
    divisors = [size for size in range(2, n_workers) if n_workers % size == 0]
    return min(divisors, key=lambda size: abs(size - root)) if divisors else math.ceil(root)
