"""Degrees that differ."""

from cpdrun.comm.gossip.topology.base import Topology


class Hub(Topology):
    """A directed ring whose worker 0 sends to everyone: degrees differ and links go one way, so it takes push-sum."""

    def senders(self, N: int) -> list[set[int]]:
        return [{(i - 1) % N, 0} for i in range(N)]
