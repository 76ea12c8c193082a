"""Convolutions with rounded products, as layers and as functions.

If an accumulator is emulated, each group of channels is one matrix product over the windows of the input (im2col).
Otherwise, PyTorch computes the convolution.

Shapes: B samples, G groups, C channels, M output channels, R windows of all samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd

from custom_fp.layers.products import Arithmetic, Conv, Sums


@dataclass(frozen=True)
class Convolution:
    """A convolution of any number of dimensions.

    Attributes:
        stride: The stride in each dimension.
        padding: The padding at both ends of each dimension, or "same" or "valid".
        dilation: The dilation in each dimension.
        groups: The number of groups.
        padding_mode: `zeros`, or a mode of torch.nn.functional.pad.
        around: The padding at each end of each dimension, in the order of torch.nn.functional.pad.
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    dilation: tuple[int, ...]
    groups: int
    padding_mode: str
    around: tuple[int, ...]

    @classmethod
    def of_layer(cls, layer: _ConvNd) -> Convolution:
        """Return the convolution that a layer computes."""
        around = tuple(layer._reversed_padding_repeated_twice)
        return cls(layer.stride, layer.padding, layer.dilation, layer.groups, layer.padding_mode, around)

    @classmethod
    def of_call(
        cls, kernel_size: tuple[int, ...], stride: Any, padding: Any, dilation: Any, groups: int
    ) -> Convolution:
        """Return the convolution that F.conv1d, F.conv2d or F.conv3d computes with these arguments."""
        stride, dilation = (_tuple(x, len(kernel_size)) for x in (stride, dilation))
        around: list[int] = []
        if isinstance(padding, str):
            extents = [
                d * (size - 1) if padding == "same" else 0
                for d, size in zip(dilation, kernel_size, strict=True)
            ]
            for extent in reversed(extents):
                around += [extent // 2, extent - extent // 2]
        else:
            padding = _tuple(padding, len(kernel_size))
            around = [n for n in reversed(padding) for _ in range(2)]
        return cls(stride, padding, dilation, groups, "zeros", tuple(around))

    def __call__(self, arithmetic: Arithmetic, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the convolution in the dtype of x, with the given arithmetic.

        Args:
            arithmetic: The arithmetic.
            x: The input, of shape (B, C, ...) or (C, ...).
            weight: A tensor of shape (M, C / G, ...).
            bias: A tensor of shape (M), or None.
        """
        if x.dim() < weight.dim():
            return self(arithmetic, x.unsqueeze(0), weight, bias).squeeze(0)
        compute = self._with_im2col if arithmetic.accumulators else self._with_torch
        return compute(arithmetic, x, weight, bias).to(x.dtype)

    def _with_torch(self, arithmetic: Arithmetic, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        pads_itself = self.padding_mode == "zeros" and not isinstance(self.padding, str)
        padding: Any = self.padding if pads_itself else (0,) * len(self.stride)
        kernel = Conv(self.stride, padding, self.dilation, self.groups)
        pad = (lambda x: x) if pads_itself else self._padded
        bias = None if bias is None else bias.view(-1, *[1] * len(self.stride))
        return arithmetic.multiply(kernel, x, weight, pad, bias=bias)

    def _with_im2col(self, arithmetic: Arithmetic, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        kernel_size = weight.shape[2:]

        def windows(x: Tensor) -> Tensor:
            """Return the windows of the input, of shape (G, R, C / G * prod(kernel_size))."""
            x = self._padded(x)
            for i, (size, stride, dilation) in enumerate(
                zip(kernel_size, self.stride, self.dilation, strict=True)
            ):
                x = x.unfold(2 + i, (size - 1) * dilation + 1, stride)[..., ::dilation]
            batch, channels, *rest = x.shape  # (B, C, *output_size, *kernel_size)
            grouped = x.reshape(batch, self.groups, channels // self.groups, *rest).movedim(1, 0)
            grouped = grouped.movedim(2, 2 + len(kernel_size))  # (G, B, *output_size, C/G, *kernel_size)
            return grouped.reshape(self.groups, -1, channels // self.groups * math.prod(kernel_size))

        def columns(weight: Tensor) -> Tensor:
            """Return the weight as one matrix per group, of shape (G, C / G * prod(kernel_size), M / G)."""
            return weight.reshape(self.groups, len(weight) // self.groups, -1).mT

        bias_Gx1xM = None if bias is None else bias.view(self.groups, 1, -1)
        result_GxRxM = arithmetic.multiply(Sums(arithmetic), x, weight, windows, columns, bias_Gx1xM)
        size = self._output_size(x, kernel_size)
        result = result_GxRxM.reshape(self.groups, len(x), *size, -1)
        return result.movedim(-1, 1).movedim(2, 0).reshape(len(x), len(weight), *size)

    def _padded(self, x: Tensor) -> Tensor:
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        return F.pad(x, self.around, mode=mode) if any(self.around) else x

    def _output_size(self, x: Tensor, kernel_size: tuple[int, ...]) -> list[int]:
        # `around` starts with the last dimension.
        pads = [a + b for a, b in zip(self.around[-2::-2], self.around[::-2], strict=True)]
        return [
            (n + pad - (size - 1) * dilation - 1) // stride + 1
            for n, pad, size, dilation, stride in zip(
                x.shape[2:], pads, kernel_size, self.dilation, self.stride, strict=True
            )
        ]


def _tuple(value: Any, length: int) -> tuple[int, ...]:
    """Return an argument of a convolution as a tuple with one number for each dimension."""
    values = tuple(value) if isinstance(value, tuple | list) else (value,)
    return values * length if len(values) == 1 else values
