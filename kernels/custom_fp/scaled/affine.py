"""Affine integers in torch: the reference that affine_native.py is held to. formats/affine.py says what is computed.

Legend: B blocks of K values, in the order of the scales; what a block at an edge lacks is zeros, which change no range.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from custom_fp.formats.affine import Affine
from custom_fp.formats.layout import Layout
from custom_fp.formats.scale import Integer
from custom_fp.reference import random_words, write
from custom_fp.rounding import Rounding, Rule
from custom_fp.scaled.blocks import from_blocks, join_codes, single, split_codes, to_blocks
from custom_fp.scaled.elements import to_integer

NEAREST = Rule()
SMALLEST_SCALE = 2.0**-126
Found = tuple[
    Tensor, Tensor, Tensor
]  # codes (B, K) and zero points (B,), whole numbers in float32; scales (B,)


class AffineBlocks:
    """A backend (see operators/table.py), and `quantize_rows`."""

    def quantize(self, x: Tensor, fmt: Affine, rule: Rule, out: Tensor, axis: int | None = None) -> None:
        layout = fmt.layout(x.shape, axis)
        if x.numel():
            values_BxK = _values(*_found(single(x), fmt, layout, rule))
            write(from_blocks(values_BxK, layout).view(x.shape), out)

    def quantize_rows(self, x_RxN: Tensor, fmt: Affine, out_RxN: Tensor) -> None:
        """Each row as a tensor of its own."""
        for x_n, out_n in zip(x_RxN, out_RxN, strict=True):
            self.quantize(x_n, fmt, NEAREST, out_n)

    def encode(
        self,
        x: Tensor,
        fmt: Affine,
        codes: Tensor,
        scales: Tensor,
        zeros: Tensor,
        axis: int | None = None,
        rule: Rule = NEAREST,
    ) -> None:
        layout = fmt.layout(x.shape, axis)
        codes_BxK, scales_B, zeros_B = _found(single(x), fmt, layout, rule)
        if x.numel():
            codes.copy_(from_blocks(codes_BxK, layout).view(x.shape))
        scales.copy_(scales_B.view(layout.shape))
        zeros.copy_(zeros_B.view(layout.shape))

    def decode(
        self, codes: Tensor, scales: Tensor, zeros: Tensor, fmt: Affine, out: Tensor, axis: int | None = None
    ) -> None:
        layout = fmt.layout(codes.shape, axis)
        if codes.numel():
            codes_BxK = to_blocks(codes, layout).to(torch.float32)
            values_BxK = _values(codes_BxK, scales.reshape(-1), zeros.reshape(-1).to(torch.float32))
            write(from_blocks(values_BxK, layout).view(codes.shape), out)

    def pack(
        self, x: Tensor, fmt: Affine, shift: int, rule: Rule, out: Tensor, axis: int | None = None
    ) -> None:
        """The scales, the zero points, the codes."""
        shape, n = fmt.layout(x.shape, axis).shape, x.numel()
        scales = torch.empty(shape, device=x.device)
        zeros = torch.empty(shape, dtype=torch.uint8, device=x.device)
        head, body = scales.nbytes, scales.nbytes + zeros.nbytes
        in_place = fmt.code_bits == 8
        codes = out[body : body + n].view(x.shape) if in_place else x.new_empty(x.shape, dtype=torch.uint8)
        self.encode(x, fmt, codes, scales, zeros, axis, rule)
        out[:head].copy_(scales.view(-1).view(torch.uint8))
        out[head:body].copy_(zeros.view(-1))
        if in_place:
            out[body + n :].zero_()
        else:
            self.join_codes(codes.view(-1), fmt, out[body:])

    def unpack(self, data: Tensor, fmt: Affine, shift: int, out: Tensor, axis: int | None = None) -> None:
        layout = fmt.layout(out.shape, axis)
        head, body = 4 * layout.scales, 5 * layout.scales
        scales = data[:head].clone().view(torch.float32).view(layout.shape)  # which needs an aligned start
        zeros = data[head:body].view(layout.shape)
        codes = self.split_codes(data[body:], out.numel(), fmt).view(out.shape)
        self.decode(codes, scales, zeros, fmt, out, axis)

    def join_codes(self, codes_n: Tensor, fmt: Affine, data: Tensor) -> None:
        data.copy_(join_codes(codes_n, fmt.code_bits))

    def split_codes(self, data: Tensor, n: int, fmt: Affine) -> Tensor:
        return split_codes(data, n, fmt.code_bits).contiguous()


def _found(x: Tensor, fmt: Affine, layout: Layout, rule: Rule) -> Found:
    x_BxK = to_blocks(x, layout)
    if not x.numel():
        x_BxK = x.new_zeros(layout.scales, 1)
    low_B, high_B = x_BxK.amin(1).clamp(max=0.0), x_BxK.amax(1).clamp(min=0.0)
    scales_B = ((high_B - low_B) / fmt.levels).clamp(min=SMALLEST_SCALE)
    finite_B = scales_B.isfinite()
    scales_B = torch.where(finite_B, scales_B, math.nan)
    zeros_B = (0.0 - (low_B / scales_B).round()).clamp(0, fmt.levels).nan_to_num(0.0)
    units_BxK = torch.where(finite_B[:, None], x_BxK * (1.0 / scales_B)[:, None], 0.0)
    random_BxK = None
    if rule.rounding is Rounding.STOCHASTIC:
        random_BxK = to_blocks(random_words(x.numel(), 0, rule.seed, x.device, rule.offset), layout)
    whole_BxK = to_integer(Integer(fmt.code_bits), units_BxK, rule, random_BxK)
    return (whole_BxK + zeros_B[:, None]).clamp(0, fmt.levels), scales_B, zeros_B


def _values(codes_BxK: Tensor, scales_B: Tensor, zeros_B: Tensor) -> Tensor:
    return (codes_BxK - zeros_B[:, None]) * scales_B[:, None]


backend = AffineBlocks()
