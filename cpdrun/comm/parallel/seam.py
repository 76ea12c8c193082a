"""Where layers that workers split by samples meet layers that they split by weights: see `models/parallel/convnet.py`.

Legend: B samples, M workers, F features at the seam.
"""

from typing import Any

import torch
from custom_fp.formats.protocol import NumberFormat
from torch import Tensor

from cpdrun.comm.parallel.workers import ModelWorkers


class Copies(torch.autograd.Function):
    """A weight as each of my workers holds it; their gradients are added over all workers in a format."""

    @staticmethod
    def forward(ctx: Any, workers: ModelWorkers, fmt: NumberFormat, mine: int, weight: Tensor):
        ctx.workers, ctx.fmt = workers, fmt
        return tuple(weight.view_as(weight) for _ in range(mine))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor):
        return None, None, None, ctx.workers.sum(gradients, ctx.fmt)


class Seam(torch.autograd.Function):
    """Each worker's features (B_m, F) become all of them (B, F), each share encoded by itself. The gradient is the same
    on all workers already, and each takes its own rows."""

    @staticmethod
    def forward(
        ctx: Any, workers: ModelWorkers, fmt: NumberFormat, samples: int, *features: Tensor
    ) -> Tensor:
        ctx.rows = [workers.slices(samples)[m] for m in workers.mine]
        return workers.gather(features, samples, fmt, dim=0)

    @staticmethod
    def backward(ctx: Any, grad_BxF: Tensor):
        return None, None, None, *(grad_BxF[rows] for rows in ctx.rows)
