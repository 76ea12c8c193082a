"""Exchange of tensors between the ranks of a process group, as bytes or reduced by the platform.

Shapes: N workers, W of them on this rank, X workers whose messages this rank needs, M bytes of a message, P ranks.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from cpdrun.comm.wire import Tag
from cpdrun.comm.wire.lost_ranks import hang_up, naming_lost_ranks
from cpdrun.comm.workers import Workers

Transfer = tuple[int, Tensor]
"""A rank of the group, and a tensor: the bytes to send to the rank, or the memory for the bytes received from it."""


class Work(Protocol):
    """A handle for an asynchronous operation, with the method `wait` of `dist.Work`."""

    def wait(self) -> Any:
        """Wait until the operation has ended."""


def checked_work(work: dist.Work | None) -> dist.Work:
    """Return the handle of an operation, after checking that it is not None.

    torch returns None on a rank that does not belong to the group. Such a rank must not call exchanges.
    """
    assert work is not None
    return work


def checked_group(group: dist.ProcessGroup | int | None) -> dist.ProcessGroup:
    """Return the group, after checking that it is a process group.

    torch represents the group by a number on ranks that do not belong to it, and by None if there are no groups.
    """
    assert isinstance(group, dist.ProcessGroup)
    return group


def new_group_like(group: dist.ProcessGroup) -> dist.ProcessGroup:
    """Return a new group of the same ranks in the same order. Collective."""
    ranks = dist.get_process_group_ranks(group)
    backend = None if group is dist.group.WORLD else dist.get_backend(group)
    # Only versions of torch that support groups of unsorted ranks accept this argument.
    unsorted: dict[str, Any] = {} if ranks == sorted(ranks) else {"sort_ranks": False}
    return checked_group(dist.new_group(ranks, backend=backend, use_local_synchronization=True, **unsorted))


class _Download:
    """A handle for a tensor that is being received in host memory. `wait` copies the tensor to the GPU."""

    def __init__(self, work: Work, host: Tensor, into: Tensor) -> None:
        self.work, self.host, self.into = work, host, into

    def wait(self) -> None:
        """Wait until the tensor has been received, and copy it to the GPU."""
        self.work.wait()
        self.into.copy_(self.host)


class Communicator:
    """Sends and receives tensors between the ranks of a process group. Ranks are numbered within the group.

    Start receives before sends, because gloo is faster in this order.

    gloo can send and receive only host memory. With gloo, tensors on a GPU are therefore copied to the host before they
    are sent, and back to the GPU after they are received. Ranks that share a GPU must use gloo, because nccl requires a
    separate GPU for each rank.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group = group
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.others = [
            (self.rank + i) % self.ranks for i in range(1, self.ranks)
        ]  # Each rank begins with its successor, so that not all ranks send to rank 0 first.
        self._sends_from_host = dist.get_backend(group) == "gloo"
        self._address = [dist.get_global_rank(group, r) if group else r for r in range(self.ranks)]

    def receive(self, rank: int, into: Tensor, tag: Tag) -> Work:
        """Start to receive a tensor from a rank."""
        host = self._host_memory_for(into)
        work = checked_work(dist.irecv(host, self._address[rank], self.group, tag))
        return work if host is into else _Download(work, host, into)

    def send(self, rank: int, data: Tensor, tag: Tag) -> Work:
        """Start to send a tensor to a rank."""
        return checked_work(dist.isend(self._in_host_memory(data), self._address[rank], self.group, tag))

    def exchange(self, receives: Sequence[Transfer], sends: Sequence[Transfer], tag: Tag) -> None:
        """Receive and send all tensors, and wait until this is done.

        If two ranks exchange several tensors, these are matched in order. Tensors must not be empty.

        Raises:
            RankLost: Another rank is lost.
        """
        received = [(rank, self._host_memory_for(into)) for rank, into in receives]
        sent = [(rank, self._in_host_memory(data)) for rank, data in sends]
        posted = [
            dist.P2POp(kind, data, self._address[rank], self.group, tag)
            for kind, letters in ((dist.irecv, received), (dist.isend, sent))
            for rank, data in letters
        ]
        with naming_lost_ranks(self.group):
            try:
                for work in dist.batch_isend_irecv(posted) if posted else ():
                    work.wait()
            except RuntimeError:
                hang_up([self._address[rank] for rank in self.others], self.group)
                raise
        for (_, into), (_, host) in zip(receives, received, strict=True):
            if host is not into:
                into.copy_(host)

    def _must_copy(self, x: Tensor) -> bool:
        return self._sends_from_host and x.is_cuda

    def _host_memory_for(self, x: Tensor) -> Tensor:
        return torch.empty(x.shape, dtype=x.dtype) if self._must_copy(x) else x

    def _in_host_memory(self, x: Tensor) -> Tensor:
        return x.cpu() if self._must_copy(x) else x

    def swap(self, outgoing: Sequence[Tensor], sizes: Sequence[int], tag: Tag) -> list[Tensor]:
        """Send one tensor of bytes to each rank and receive one from each.

        Args:
            outgoing: For each rank, the bytes to send to it. Empty tensors are not sent.
            sizes: For each rank, the number of bytes to receive from it.
            tag: The tag of the messages.

        Returns:
            For each rank, the bytes received from it.
        """
        incoming = [torch.empty(size, dtype=torch.uint8, device=outgoing[0].device) for size in sizes]
        incoming[self.rank] = outgoing[self.rank]
        receives = [(r, incoming[r]) for r in self.others if sizes[r]]
        self.exchange(receives, [(r, outgoing[r]) for r in self.others if outgoing[r].numel()], tag)
        return incoming

    def add_(self, x: Tensor) -> dist.Work:
        """Start to sum a tensor over the ranks in place, in the platform's order."""
        return dist.all_reduce(x, group=self.group, async_op=True)

    def add_in_shards(self, rows_PxM: Tensor) -> Tensor:
        """Return this rank's row of the sum over ranks, with shape (M,), in the platform's order."""
        rows = self._in_host_memory(rows_PxM)
        mine_M = torch.empty_like(rows[0])
        dist.reduce_scatter_tensor(mine_M, rows.view(-1), group=self.group)
        return mine_M.to(rows_PxM.device)

    def maximum_(self, x: Tensor) -> dist.Work:
        """Start to compute the maximum over the ranks in place."""
        return dist.all_reduce(x, dist.ReduceOp.MAX, group=self.group, async_op=True)


class MessageExchange:
    """An exchange of messages between neighboring workers.

    The message of a worker is sent once to each rank that emulates one of its neighbors. Messages between two ranks are
    matched in ascending order of the senders.

    Args:
        neighbours: For each worker, the workers whose messages it receives.
        workers: The assignment of workers to ranks.
    """

    def __init__(self, neighbours: Sequence[Sequence[int]], workers: Workers):
        self.workers, self.mine = workers, workers.local
        self.communicator = Communicator(workers.group) if workers.ranks > 1 else None
        ranks = range(workers.ranks)
        needs = [{j for i in workers.emulated_by(rank) for j in neighbours[i]} for rank in ranks]
        self.needed = sorted({*self.mine, *needs[workers.rank]})
        self._place = {worker: x for x, worker in enumerate(self.needed)}
        self.receives = [(j, workers.owner(j)) for j in self.needed if j not in self.mine]
        others = [rank for rank in ranks if rank != workers.rank]
        self.sends = [(w, rank) for rank in others for w in self.mine if w in needs[rank]]

    @property
    def copies_sent(self) -> int:
        """The number of messages that this rank sends to other ranks."""
        return len(self.sends)

    def exchange(self, mine_WxM: Tensor) -> tuple[list[int], Tensor]:
        """Exchange one message per worker. Collective.

        Args:
            mine_WxM: The messages of this rank's workers, uint8. M > 0 is the same on all ranks.

        Returns:
            The X workers whose messages this rank needs, in ascending order, and their messages with shape (X, M).

        Raises:
            RankLost: Another rank is lost.
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
