"""Transport of packed bytes, one segment at a time.

First, gradients are sent to the owner of each shard. Then the owners send the sums to all ranks.

`transport_for` selects one of two implementations:

    PointToPoint   For gloo. Sends and receives single segments. Every receive is started before the first send,
                   because otherwise gloo loses half of its throughput.
    Collectives    For any other backend, such as nccl. Uses an asynchronous all_to_all and all_gather for each segment.

Shapes: P ranks, L workers per rank, T segments, B bytes of a worker's segment. The next exchange reuses all buffers.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from cpdrun.comm.wire import Tag
from cpdrun.comm.wire.communicator import Communicator, Work, checked_work
from cpdrun.comm.wire.message_layout import Layout


class Transport(ABC):
    """The base class of transports, which manage the buffers and messages of a sum.

    First, call `begin`. Then repeat the following steps for each segment, in order:

        1. Fill `outgoing` and call `send_to_owners`.
        2. Call `wait_for_workers`, fill `own_sum` and call `send_to_all`.
        3. Call `wait_for_sums`.

    At the end, call `finish`. A reduce-scatter omits `send_to_all` and `wait_for_sums`. An all-gather omits
    `send_to_owners` and `wait_for_workers`.
    """

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device) -> None:
        self.group, self.device = group, device
        self.communicator = Communicator(group)
        self.rank, self.ranks = self.communicator.rank, self.communicator.ranks
        self._memory: dict[str, Tensor] = {}

    def begin(self, layout: Layout, local: int, *, scatter: bool = True, gather: bool = True) -> None:
        """Allocate the buffers.

        Args:
            layout: The layout of the messages.
            local: The number of workers per rank.
            scatter: Whether gradients are sent to their owners.
            gather: Whether sums are sent to all ranks.
        """
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
        """Return the buffer (B,) for the message to rank `owner` from the worker with local index `worker`."""
        return self._outgoing[segment][owner * self.local + worker]

    def own_sum(self, segment: int) -> Tensor:
        """Return the buffer (B,) for the sum of this rank's shard."""
        return self._own_sums[segment][0]

    @abstractmethod
    def send_to_owners(self, segment: int) -> None:
        """Send a segment of all workers' gradients to the owners."""

    @abstractmethod
    def wait_for_workers(self, segment: int) -> Tensor:
        """Return the bytes (N, B) of this rank's shard from all workers, in worker order."""

    @abstractmethod
    def send_to_all(self, segment: int) -> None:
        """Send a segment of this rank's sum to all ranks."""

    @abstractmethod
    def wait_for_sums(self, segment: int) -> Tensor:
        """Return the bytes (P, B) of the sum of each rank's shard."""

    @abstractmethod
    def finish(self) -> None:
        """Wait until all messages are sent, so that the buffers may be filled again."""


class PointToPoint(Transport):
    """Sends and receives single segments."""

    def begin(self, layout: Layout, local: int, *, scatter: bool = True, gather: bool = True) -> None:
        super().begin(layout, local, scatter=scatter, gather=gather)
        self._sends: list[Work] = []
        self._from_workers = [self._receive(self._rows(segment), Tag.TO_OWNER) for segment in self._incoming]
        self._from_owners = [self._receive(segment, Tag.TO_ALL) for segment in self._sums]

    def _rows(self, segment: Tensor) -> Tensor:
        """Return a view with one row per rank, of shape (P, L * B)."""
        return segment.view(self.ranks, -1)

    def _receive(self, rows: Tensor, tag: Tag) -> list[Work]:
        return [self.communicator.receive(p, rows[p], tag) for p in self.communicator.others]

    def outgoing(self, segment: int, owner: int, worker: int) -> Tensor:
        # A message from this rank to itself is written directly to the buffer of received messages.
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
    """Uses one all_to_all and one all_gather per segment."""

    def begin(self, layout: Layout, local: int, *, scatter: bool = True, gather: bool = True) -> None:
        super().begin(layout, local, scatter=scatter, gather=gather)
        self._scatter: list[Work] = []
        self._gather: list[Work] = []

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


def _wait(works: Sequence[Work]) -> None:
    for work in works:
        work.wait()


def transport_for(group: dist.ProcessGroup | None, device: torch.device) -> Transport:
    """Return the fastest transport that the group's backend supports. Its buffers are allocated on `device`."""
    return (PointToPoint if dist.get_backend(group) == "gloo" else Collectives)(group, device)
