"""Four neighbours."""

import math

from cpdrun.comm.gossip.topology.base import Topology


class Torus(Topology):
    """A grid of rows x columns that is closed at its ends: up to four neighbours. rows None: as square as it gets."""

    def __init__(self, mixing: str, rows: int | None):
        super().__init__(mixing)
        if rows is not None and not (isinstance(rows, int) and rows >= 1):
            raise ValueError(f"topology.rows={rows}: must be a whole number, at least 1, or null")
        self.rows = rows

    def senders(self, N: int) -> list[set[int]]:
        rows = self.rows or max(r for r in range(1, math.isqrt(N) + 1) if N % r == 0)
        if N % rows:
            raise ValueError(f"topology.rows={rows} does not divide world_size={N}")
        columns = N // rows
        return [
            {(r + dr) % rows * columns + (c + dc) % columns for dr, dc in ((0, 1), (0, -1), (1, 0), (-1, 0))}
            for r in range(rows)
            for c in range(columns)
        ]
