"""Workers' messages to their neighbours, between ranks where they are played by several.

A worker's message goes once to each rank that plays one of its neighbours; receives are posted before sends. The two
ends of a pair match by order, which is that of the workers' numbers.

Legend: N workers, W of them on this rank, X those whose messages it needs, M bytes of a message.
"""

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor

from cpdrun.comm.workers import Workers


class Messages:
    """neighbours[i]: the workers whose messages worker i of `workers` receives."""

    def __init__(self, neighbours: Sequence[Sequence[int]], workers: Workers):
        self.workers, self.mine = workers, workers.mine
        ranks = range(workers.ranks)
        needs = [{j for i in workers.played_by(rank) for j in neighbours[i]} for rank in ranks]
        self.needed = sorted({*self.mine, *needs[workers.rank]})
        self.receives = [(j, workers.owner(j)) for j in self.needed if j not in self.mine]
        others = [rank for rank in ranks if rank != workers.rank]
        self.sends = [(w, rank) for rank in others for w in self.mine if w in needs[rank]]

    @property
    def copies_sent(self) -> int:
        """Messages that this rank sends to others."""
        return len(self.sends)

    def exchange(self, mine_WxM: Tensor) -> tuple[list[int], Tensor]:
        """The workers X, ascending, and their messages (X, M) uint8. Collective; M is the same everywhere, not 0."""
        if self.workers.ranks == 1:
            return self.needed, mine_WxM
        place = {worker: x for x, worker in enumerate(self.needed)}
        data_XxM = mine_WxM.new_empty(len(self.needed), mine_WxM.shape[1])
        mine_WxM = mine_WxM.contiguous()
        receives = [
            dist.P2POp(dist.irecv, data_XxM[place[j]], self._global(r), self.workers.group)
            for j, r in self.receives
        ]
        first = self.mine.start
        sends = [
            dist.P2POp(dist.isend, mine_WxM[w - first], self._global(r), self.workers.group)
            for w, r in self.sends
        ]
        works = dist.batch_isend_irecv(receives + sends) if receives or sends else []
        for w in self.mine:
            data_XxM[place[w]] = mine_WxM[w - first]
        for work in works:
            work.wait()
        return self.needed, data_XxM

    def _global(self, rank: int) -> int:
        group = self.workers.group
        return dist.get_global_rank(group, rank) if group else rank
