"""What the ranks agree on between steps: whether to stop, or to keep their state."""

from collections.abc import Callable
from datetime import timedelta
from enum import IntEnum

import torch
import torch.distributed as dist
from torch import Tensor

from cpdrun.comm.workers import Workers


class Wish(IntEnum):
    """What a rank would have all do after a step; of several wishes the greatest is granted."""

    GO_ON = 0
    KEEP = 1
    STOP = 2


class Vote:
    """What some rank wishes: one answer for all ranks, at the same step.

    Ranks vote while they compute the next step, so that the answer, a step late, costs no waiting. Votes go
    over gloo, and so never wait for a GPU.
    """

    def __init__(self, workers: Workers, wish: Callable[[], Wish], patience_s: float):
        self.wish = wish
        patience = timedelta(seconds=patience_s)
        self.group = dist.new_group(backend="gloo", timeout=patience) if workers.ranks > 1 else None
        self._vote: tuple[dist.Work, Tensor] | None = None

    def answer(self) -> Wish:
        """Collective. What a rank wishes is answered at the latest a step after."""
        if self.group is None:
            return self.wish()
        answer = Wish.GO_ON
        if self._vote is not None:
            work, votes = self._vote
            work.wait()
            answer = Wish(int(votes.item()))
        votes = torch.tensor([int(self.wish())], dtype=torch.int32)
        self._vote = dist.all_reduce(votes, op=dist.ReduceOp.MAX, group=self.group, async_op=True), votes
        return answer
