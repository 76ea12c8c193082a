"""Several workers' weights in one tensor, a row each, the parameters side by side.

Every parameter begins at a multiple of 64 bytes, in whichever process its worker is played: kernels of linear algebra
may give other last bits for other alignments. What lies between parameters is 0 and stays so.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

ALIGNED = 16  # float32 values


class Rows:
    """The layout of a row (D,) for parameters of these shapes."""

    def __init__(self, shapes: Sequence[torch.Size]):
        self.shapes = list(shapes)
        self.numels = [shape.numel() for shape in self.shapes]
        *self.starts, self.length = [0, *accumulate(-(-n // ALIGNED) * ALIGNED for n in self.numels)]

    def zeros(self, W: int, device: torch.device) -> Tensor:
        """(W, D) float32."""
        return torch.zeros(W, self.length, device=device)

    def layer(self, x_WxD: Tensor, p: int) -> Tensor:
        """(W, n) view of parameter p."""
        return x_WxD[:, self.starts[p] : self.starts[p] + self.numels[p]]

    def stacked(self, x_WxD: Tensor) -> list[Tensor]:
        """A view (W, *shape) of each parameter."""
        return [
            self.layer(x_WxD, p).unflatten(1, shape or (1,)).view(-1, *shape)
            for p, shape in enumerate(self.shapes)
        ]

    def parameters(self, x_D: Tensor) -> list[Tensor]:
        """A view of each parameter's shape."""
        return [
            x_D[start : start + n].view(shape)
            for start, n, shape in zip(self.starts, self.numels, self.shapes, strict=True)
        ]
