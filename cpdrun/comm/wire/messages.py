"""Workers' messages to their neighbours, between ranks where they are played by several.

A worker's message goes once to each rank that plays one of its neighbours; receives are posted before sends. The two
ends of a pair match by order, which is that of the workers' numbers.

Legend: N workers, W of them on this rank, X those whose messages it needs, M bytes of a message.
"""

from collections.abc import Sequence

from torch import Tensor

from cpdrun.comm.wire.post import Post
from cpdrun.comm.wire.tags import Tag
from cpdrun.comm.workers import Workers


class Messages:
    """neighbours[i]: the workers whose messages worker i of `workers` receives."""

    def __init__(self, neighbours: Sequence[Sequence[int]], workers: Workers):
        self.workers, self.mine = workers, workers.mine
        self.post = Post(workers.group) if workers.ranks > 1 else None
        ranks = range(workers.ranks)
        needs = [{j for i in workers.played_by(rank) for j in neighbours[i]} for rank in ranks]
        self.needed = sorted({*self.mine, *needs[workers.rank]})
        self._place = {worker: x for x, worker in enumerate(self.needed)}
        self.receives = [(j, workers.owner(j)) for j in self.needed if j not in self.mine]
        others = [rank for rank in ranks if rank != workers.rank]
        self.sends = [(w, rank) for rank in others for w in self.mine if w in needs[rank]]

    @property
    def copies_sent(self) -> int:
        """Messages that this rank sends to others."""
        return len(self.sends)

    def exchange(self, mine_WxM: Tensor) -> tuple[list[int], Tensor]:
        """The workers X, ascending, and their messages (X, M) uint8. Collective; M is the same everywhere, not 0.

        Raises RankLost where another rank is gone.
        """
        if self.post is None:
            return self.needed, mine_WxM
        data_XxM, mine_WxM = mine_WxM.new_empty(len(self.needed), mine_WxM.shape[1]), mine_WxM.contiguous()
        for w, message_M in zip(self.mine, mine_WxM, strict=True):
            data_XxM[self._place[w]] = message_M
        receives = [(rank, data_XxM[self._place[j]]) for j, rank in self.receives]
        sends = [(rank, mine_WxM[w - self.mine.start]) for w, rank in self.sends]
        self.post.exchange(receives, sends, Tag.NEIGHBOURS)
        return self.needed, data_XxM
