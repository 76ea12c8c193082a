"""The reference implementation of scaled formats, in PyTorch on any device.

formats/scaled_format.py defines the results. Compiled code rounds the elements if it is available (elements.py), so
formats without their own kernels are fast, too.

The compiled backends give bit-identical results. Each backend is a subclass of `ScaledReference`
that calls its own kernels where they exist and otherwise uses PyTorch. Inputs are rounded to float32 first. A
tensor without elements has no blocks, but it can have a scale for the whole tensor.

Shapes: B blocks of K elements, in the order of the scales. Blocks at an edge are padded with zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from custom_fp.formats.layout import Layout
from custom_fp.formats.scaled_format import ScaledFormat
from custom_fp.operators.checks import scale_shapes
from custom_fp.reference import write
from custom_fp.rounding import Rule
from custom_fp.scaled import elements, scales
from custom_fp.scaled.blocks import from_blocks, join_codes, single, split_codes, to_blocks

NEAREST = Rule()


@dataclass(frozen=True)
class Rounded:
    """A rounded tensor.

    Attributes:
        elements: (B, K), the elements before they are multiplied by the scale. For formats with zero points, each code
            minus the zero point.
        scale_codes: (B,), the codes of the scales.
        factors: (B,), the factors by which the elements of each block are multiplied.
        others: The tensors that are stored in addition to the scales: the zero points (B,), or the scale of the whole
            tensor (0-d).
    """

    elements: Tensor
    scale_codes: Tensor
    factors: Tensor
    others: list[Tensor]


class ScaledReference:
    """A backend (see operators/table.py) for every scaled format.

    Compiled backends inherit from this class and override `kernel`.
    """

    def kernel(
        self, operator: str, fmt: ScaledFormat, layout: Layout, rule: Rule = NEAREST
    ) -> Callable[..., None] | None:
        """Return the compiled function for an operator, or None if PyTorch is used instead.

        Args:
            operator: The operator determines the arguments of the returned function:

                quantize   (x, out)
                encode     (x, codes, scales, *others)
                decode     (codes, scales, *others, out)
                pack       (x, bytes of codes, scales, *others)
                unpack     (bytes of codes, scales, *others, out)

                All tensors are dense and not empty, and x is float32.
            fmt: The format.
            layout: How the tensor is cut into blocks.
            rule: How to round.
        """
        return None

    def quantize(
        self, x: Tensor, fmt: ScaledFormat, rule: Rule, out: Tensor, axis: int | None = None
    ) -> None:
        if x.numel():
            self._quantize(single(x), fmt, fmt.layout(x.shape, axis), rule, out)

    def quantize_rows(self, x_RxN: Tensor, fmt: ScaledFormat, out_RxN: Tensor) -> None:
        """Round each row as a separate tensor. `out_RxN` may be `x_RxN`."""
        rows, n = x_RxN.shape
        row = fmt.layout((n,))
        if fmt.has_tensor_scale:
            for x_n, out_n in zip(x_RxN, out_RxN, strict=True):
                self.quantize(x_n, fmt, NEAREST, out_n)
        elif x_RxN.numel():
            self._quantize(x_RxN, fmt, Layout(1, rows, n, 1, row.width, (rows, row.scales)), NEAREST, out_RxN)

    def _quantize(self, x: Tensor, fmt: ScaledFormat, layout: Layout, rule: Rule, out: Tensor) -> None:
        if kernel := self.kernel("quantize", fmt, layout, rule):
            kernel(x, out)
        else:
            found = round_blocks(x, fmt, layout, rule)
            write(from_blocks(found.elements * found.factors[:, None], layout).view(x.shape), out)

    def quantize_delayed(
        self, x: Tensor, magnitudes: Tensor, fmt: ScaledFormat, records: bool, rule: Rule, out: Tensor
    ) -> None:
        """Round with a scale determined by the largest magnitudes of previous steps (recipe/delayed_scaling.py).

        Args:
            x: The tensor.
            magnitudes: The largest magnitude of the current step, followed by the largest magnitudes of the previous
                steps, as a float32 tensor of shape (1 + steps,) on any device.
            fmt: A format with a single scale for the tensor.
            records: Whether to update the largest magnitude of the current step in place.
            rule: How to round.
            out: The result.
        """
        x = single(x)
        own = scales.largest_magnitude(x.view(-1))
        if records:
            magnitudes[0] = torch.maximum(magnitudes[0], own.to(magnitudes.device))
        before = magnitudes[1:].max().to(x.device)
        amax = torch.where(before > 0, before, own)
        clamped = torch.where(x.isinf(), x, torch.minimum(torch.maximum(x, -amax), amax))
        # amax is appended to the tensor as its largest element, so that it determines the scale.
        with_amax = torch.cat([clamped.view(-1), amax.view(1)])
        result = torch.empty_like(with_amax)
        self.quantize(with_amax, fmt, rule, result)
        out.copy_(result[:-1].view(x.shape))

    def encode(
        self,
        x: Tensor,
        fmt: ScaledFormat,
        codes: Tensor,
        *stored: Tensor,
        axis: int | None = None,
        rule: Rule = NEAREST,
    ) -> None:
        """Write the codes of the elements, the codes of the scales, and any zero points or scale of the tensor."""
        x, layout = single(x), fmt.layout(x.shape, axis)
        if x.numel() and (kernel := self.kernel("encode", fmt, layout, rule)):
            kernel(x, codes, *stored)
            return
        found = round_blocks(x, fmt, layout, rule)
        if x.numel():
            zeros_B = found.others[0] if fmt.zero_point else None
            codes_BxK = elements.to_codes(fmt.element, found.elements, zeros_B)
            codes.copy_(from_blocks(codes_BxK, layout).view(x.shape))
        for to, part in zip(stored, (found.scale_codes, *found.others), strict=True):
            to.copy_(part.view(to.shape))

    def decode(self, codes: Tensor, *rest: Any, axis: int | None = None) -> None:
        """Decode codes and write the values to the last argument.

        Args:
            codes: The codes of the elements, uint8.
            axis: The axis along which blocks run, or None.
            rest: The codes of the scales of the blocks, then the zero points or the scale of the tensor if the format
                has them, then the format and the output tensor.
        """
        *stored, fmt, out = rest
        layout = fmt.layout(codes.shape, axis)
        if not codes.numel():
            return
        if kernel := self.kernel("decode", fmt, layout):
            kernel(codes, *stored, out)
            return
        factors_B = scales.values(fmt.scale.format, stored[0].reshape(-1))
        if fmt.has_tensor_scale:
            factors_B = factors_B * stored[1]
        zeros_B = stored[1].reshape(-1) if fmt.zero_point else None
        elements_BxK = elements.from_codes(fmt.element, to_blocks(codes, layout), zeros_B)
        write(from_blocks(elements_BxK * factors_B[:, None], layout).view(codes.shape), out)

    def pack(
        self, x: Tensor, fmt: ScaledFormat, shift: int, rule: Rule, out: Tensor, axis: int | None = None
    ) -> None:
        """Write the bytes of the scale of the tensor, the scales of the blocks, the zero points and the codes."""
        layout = fmt.layout(x.shape, axis)
        *parts, body = _parts(out, fmt, layout)
        shapes = scale_shapes(fmt, x.shape, axis)
        stored = [torch.empty(shape, dtype=dtype, device=x.device) for shape, dtype in shapes]
        if x.numel() and (kernel := self.kernel("pack", fmt, layout, rule)):
            kernel(single(x), body, *stored)
        else:
            codes = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
            self.encode(x, fmt, codes, *stored, axis=axis, rule=rule)
            self.join(codes.view(-1), fmt.code_bits, body)
        for part, found in zip(parts, stored, strict=True):
            part.copy_(found.view(-1).view(torch.uint8))

    def unpack(
        self, data: Tensor, fmt: ScaledFormat, shift: int, out: Tensor, axis: int | None = None
    ) -> None:
        layout = fmt.layout(out.shape, axis)
        *parts, body = _parts(data, fmt, layout)
        shapes = scale_shapes(fmt, out.shape, axis)
        # Clone the bytes, because a view with another dtype must start at an aligned address.
        stored = [
            part.clone().view(dtype).view(shape) for part, (shape, dtype) in zip(parts, shapes, strict=True)
        ]
        if out.numel() and (kernel := self.kernel("unpack", fmt, layout)):
            kernel(body, *stored, out)
        else:
            codes = self.split(body, out.numel(), fmt.code_bits)
            self.decode(codes.view(out.shape), *stored, fmt, out, axis=axis)

    def join(self, codes_n: Tensor, bits: int, out: Tensor) -> None:
        """Write codes as dense bytes."""
        out.copy_(join_codes(codes_n, bits))

    def split(self, data: Tensor, n: int, bits: int) -> Tensor:
        """Return the first n codes of k bits that are packed in dense bytes."""
        return split_codes(data, n, bits).contiguous()


def _parts(data: Tensor, fmt: ScaledFormat, layout: Layout) -> list[Tensor]:
    """Return the bytes of the scales, of the zero points or the tensor's scale if there are any, and of the codes."""
    head, scale_bytes = 4 * fmt.has_tensor_scale, layout.scales * fmt.scale_bits // 8
    end = head + scale_bytes
    start = end + layout.scales * fmt.zero_point
    others = [data[:head]] if head else [data[end:start]] if fmt.zero_point else []
    return [data[head:end], *others, data[start:]]


def round_blocks(x: Tensor, fmt: ScaledFormat, layout: Layout, rule: Rule) -> Rounded:
    """Round float32 values to a format. If x is empty but has scales, these are the scales of a block of zeros."""
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
    """Return the sum of squared errors of each block. formats/scaled_format.py defines the order of the additions."""
    squares = (rounded.elements * rounded.factors[:, None] - x_BxK).double().square()
    squares = pad(squares, (0, -squares.shape[1] % 8)).unflatten(1, (-1, 8))
    sums_Bx8 = torch.zeros_like(squares[:, 0])
    for part in squares.unbind(1):
        sums_Bx8 = sums_Bx8 + part
    fours = sums_Bx8[:, :4] + sums_Bx8[:, 4:]
    twos = fours[:, :2] + fours[:, 2:]
    return twos[:, 0] + twos[:, 1]


backend = ScaledReference()
