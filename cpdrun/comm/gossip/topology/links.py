"""Graphs that a user draws."""

from collections.abc import Sequence

from cpdrun.comm.gossip.topology.base import Topology


class Links(Topology):
    """The undirected links of one's own: pairs of workers."""

    def __init__(self, mixing: str, links: Sequence[Sequence[int]]):
        super().__init__(mixing)
        self.links = [tuple(link) for link in links]

    def senders(self, N: int) -> list[set[int]]:
        of: list[set[int]] = [set() for _ in range(N)]
        for link in self.links:
            a, b = _pair("topology.links", link, N)
            of[a].add(b)
            of[b].add(a)
        return of


class Arrows(Topology):
    """Links of one's own that go one way: pairs (from, to). Where degrees differ it takes push-sum."""

    def __init__(self, mixing: str, arrows: Sequence[Sequence[int]]):
        super().__init__(mixing)
        self.arrows = [tuple(arrow) for arrow in arrows]

    def senders(self, N: int) -> list[set[int]]:
        of: list[set[int]] = [set() for _ in range(N)]
        for arrow in self.arrows:
            sender, receiver = _pair("topology.arrows", arrow, N)
            of[receiver].add(sender)
        return of


def _pair(key: str, link: Sequence[int], N: int) -> tuple[int, int]:
    if len(link) != 2 or not all(isinstance(i, int) and 0 <= i < N for i in link):
        raise ValueError(f"{key}: {list(link)} is no pair of workers below world_size={N}")
    return link[0], link[1]
