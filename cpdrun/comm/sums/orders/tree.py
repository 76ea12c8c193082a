"""Pairs of neighbours (0 + 1, 2 + 3 ...), then pairs of those, and so on: ceil(log2 N) levels, a chain of as many.

Of an odd number the last one is passed up to the next level as it is.
"""

from dataclasses import dataclass

from cpdrun.comm.sums.orders.base import Order, consecutive


@dataclass(frozen=True)
class Tree(Order):
    def cuts(self, n_workers: int) -> list[tuple[range, ...]]:
        cuts = [consecutive(n_workers, 2)]
        while len(cuts[-1]) > 1:
            cuts.append(consecutive(len(cuts[-1]), 2))
        return cuts
