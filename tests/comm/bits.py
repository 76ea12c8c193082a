"""float32 tensors to reduce, and comparing them bit for bit."""

from collections.abc import Sequence

import torch

from cpdrun.comm import GradientSync


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal shapes and bit patterns; -0 differs from +0, a NaN equals any NaN."""
    if a.shape != b.shape or a.dtype != torch.float32 or b.dtype != torch.float32:
        return False
    nan = torch.isnan(a)
    return torch.equal(nan, torch.isnan(b)) and torch.equal(
        a[~nan].view(torch.int32), b[~nan].view(torch.int32)
    )


def reduce(
    sync: GradientSync, workers: Sequence[Sequence[torch.Tensor]], step: int = 0, epoch: int = 0
) -> list[torch.Tensor]:
    """The mean gradient, given workers[i][p]: the gradient of this rank's i-th worker for parameter p."""
    stacks = [torch.stack(gradients) for gradients in zip(*workers, strict=True)]
    return sync.reduce_stacked(stacks, step=step, epoch=epoch)


def large(rank: int) -> torch.Tensor:
    return torch.randn(30_003, generator=torch.Generator().manual_seed(rank)) * 1e-4
