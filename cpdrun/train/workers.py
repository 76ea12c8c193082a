"""Which of the N workers this process plays, and what the processes agree on between steps.

Rank r of nproc plays workers r*N/nproc .. (r+1)*N/nproc - 1, so rank-major order is worker order.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class Workers:
    """The share of `world_size` workers that rank `rank` of `nproc` plays."""

    world_size: int
    rank: int = 0
    nproc: int = 1

    def __post_init__(self) -> None:
        if self.world_size % self.nproc:
            raise ValueError(f"{self.nproc} ranks cannot share {self.world_size} workers equally")

    @classmethod
    def from_environment(cls, world_size: int) -> "Workers":
        """By RANK and WORLD_SIZE as torchrun sets them; one process plays all where they are not set."""
        return cls(world_size, int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))

    @property
    def mine(self) -> range:
        share = self.world_size // self.nproc
        return range(self.rank * share, (self.rank + 1) * share)

    def sum_of_disjoint(self, table: Tensor) -> Tensor:
        """Add tables over the ranks, each entry set by one rank and zero elsewhere: exact in any order."""
        if self.nproc > 1:
            dist.all_reduce(table)
        return table


class StopVote:
    """Whether some rank was asked to stop: one answer for all ranks, at the same step.

    Ranks vote while they compute the next step, so that the answer, a step late, costs no waiting. Votes go
    over gloo, and so never wait for a GPU.
    """

    def __init__(self, workers: Workers, requested: Callable[[], bool], patience_s: float):
        self.requested = requested
        patience = timedelta(seconds=patience_s)
        self.group = dist.new_group(backend="gloo", timeout=patience) if workers.nproc > 1 else None
        self._vote: tuple[dist.Work, Tensor] | None = None

    def asked(self) -> bool:
        """Collective. True at the latest a step after a rank's `requested()` was."""
        if self.group is None:
            return self.requested()
        answer = False
        if self._vote is not None:
            work, votes = self._vote
            work.wait()
            answer = bool(votes.item())
        votes = torch.tensor([int(self.requested())], dtype=torch.int32)
        self._vote = dist.all_reduce(votes, op=dist.ReduceOp.MAX, group=self.group, async_op=True), votes
        return answer


class SharedBuffers:
    """BatchNorm's running statistics (any buffer) follow worker 0, as DDP's broadcast_buffers has it.

    Every worker starts a step from worker 0's buffers of the step before; what the others change is dropped.
    """

    def __init__(self, model: nn.Module, workers: Workers):
        self.buffers = [buffer for buffer in model.buffers() if buffer.numel()]
        self.workers = workers
        self.alone = len(workers.mine) == 1  # the buffers are one worker's all along
        self.start = [] if self.alone else [buffer.clone() for buffer in self.buffers]
        self.of_worker_0 = [] if self.alone else [buffer.clone() for buffer in self.buffers]

    def begin_step(self) -> None:
        if not self.alone:
            _copy(self.start, self.buffers)

    def begin_worker(self, worker: int) -> None:
        if worker != self.workers.mine[0]:
            _copy(self.buffers, self.start)

    def end_worker(self, worker: int) -> None:
        if worker == 0 and not self.alone:
            _copy(self.of_worker_0, self.buffers)

    def end_step(self) -> None:
        if self.workers.rank == 0 and not self.alone:
            _copy(self.buffers, self.of_worker_0)
        if self.workers.nproc > 1:
            _broadcast_from_rank_0(self.buffers)


def _copy(to: list[Tensor], source: list[Tensor]) -> None:
    if to:
        torch._foreach_copy_(to, source)


def _broadcast_from_rank_0(tensors: list[Tensor]) -> None:
    for dtype in sorted({t.dtype for t in tensors}, key=str):
        same = [t for t in tensors if t.dtype == dtype]
        flat = torch.cat([t.reshape(-1) for t in same])
        dist.broadcast(flat, src=0)
        for tensor, values in zip(same, flat.split([t.numel() for t in same]), strict=True):
            tensor.copy_(values.view_as(tensor))
