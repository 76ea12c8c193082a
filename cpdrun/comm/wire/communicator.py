"""Moves payloads between the ranks of a process group: as bytes, or reduced by the platform itself.

Workers' messages to their neighbours, between ranks where they are played by several.

A worker's message goes once to each rank that plays one of its neighbours; receives are posted before sends. The two
ends of a pair match by order, which is that of the workers' numbers.

Legend: N workers, W of them on this rank, X those whose messages it needs, M bytes of a message.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from cpdrun.comm.wire import Tag
from cpdrun.comm.wire.lost_ranks import hang_up, naming_lost_ranks
from cpdrun.comm.workers import Workers

Transfer = tuple[int, Tensor]
"""A rank of the group, and the bytes to send to it, or memory for those that it sends."""


def checked_work(work: dist.Work | None) -> dist.Work:
    """torch gives None to a rank that is not of the group: it exchanges nothing."""
    assert work is not None
    return work


class Communicator:
    """Ranks are counted within the group; receives are to be posted before sends."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group = group
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.others = [(self.rank + i) % self.ranks for i in range(1, self.ranks)]  # not all to rank 0 first
        self._address = [dist.get_global_rank(group, r) if group else r for r in range(self.ranks)]

    def receive(self, rank: int, into: Tensor, tag: Tag) -> dist.Work:
        return checked_work(dist.irecv(into, self._address[rank], self.group, tag))

    def send(self, rank: int, data: Tensor, tag: Tag) -> dist.Work:
        return checked_work(dist.isend(data, self._address[rank], self.group, tag))

    def exchange(self, receives: Sequence[Transfer], sends: Sequence[Transfer], tag: Tag) -> None:
        """All of them, then waits. Of two ranks' letters to each other the first meets the first; none may be empty.

        Raises RankLost where another rank is gone.
        """
        kinds = ((dist.irecv, receives), (dist.isend, sends))
        posted = [
            dist.P2POp(kind, data, self._address[rank], self.group, tag)
            for kind, letters in kinds
            for rank, data in letters
        ]
        with naming_lost_ranks(self.group):
            try:
                for work in dist.batch_isend_irecv(posted) if posted else ():
                    work.wait()
            except RuntimeError:
                hang_up([self._address[rank] for rank in self.others], self.group)
                raise

    def swap(self, outgoing: Sequence[Tensor], sizes: Sequence[int], tag: Tag) -> list[Tensor]:
        """outgoing[r] goes to rank r; returns what came from each, sizes[r] bytes. Empty letters are not sent."""
        incoming = [torch.empty(size, dtype=torch.uint8, device=outgoing[0].device) for size in sizes]
        incoming[self.rank] = outgoing[self.rank]
        receives = [(r, incoming[r]) for r in self.others if sizes[r]]
        self.exchange(receives, [(r, outgoing[r]) for r in self.others if outgoing[r].numel()], tag)
        return incoming

    def add_(self, x: Tensor) -> dist.Work:
        """Begins to sum it over the ranks in place, in an order that nobody states."""
        return dist.all_reduce(x, group=self.group, async_op=True)

    def add_in_shards(self, rows_PxM: Tensor) -> Tensor:
        """(M,) the sum over the ranks of the row of this rank, in an order that nobody states."""
        mine_M = torch.empty_like(rows_PxM[0])
        dist.reduce_scatter_tensor(mine_M, rows_PxM.view(-1), group=self.group)
        return mine_M

    def maximum_(self, x: Tensor) -> dist.Work:
        """Begins to take the largest of the ranks' values in place."""
        return dist.all_reduce(x, dist.ReduceOp.MAX, group=self.group, async_op=True)


class MessageExchange:
    """neighbours[i]: the workers whose messages worker i of `workers` receives."""

    def __init__(self, neighbours: Sequence[Sequence[int]], workers: Workers):
        self.workers, self.mine = workers, workers.mine
        self.communicator = Communicator(workers.group) if workers.ranks > 1 else None
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
        if self.communicator is None:
            return self.needed, mine_WxM
        data_XxM, mine_WxM = mine_WxM.new_empty(len(self.needed), mine_WxM.shape[1]), mine_WxM.contiguous()
        for w, message_M in zip(self.mine, mine_WxM, strict=True):
            data_XxM[self._place[w]] = message_M
        receives = [(rank, data_XxM[self._place[j]]) for j, rank in self.receives]
        sends = [(rank, mine_WxM[w - self.mine.start]) for w, rank in self.sends]
        self.communicator.exchange(receives, sends, Tag.NEIGHBOURS)
        return self.needed, data_XxM
