"""A sum left to the platform: its own float32 all_reduce (`orders/native.py`)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

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
        """Of the local sums, all layers at once; in shards, each rank keeps what it owns."""
        ranks, layers = self.workers.ranks, layers.together()
        total_M, *others = (
            torch.cat([stack_Lxn[i] for stack_Lxn in layers.stacks]) for i in range(self.workers.share)
        )
        for other_M in others:
            total_M += other_M
        post = Post(self.workers.group)
        with naming_lost_ranks(self.workers.group):
            if layers.shards:
                return self._scatter(layers, total_M.split(layers.numels), post)
            post.add_(total_M).wait()
        for target, part in zip(layers.out, total_M.split(layers.numels), strict=True):
            target.copy_(part)
        return self.summed(layers, sent_bytes=2 * (ranks - 1) * total_M.numel() * 4 // ranks)

    def _scatter(self, layers: Layers, totals: Sequence[Tensor], post: Post) -> Summed:
        """totals[p]: (n_p,) of this rank's workers."""
        cut = layers.shards.cut.of_ranks(post.ranks)
        parts = [[totals[part.layer][part.start : part.stop] for part in owned] for owned in cut.slices]
        longest = max(sum(part.numel() for part in owned) for owned in parts)
        rows_PxM = totals[0].new_zeros(post.ranks, longest)
        for row_M, owned in zip(rows_PxM, parts, strict=True):
            if owned:
                filled = torch.cat(owned)
                row_M[: len(filled)] = filled
        mine_M = post.add_in_shards(rows_PxM)
        begin = 0
        for part in cut.slices[post.rank]:
            layers.out[part.layer].copy_(mine_M[begin : begin + part.stop - part.start])
            begin += part.stop - part.start
        return self.summed(layers, sent_bytes=4 * (post.ranks - 1) * longest)
