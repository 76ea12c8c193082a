"""A sum left to the platform: its own float32 all_reduce (`orders/native.py`)."""

from typing import Any

import torch

from cpdrun.comm.sums.summations.base import Layers, Summation, Summed
from cpdrun.comm.wire.failure import naming_lost_ranks
from cpdrun.comm.wire.post import Post


class PlatformSum(Summation):
    """Raises ValueError for other formats than fp32, and for kahan."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        if not self.sum.fmt.is_fp32 or self.sum.kahan:
            given = f"{self.sum.fmt}{' with kahan' if self.sum.kahan else ''}"
            raise ValueError(
                f"order=native leaves the sum to the platform: only fp32 without kahan, not {given}"
            )

    def emulate(self, layers: Layers) -> Summed:
        for target, stack_Nxn in zip(layers.out, layers.stacks, strict=True):
            torch.sum(stack_Nxn, 0, out=target)
        return self.summed(layers)

    def between(self, layers: Layers) -> Summed:
        """Of the local sums, all layers at once."""
        total_M, *others = (
            torch.cat([stack_Lxn[i] for stack_Lxn in layers.stacks]) for i in range(self.workers.share)
        )
        for other_M in others:
            total_M += other_M
        with naming_lost_ranks(self.workers.group):
            Post(self.workers.group).add_(total_M).wait()
        for target, part in zip(layers.out, total_M.split(layers.numels), strict=True):
            target.copy_(part)
        ranks = self.workers.ranks
        return self.summed(layers, sent_bytes=2 * (ranks - 1) * total_M.numel() * 4 // ranks)
