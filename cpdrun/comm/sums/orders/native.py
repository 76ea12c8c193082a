"""The platform's own float32 all_reduce, whose order nobody states: fast, without the guarantee that the split into
ranks changes no bit. fp32 only."""

from dataclasses import dataclass

from cpdrun.comm.sums.orders.base import Order


@dataclass(frozen=True)
class Native(Order):
    is_stated = False

    def is_one_chain(self, n_workers: int) -> bool:
        return False

    def longest_chain(self, n_workers: int) -> None:
        return None
