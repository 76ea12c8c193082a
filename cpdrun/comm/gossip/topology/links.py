"""Graphs that a user draws."""

from collections.abc import Sequence

from cpdrun.comm.gossip.topology.base import Topology


class Links(Topology):
    """The undirected links of one's own: pairs of workers."""

    def __init__(self, mixing: str, links: Sequence[Sequence[int]]):
        super().__init__(mixing)
        self.links = list(links)

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
        self.arrows = list(arrows)

    def senders(self, N: int) -> list[set[int]]:
        of: list[set[int]] = [set() for _ in range(N)]
        for arrow in self.arrows:
            sender, receiver = _pair("topology.arrows", arrow, N)
            of[receiver].add(sender)
        return of


def _pair(key: str, link: Sequence[int], N: int) -> tuple[int, int]:
    pair = list(link) if isinstance(link, Sequence) else [link]
    if len(pair) != 2 or not all(isinstance(i, int) and 0 <= i < N for i in pair):
        raise ValueError(f"{key}: {pair} is no pair of workers below world_size={N}")
    return pair[0], pair[1]
