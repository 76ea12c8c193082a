"""Scaled formats in torch: the reference that tiles_native.py is held to. formats/block.py says what is computed.

Legend: B blocks of K elements, in the order of the scales, those that a block at an edge lacks filled up with zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from custom_fp.formats.block import BlockFormat
from custom_fp.formats.layout import Layout
from custom_fp.operators.checks import scale_dtype
from custom_fp.reference import random_words, write
from custom_fp.rounding import Rounding, Rule
from custom_fp.scaled import elements, scales
from custom_fp.scaled.blocks import from_blocks, join_codes, single, split_codes, to_blocks

NEAREST = Rule()


class Tiles:
    """A backend (see operators/table.py), and `quantize_rows`."""

    def quantize(self, x: Tensor, fmt: BlockFormat, rule: Rule, out: Tensor, axis: int | None = None) -> None:
        layout = fmt.layout(x.shape, axis)
        if x.numel():
            elements_BxK, values_B = self._rounded(single(x), fmt, layout, rule)[:2]
            write(from_blocks(elements_BxK * values_B[:, None], layout).view(x.shape), out)

    def quantize_rows(self, x_RxN: Tensor, fmt: BlockFormat, out_RxN: Tensor) -> None:
        """Each row as a tensor of its own."""
        for x_n, out_n in zip(x_RxN, out_RxN, strict=True):
            self.quantize(x_n, fmt, NEAREST, out_n)

    def encode(
        self,
        x: Tensor,
        fmt: BlockFormat,
        codes: Tensor,
        scales_: Tensor,
        *tensor_scale: Tensor,
        axis: int | None = None,
        rule: Rule = NEAREST,
    ) -> None:
        layout = fmt.layout(x.shape, axis)
        if x.numel():
            elements_BxK, _, codes_B, t = self._rounded(single(x), fmt, layout, rule)
            codes.copy_(from_blocks(elements.codes(fmt, elements_BxK), layout).view(x.shape))
        else:  # the scales of blocks of zeros
            t = scales.of_tensor(fmt, x.view(-1).float())
            codes_B = scales.of_blocks(fmt, t.new_zeros(layout.scales), t if fmt.has_tensor_scale else None)
        scales_.copy_(codes_B.view(layout.shape))
        for found in tensor_scale:
            found.copy_(t)

    def decode(
        self,
        codes: Tensor,
        scales_: Tensor,
        *rest: Tensor | BlockFormat,
        axis: int | None = None,
    ) -> None:
        """rest: the tensor's scale if the format has one, the format, what is filled."""
        *tensor_scale, fmt, out = rest
        layout = fmt.layout(codes.shape, axis)
        if codes.numel():
            values_B = scales.values(fmt.scaled_by, scales_.reshape(-1))
            for t in tensor_scale:
                values_B = values_B * t
            elements_BxK = elements.of_codes(fmt, to_blocks(codes, layout))
            write(from_blocks(elements_BxK * values_B[:, None], layout).view(codes.shape), out)

    def pack(
        self, x: Tensor, fmt: BlockFormat, shift: int, rule: Rule, out: Tensor, axis: int | None = None
    ) -> None:
        layout, head = fmt.layout(x.shape, axis), 4 * fmt.has_tensor_scale
        codes = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
        found = torch.empty(layout.shape, dtype=scale_dtype(fmt), device=x.device)
        t = [torch.empty((), device=x.device)] if fmt.has_tensor_scale else []
        self.encode(x, fmt, codes, found, *t, axis=axis, rule=rule)
        for part in t:
            out[:head].copy_(part.view(1).view(torch.uint8))
        body = head + found.nbytes
        out[head:body].copy_(found.view(-1).view(torch.uint8))
        self.join(codes.view(-1), fmt, out[body:])

    def unpack(
        self, data: Tensor, fmt: BlockFormat, shift: int, out: Tensor, axis: int | None = None
    ) -> None:
        layout, head = fmt.layout(out.shape, axis), 4 * fmt.has_tensor_scale
        body = head + layout.scales * fmt.scale_bits // 8
        # a view of another dtype needs an aligned start
        t = [data[:head].clone().view(torch.float32).view(())] if head else []
        found = data[head:body].clone().view(scale_dtype(fmt)).view(layout.shape)
        codes = self.split(data[body:], out.numel(), fmt).view(out.shape)
        self.decode(codes, found, *t, fmt, out, axis=axis)

    def join(self, codes_n: Tensor, fmt: BlockFormat, out: Tensor) -> None:
        out.copy_(join_codes(codes_n, fmt.code_bits))

    def split(self, data: Tensor, n: int, fmt: BlockFormat) -> Tensor:
        return split_codes(data, n, fmt.code_bits).contiguous()

    def _rounded(
        self, x: Tensor, fmt: BlockFormat, layout: Layout, rule: Rule
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Elements (B, K), what each block's are multiplied by, the scales' codes, the tensor's scale."""
        t = scales.of_tensor(fmt, x.reshape(-1)) if fmt.has_tensor_scale else None
        x_BxK = to_blocks(x, layout)
        largest_B = x_BxK.abs().amax(1)
        random_BxK = None
        if rule.rounding is Rounding.STOCHASTIC:
            random = random_words(x.numel(), 0, rule.seed, x.device, rule.offset)
            random_BxK = to_blocks(random, layout)

        def by(times: float) -> tuple[Tensor, Tensor, Tensor]:
            codes_B = scales.of_blocks(fmt, largest_B, t, times)
            values_B = scales.values(fmt.scaled_by, codes_B)
            q_BxK = x_BxK * scales.reciprocals(values_B, t)[:, None]
            q_BxK = torch.where(largest_B.isfinite()[:, None], q_BxK, 0.0).clamp(fmt.least, fmt.of.max)
            found_BxK = elements.rounded(fmt, q_BxK, rule, random_BxK)
            return found_BxK, values_B if t is None else values_B * t, codes_B

        at_6 = by(1.0)
        if fmt.rule != "4over6":
            return *at_6, t
        at_4 = by(1.5)
        errors_4, errors_6 = (
            squared_error(x_BxK, found * values[:, None]) for found, values, _ in (at_4, at_6)
        )
        is_4_B = errors_4 < errors_6
        elements_BxK = torch.where(is_4_B[:, None], at_4[0], at_6[0])
        return elements_BxK, *(torch.where(is_4_B, a, b) for a, b in zip(at_4[1:], at_6[1:], strict=True)), t


def squared_error(x_BxK: Tensor, value_BxK: Tensor) -> Tensor:
    """The sum of squares of each block: eight sums over every eighth element, then pairwise, 4 apart first."""
    squares = (value_BxK - x_BxK).double().square()
    squares = pad(squares, (0, -squares.shape[1] % 8)).view(squares.shape[0], -1, 8)
    sums_Bx8 = torch.zeros_like(squares[:, 0])
    for part in squares.unbind(1):
        sums_Bx8 = sums_Bx8 + part
    fours = sums_Bx8[:, :4] + sums_Bx8[:, 4:]
    twos = fours[:, :2] + fours[:, 2:]
    return twos[:, 0] + twos[:, 1]


backend = Tiles()
