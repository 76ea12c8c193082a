"""The reference of scaled formats, in PyTorch on any device. formats/scaled.py defines what is computed.

Elements are rounded by compiled code if there is any (elements.py), so formats without a kernel of their own are fast.

The compiled backends give the same bits. They inherit from `ScaledReference` and override what they compute faster.
Inputs are rounded to float32 first. A tensor without elements has no blocks, except for a scale of the whole tensor.

Legend: B blocks of K elements, in the order of the scales. Blocks at an edge are filled up with zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from custom_fp.formats.layout import Layout
from custom_fp.formats.scaled import ScaledFormat
from custom_fp.operators.checks import scale_dtype
from custom_fp.reference import write
from custom_fp.rounding import Rule
from custom_fp.scaled import elements, scales
from custom_fp.scaled.blocks import from_blocks, join_codes, single, split_codes, to_blocks

NEAREST = Rule()


@dataclass(frozen=True)
class Rounded:
    """A rounded tensor.

    Attributes:
        elements: (B, K), the elements, before their scale. Of a format with zero points, codes less the zero point.
        scale_codes: (B,), the codes of the scales.
        factors: (B,), what the elements of a block are multiplied by.
        others: What is stored with the scales: the zero points (B,), or the scale of the tensor, a scalar.
    """

    elements: Tensor
    scale_codes: Tensor
    factors: Tensor
    others: list[Tensor]


class ScaledReference:
    """A backend (see operators/table.py) for every scaled format."""

    def quantize(
        self, x: Tensor, fmt: ScaledFormat, rule: Rule, out: Tensor, axis: int | None = None
    ) -> None:
        layout = fmt.layout(x.shape, axis)
        if x.numel():
            found = round_blocks(single(x), fmt, layout, rule)
            write(from_blocks(found.elements * found.factors[:, None], layout).view(x.shape), out)

    def quantize_rows(self, x_RxN: Tensor, fmt: ScaledFormat, out_RxN: Tensor) -> None:
        """Round each row as a tensor of its own. `out_RxN` may be `x_RxN`."""
        for x_n, out_n in zip(x_RxN, out_RxN, strict=True):
            self.quantize(x_n, fmt, NEAREST, out_n)

    def encode(
        self,
        x: Tensor,
        fmt: ScaledFormat,
        codes: Tensor,
        scale_codes: Tensor,
        *others: Tensor,
        axis: int | None = None,
        rule: Rule = NEAREST,
    ) -> None:
        layout = fmt.layout(x.shape, axis)
        found = round_blocks(single(x), fmt, layout, rule)
        if x.numel():
            zeros_B = found.others[0] if fmt.zero_point else None
            codes_BxK = elements.to_codes(fmt.element, found.elements, zeros_B)
            codes.copy_(from_blocks(codes_BxK, layout).view(x.shape))
        scale_codes.copy_(found.scale_codes.view(layout.shape))
        for to, other in zip(others, found.others, strict=True):
            to.copy_(other.view(to.shape))

    def decode(
        self,
        codes: Tensor,
        scale_codes: Tensor,
        *rest: Tensor | ScaledFormat,
        axis: int | None = None,
    ) -> None:
        """Write the values of codes.

        Args:
            codes: The codes of the elements, uint8.
            scale_codes: The codes of the scales of blocks.
            axis: The axis that blocks run along, or None.
            rest: The zero points or the scale of the tensor if the format has them, the format, and the output.
        """
        *others, fmt, out = rest
        layout = fmt.layout(codes.shape, axis)
        if codes.numel():
            factors_B = scales.values(fmt.scale.format, scale_codes.reshape(-1))
            if fmt.has_tensor_scale:
                factors_B = factors_B * others[0]
            zeros_B = others[0].reshape(-1) if fmt.zero_point else None
            elements_BxK = elements.from_codes(fmt.element, to_blocks(codes, layout), zeros_B)
            write(from_blocks(elements_BxK * factors_B[:, None], layout).view(codes.shape), out)

    def pack(
        self, x: Tensor, fmt: ScaledFormat, shift: int, rule: Rule, out: Tensor, axis: int | None = None
    ) -> None:
        """Write the scale of the tensor, the scales of the blocks, the zero points and the codes."""
        layout = fmt.layout(x.shape, axis)
        codes = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
        scale_codes = torch.empty(layout.shape, dtype=scale_dtype(fmt), device=x.device)
        others = [torch.empty((), device=x.device)] if fmt.has_tensor_scale else []
        if fmt.zero_point:
            others = [torch.empty(layout.shape, dtype=torch.uint8, device=x.device)]
        self.encode(x, fmt, codes, scale_codes, *others, axis=axis, rule=rule)
        parts = [*others, scale_codes] if fmt.has_tensor_scale else [scale_codes, *others]
        start = 0
        for part in parts:
            out[start : start + part.nbytes].copy_(part.view(-1).view(torch.uint8))
            start += part.nbytes
        self.join(codes.view(-1), fmt, out[start:])

    def unpack(
        self, data: Tensor, fmt: ScaledFormat, shift: int, out: Tensor, axis: int | None = None
    ) -> None:
        layout, start = fmt.layout(out.shape, axis), 4 * fmt.has_tensor_scale
        end = start + layout.scales * fmt.scale_bits // 8
        # clone() because a view of another dtype needs an aligned start
        scale_codes = data[start:end].clone().view(scale_dtype(fmt)).view(layout.shape)
        others = [data[:start].clone().view(torch.float32).view(())] if start else []
        if fmt.zero_point:
            others = [data[end : end + layout.scales].view(layout.shape)]
            end += layout.scales
        codes = self.split(data[end:], out.numel(), fmt).view(out.shape)
        self.decode(codes, scale_codes, *others, fmt, out, axis=axis)

    def join(self, codes_n: Tensor, fmt: ScaledFormat, out: Tensor) -> None:
        """Write the dense bytes of codes."""
        out.copy_(join_codes(codes_n, fmt.code_bits))

    def split(self, data: Tensor, n: int, fmt: ScaledFormat) -> Tensor:
        """Return the first n codes of dense bytes."""
        return split_codes(data, n, fmt.code_bits).contiguous()


def round_blocks(x: Tensor, fmt: ScaledFormat, layout: Layout, rule: Rule) -> Rounded:
    """Round float32 values to a format. If x is empty, round a zero for each scale that it has nevertheless."""
    tensor_scale = scales.tensor_scale(fmt, x.reshape(-1)) if fmt.has_tensor_scale else None
    x_BxK = to_blocks(x, layout) if x.numel() else x.new_zeros(layout.scales, 1)
    rule = rule if x.numel() else NEAREST

    def under(scaled: scales.Scaled) -> Rounded:
        elements_BxK = elements.round_elements(fmt.element, scaled.q, layout, rule)
        others = [] if tensor_scale is None else [tensor_scale]
        if scaled.zeros is not None:
            others = [scaled.zeros]
            zeros_Bx1 = scaled.zeros[:, None]
            elements_BxK = (elements_BxK + zeros_Bx1).clamp(0, fmt.element.max) - zeros_Bx1
        return Rounded(elements_BxK, scaled.codes, scaled.factors, others)

    found = under(scales.scale_blocks(fmt, x_BxK, tensor_scale))
    if fmt.scale.rule != "4over6":
        return found
    other = under(scales.scale_blocks(fmt, x_BxK, tensor_scale, times=1.5))
    is_better_B = _squared_error(x_BxK, other) < _squared_error(x_BxK, found)
    return Rounded(
        torch.where(is_better_B[:, None], other.elements, found.elements),
        torch.where(is_better_B, other.scale_codes, found.scale_codes),
        torch.where(is_better_B, other.factors, found.factors),
        found.others,
    )


def _squared_error(x_BxK: Tensor, rounded: Rounded) -> Tensor:
    """Return the sum of the squared errors of each block, added in the order that formats/scaled.py defines."""
    squares = (rounded.elements * rounded.factors[:, None] - x_BxK).double().square()
    squares = pad(squares, (0, -squares.shape[1] % 8)).unflatten(1, (-1, 8))
    sums_Bx8 = torch.zeros_like(squares[:, 0])
    for part in squares.unbind(1):
        sums_Bx8 = sums_Bx8 + part
    fours = sums_Bx8[:, :4] + sums_Bx8[:, 4:]
    twos = fours[:, :2] + fours[:, 2:]
    return twos[:, 0] + twos[:, 1]


backend = ScaledReference()
