"""The order a ring all-reduce produces. A chain of N - 1.

A layer is cut in N chunks of C = 8 ceil(ceil(n/8) / N) elements (multiples of 8, so that a chunk starts on a byte in
any format); chunk c is added in the order c+1, c+2, ..., N-1, 0, ..., c: it leaves worker c+1 and ends, complete, at
worker c. The last chunks of a small layer are empty.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from cpdrun.comm.sums.orders.base import Order
from cpdrun.comm.wire.piece import ceil_div


@dataclass(frozen=True)
class Ring(Order):
    def spans(
        self, n_workers: int, numel: int, start: int, stop: int
    ) -> Iterator[tuple[int, int, list[int]]]:
        chunk = 8 * ceil_div(ceil_div(numel, 8), n_workers)
        for c in range(start // chunk, ceil_div(stop, chunk)) if numel else ():
            places = [(c + 1 + i) % n_workers for i in range(n_workers)]
            yield max(start, c * chunk), min(stop, (c + 1) * chunk), places

    def is_one_chain(self, n_workers: int) -> bool:
        return False
