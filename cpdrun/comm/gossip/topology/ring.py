"""Two neighbours, or one."""

from cpdrun.comm.gossip.topology.base import Topology


class Ring(Topology):
    """Each receives from the worker before it and, undirected, from the one behind it."""

    def __init__(self, mixing: str, directed: bool):
        super().__init__(mixing)
        self.directed = directed

    def senders(self, N: int) -> list[set[int]]:
        return [{(i - 1) % N} if self.directed else {(i - 1) % N, (i + 1) % N} for i in range(N)]
