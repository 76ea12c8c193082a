"""What the ranks agree on between steps: whether to stop."""

from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from cpdrun.comm.workers import Workers


class StopVote:
    """Whether some rank was asked to stop: one answer for all ranks, at the same step.

    Ranks vote while they compute the next step, so that the answer, a step late, costs no waiting. Votes go
    over gloo, and so never wait for a GPU.
    """

    def __init__(self, workers: Workers, requested: Callable[[], bool], patience_s: float):
        self.requested = requested
        patience = timedelta(seconds=patience_s)
        self.group = dist.new_group(backend="gloo", timeout=patience) if workers.ranks > 1 else None
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
