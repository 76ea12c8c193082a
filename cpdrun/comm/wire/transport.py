"""Moves packed bytes between ranks, a segment at a time: to each shard's owner, and from the owners to all.

Two ways behind one interface, chosen by `transport_for`:

    PointToPoint   gloo, memory of the CPU: sends and receives of single segments. Every receive is posted
                   before the first send; gloo halves its throughput otherwise.
    Collectives    any backend and device (nccl): an asynchronous all_to_all and all_gather for each segment.

Legend: P ranks, L workers a rank, T segments, B bytes of a worker's segment. Buffers are kept for the next
call.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from cpdrun.comm.wire import Tag
from cpdrun.comm.wire.communicator import Communicator, checked_work
from cpdrun.comm.wire.layout import Layout


class Transport(ABC):
    """The bytes of one sum. `begin`, then for each segment, in order: fill `outgoing` and `send_to_owners`;
    `wait_for_workers`, fill `own_sum` and `send_to_all`; `wait_for_sums`; then `finish`. Or one half of it alone."""

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device) -> None:
        self.group, self.device = group, device
        self.communicator = Communicator(group)
        self.rank, self.ranks = self.communicator.rank, self.communicator.ranks
        self._memory: dict[str, Tensor] = {}

    def begin(self, layout: Layout, local: int, *, scatter: bool = True, gather: bool = True) -> None:
        """Lays out the buffers for `local` workers a rank. scatter, gather: which halves are to come; a half that is
        not has no buffers."""
        self.layout, self.local, self.gathers = layout, local, gather
        rows = self.ranks * local if scatter else 0
        self._outgoing = self._segments("outgoing", rows)  # T x (P, L, B)
        self._incoming = self._segments("incoming", rows)
        self._own_sums = self._segments("own sums", 1)  # T x (1, B)
        self._sums = self._segments("sums", self.ranks if gather else 0)  # T x (P, B)

    def _segments(self, name: str, rows: int) -> list[Tensor]:
        sizes = [rows * self.layout.segment_bytes(t) for t in range(self.layout.segments)]
        memory = self._memory.get(name)
        if memory is None or memory.numel() < sum(sizes):
            memory = self._memory[name] = torch.zeros(sum(sizes), dtype=torch.uint8, device=self.device)
        parts = memory[: sum(sizes)].split(sizes)
        return [part.view(rows, -1) for part in parts] if rows else []

    def outgoing(self, segment: int, owner: int, worker: int) -> Tensor:
        """(B,) bytes to fill: what my `worker`-th worker sends to `owner`."""
        return self._outgoing[segment][owner * self.local + worker]

    def own_sum(self, segment: int) -> Tensor:
        """(B,) bytes to fill: the sum of my shard."""
        return self._own_sums[segment][0]

    @abstractmethod
    def send_to_owners(self, segment: int) -> None: ...

    @abstractmethod
    def wait_for_workers(self, segment: int) -> Tensor:
        """(N, B) bytes of my shard from all workers, in worker order."""

    @abstractmethod
    def send_to_all(self, segment: int) -> None: ...

    @abstractmethod
    def wait_for_sums(self, segment: int) -> Tensor:
        """(P, B) bytes, the sum of each rank's shard."""

    @abstractmethod
    def finish(self) -> None:
        """Waits until what was sent has left, so that the buffers may be filled again."""


class PointToPoint(Transport):
    def begin(self, layout: Layout, local: int, *, scatter: bool = True, gather: bool = True) -> None:
        super().begin(layout, local, scatter=scatter, gather=gather)
        self._sends: list[dist.Work] = []
        self._from_workers = [self._receive(self._rows(segment), Tag.TO_OWNER) for segment in self._incoming]
        self._from_owners = [self._receive(segment, Tag.TO_ALL) for segment in self._sums]

    def _rows(self, segment: Tensor) -> Tensor:
        """(P, L * B): a row for each rank."""
        return segment.view(self.ranks, -1)

    def _receive(self, rows: Tensor, tag: Tag) -> list[dist.Work]:
        return [self.communicator.receive(p, rows[p], tag) for p in self.communicator.others]

    def outgoing(self, segment: int, owner: int, worker: int) -> Tensor:
        # what stays here is packed where it will be read
        buffer = self._incoming if owner == self.rank else self._outgoing
        return buffer[segment][owner * self.local + worker]

    def own_sum(self, segment: int) -> Tensor:
        return self._sums[segment][self.rank] if self.gathers else super().own_sum(segment)

    def send_to_owners(self, segment: int) -> None:
        rows = self._rows(self._outgoing[segment])
        self._sends += [self.communicator.send(p, rows[p], Tag.TO_OWNER) for p in self.communicator.others]

    def wait_for_workers(self, segment: int) -> Tensor:
        _wait(self._from_workers[segment])
        return self._incoming[segment]

    def send_to_all(self, segment: int) -> None:
        own_sum = self.own_sum(segment)
        self._sends += [self.communicator.send(p, own_sum, Tag.TO_ALL) for p in self.communicator.others]

    def wait_for_sums(self, segment: int) -> Tensor:
        _wait(self._from_owners[segment])
        return self._sums[segment]

    def finish(self) -> None:
        _wait(self._sends)
        self._sends, self._from_workers, self._from_owners = [], [], []


class Collectives(Transport):
    def begin(self, layout: Layout, local: int, *, scatter: bool = True, gather: bool = True) -> None:
        super().begin(layout, local, scatter=scatter, gather=gather)
        self._scatter: list[dist.Work] = []
        self._gather: list[dist.Work] = []

    def send_to_owners(self, segment: int) -> None:
        incoming, outgoing = self._incoming[segment], self._outgoing[segment]
        work = dist.all_to_all_single(incoming, outgoing, group=self.group, async_op=True)
        self._scatter.append(checked_work(work))

    def wait_for_workers(self, segment: int) -> Tensor:
        self._scatter[segment].wait()
        return self._incoming[segment]

    def send_to_all(self, segment: int) -> None:
        sums, own = self._sums[segment].view(-1), self.own_sum(segment)
        work = dist.all_gather_into_tensor(sums, own, group=self.group, async_op=True)
        self._gather.append(checked_work(work))

    def wait_for_sums(self, segment: int) -> Tensor:
        self._gather[segment].wait()
        return self._sums[segment]

    def finish(self) -> None:
        self._scatter, self._gather = [], []


def _wait(works: Sequence[dist.Work]) -> None:
    for work in works:
        work.wait()


def transport_for(group: dist.ProcessGroup | None, device: torch.device) -> Transport:
    """The fastest way that the group's backend has for memory of `device`."""
    point_to_point = dist.get_backend(group) == "gloo" and device.type == "cpu"
    return (PointToPoint if point_to_point else Collectives)(group, device)
