"""Workers' messages to their neighbours, between ranks where they are played by several.

A worker's message goes once to each rank that plays one of its neighbours; receives are posted before sends. The two
ends of a pair match by order, which is that of the workers' numbers.

Legend: N workers, W of them on this rank, X those whose messages it needs, M bytes of a message.
"""

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor


class Messages:
    """neighbours[i]: the workers whose messages worker i receives; with torch.distributed initialised its ranks share
    the workers, else this process plays all of them. Raises ValueError where they cannot share them equally."""

    def __init__(self, neighbours: Sequence[Sequence[int]], group: dist.ProcessGroup | None = None):
        N = len(neighbours)
        self.group, self.rank, self.ranks = group, 0, 1
        if dist.is_initialized():
            self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        if N % self.ranks:
            raise ValueError(f"nproc={self.ranks} does not divide world_size={N}")
        self.share = N // self.ranks
        self.mine = range(self.rank * self.share, (self.rank + 1) * self.share)
        needs = [{j for i in self._played_by(rank) for j in neighbours[i]} for rank in range(self.ranks)]
        self.needed = sorted({*self.mine, *needs[self.rank]})
        self.receives = [(j, self._owner(j)) for j in self.needed if j not in self.mine]
        self.sends = [
            (w, rank)
            for rank in range(self.ranks)
            if rank != self.rank
            for w in self.mine
            if w in needs[rank]
        ]

    @property
    def copies_sent(self) -> int:
        """Messages that this rank sends to others."""
        return len(self.sends)

    def exchange(self, mine_WxM: Tensor) -> tuple[list[int], Tensor]:
        """The workers X, ascending, and their messages (X, M) uint8. Collective; M is the same everywhere, not 0."""
        if self.ranks == 1:
            return self.needed, mine_WxM
        place = {worker: x for x, worker in enumerate(self.needed)}
        data_XxM = mine_WxM.new_empty(len(self.needed), mine_WxM.shape[1])
        mine_WxM = mine_WxM.contiguous()
        receives = [
            dist.P2POp(dist.irecv, data_XxM[place[j]], self._global(r), self.group) for j, r in self.receives
        ]
        first = self.mine.start
        sends = [
            dist.P2POp(dist.isend, mine_WxM[w - first], self._global(r), self.group) for w, r in self.sends
        ]
        works = dist.batch_isend_irecv(receives + sends) if receives or sends else []
        for w in self.mine:
            data_XxM[place[w]] = mine_WxM[w - first]
        for work in works:
            work.wait()
        return self.needed, data_XxM

    def gather(self, mine: dict[int, Any]) -> dict[int, Any]:
        """Something of each worker, by its number: of all on rank 0, an empty dict elsewhere. Collective."""
        if self.ranks == 1:
            return mine
        everyone: list[Any] | None = [None] * self.ranks if self.rank == 0 else None
        dist.gather_object(mine, everyone, group=self.group, group_dst=0)
        return {w: of_worker for part in everyone or () for w, of_worker in part.items()}

    def _played_by(self, rank: int) -> range:
        return range(rank * self.share, (rank + 1) * self.share)

    def _owner(self, worker: int) -> int:
        return worker // self.share

    def _global(self, rank: int) -> int:
        return dist.get_global_rank(self.group, rank) if self.group else rank
