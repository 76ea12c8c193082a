"""acc = +0; for w in 0..N-1: acc = Q(acc + q_w). A chain of N - 1."""

from dataclasses import dataclass

from cpdrun.comm.sums.orders.base import Order


@dataclass(frozen=True)
class Rank(Order):
    """One chain."""
