"""Decisions that all ranks make together between steps: whether to stop or to save their state."""

from collections.abc import Callable
from datetime import timedelta
from enum import IntEnum

import torch
import torch.distributed as dist
from torch import Tensor

from cpdrun.comm.wire.communicator import checked_group, checked_work
from cpdrun.comm.workers import Workers


class Request(IntEnum):
    """A rank's request about what all ranks should do after a step. The largest of all requests is granted."""

    CONTINUE = 0
    SNAPSHOT = 1
    STOP = 2


class Consensus:
    """Combines the requests of all ranks into one answer, which every rank receives at the same step.

    The exchange overlaps with the next step, so the answer arrives one step later, but no rank has to wait. The
    exchange uses gloo and therefore never waits for a GPU.

    Args:
        workers: The assignment of the workers to ranks.
        request: A function that returns the current request of this rank.
        patience_s: Timeout of the exchange in seconds.
    """

    def __init__(self, workers: Workers, request: Callable[[], Request], patience_s: float):
        self.request = request
        timeout = timedelta(seconds=patience_s)
        self.group = (
            checked_group(dist.new_group(backend="gloo", timeout=timeout)) if workers.ranks > 1 else None
        )
        self._pending: tuple[dist.Work, Tensor] | None = None

    def decide(self) -> Request:
        """Return the answer for all ranks. A request is answered at most one step later. Collective."""
        if self.group is None:
            return self.request()
        answer = Request.CONTINUE
        if self._pending is not None:
            work, greatest = self._pending
            work.wait()
            answer = Request(int(greatest.item()))
        request = torch.tensor([int(self.request())], dtype=torch.int32)
        work = dist.all_reduce(request, op=dist.ReduceOp.MAX, group=self.group, async_op=True)
        self._pending = checked_work(work), request
        return answer
