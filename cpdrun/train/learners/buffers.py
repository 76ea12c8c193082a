"""Buffers of a model that several workers train: those of worker 0."""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cpdrun.comm.workers import Workers


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
        if self.workers.ranks > 1:
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
