"""Neighbours at distances that double."""

from cpdrun.comm.gossip.topology.base import Topology


class Exponential(Topology):
    """Each receives from the workers 1, 2, 4, 8 ... before it: few links, and a gap that shrinks with log N."""

    def senders(self, N: int) -> list[set[int]]:
        hops = [1 << k for k in range(max(1, (N - 1).bit_length())) if 1 << k < N]
        return [{(i - hop) % N for hop in hops} for i in range(N)]
