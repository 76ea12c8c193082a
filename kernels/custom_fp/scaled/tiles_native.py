"""The compiled CPU backend of formats with scales (csrc/tiles/)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache

import torch
from torch import Tensor, get_num_threads

from custom_fp import _native
from custom_fp.formats.layout import Block, Layout, cut
from custom_fp.formats.scaled import ScaledFormat
from custom_fp.operators.checks import scale_dtype
from custom_fp.rounding import Rule
from custom_fp.scaled.arithmetic import NEAREST, ScaledReference
from custom_fp.scaled.blocks import single

LONG = 1 << 17  # several threads share longer blocks: `grain` in csrc/cpu/parallel.h


class NativeTiles(ScaledReference):
    def quantize(
        self, x: Tensor, fmt: ScaledFormat, rule: Rule, out: Tensor, axis: int | None = None
    ) -> None:
        if x.numel():
            x = single(x)
            tiling = _tiling_of(fmt.block, x.shape, axis, fmt.name)
            args = tiling, _scaling(fmt), *_rule_args(rule), get_num_threads()
            _native.quantize_tiles(x.data_ptr(), out.data_ptr(), *args)

    def quantize_rows(self, x_RxN: Tensor, fmt: ScaledFormat, out_RxN: Tensor) -> None:
        if fmt.together is None:
            super().quantize_rows(x_RxN, fmt, out_RxN)
        else:
            self.quantize(x_RxN, fmt, NEAREST, out_RxN, axis=1)

    def encode(
        self,
        x: Tensor,
        fmt: ScaledFormat,
        codes: Tensor,
        scales: Tensor,
        *tensor_scale: Tensor,
        axis: int | None = None,
        rule: Rule = NEAREST,
    ) -> None:
        if x.numel():
            t = _encode(single(x), fmt, scales, codes, fmt.layout(x.shape, axis), rule)
            for found in tensor_scale:
                found.fill_(t)
        else:
            super().encode(x, fmt, codes, scales, *tensor_scale, axis=axis, rule=rule)

    def decode(
        self, codes: Tensor, scales: Tensor, *rest: Tensor | ScaledFormat, axis: int | None = None
    ) -> None:
        *tensor_scale, fmt, out = rest
        if codes.numel():
            t = tensor_scale[0].item() if tensor_scale else 1.0
            _decode(codes, scales, fmt, out, fmt.layout(codes.shape, axis), t)

    def pack(
        self, x: Tensor, fmt: ScaledFormat, shift: int, rule: Rule, out: Tensor, axis: int | None = None
    ) -> None:
        layout = fmt.layout(x.shape, axis)
        if not _is_one_row(layout):
            super().pack(x, fmt, shift, rule, out, axis)
        elif x.numel():
            head, scales, codes = _parts(out, fmt, layout)
            t = _encode(single(x), fmt, scales, codes, layout, rule, dense=True)
            _put(scales, out, head)
            if head:
                out[:head].copy_(torch.tensor([t]).view(torch.uint8))
        else:
            super().pack(x, fmt, shift, rule, out, axis)

    def unpack(
        self, data: Tensor, fmt: ScaledFormat, shift: int, out: Tensor, axis: int | None = None
    ) -> None:
        layout = fmt.layout(out.shape, axis)
        if not (out.numel() and _is_one_row(layout)):
            super().unpack(data, fmt, shift, out, axis)
            return
        head, scales, codes = _parts(data, fmt, layout)
        if scales.data_ptr() != data[head:].data_ptr():
            scales.view(torch.uint8).copy_(data[head:][: scales.nbytes])
        t = data[:head].clone().view(torch.float32).item() if head else 1.0
        _decode(codes, scales, fmt, out, layout, t, dense=True)

    def join(self, codes_n: Tensor, fmt: ScaledFormat, out: Tensor) -> None:
        _native.join_codes(
            codes_n.data_ptr(), out.data_ptr(), codes_n.numel(), fmt.code_bits, get_num_threads()
        )

    def split(self, data: Tensor, n: int, fmt: ScaledFormat) -> Tensor:
        codes_n = torch.empty(n, dtype=torch.uint8)
        _native.split_codes(data.data_ptr(), codes_n.data_ptr(), n, fmt.code_bits, get_num_threads())
        return codes_n


def _encode(
    x: Tensor,
    fmt: ScaledFormat,
    scales: Tensor,
    codes: Tensor,
    layout: Layout,
    rule: Rule,
    dense: bool = False,
) -> float:
    addresses = x.data_ptr(), scales.data_ptr(), codes.data_ptr()
    args = _tiling(layout), _scaling(fmt), *_rule_args(rule), get_num_threads()
    return _native.encode_tiles(*addresses, dense, *args)


def _decode(
    codes: Tensor,
    scales: Tensor,
    fmt: ScaledFormat,
    out: Tensor,
    layout: Layout,
    t: float,
    dense: bool = False,
) -> None:
    addresses = scales.data_ptr(), codes.data_ptr(), dense, out.data_ptr()
    _native.decode_tiles(*addresses, _tiling(layout), _scaling(fmt), t, get_num_threads())


def _rule_args(rule: Rule) -> tuple[int, ...]:
    """Return mode, seed, offset and mask."""
    mode, _, *random = rule.flat
    return mode, *random


def _is_one_row(layout: Layout) -> bool:
    """Return whether the kernel can pack codes directly: every part of the tensor starts at a whole byte."""
    return layout.as_rows.rows == 1 == layout.planes and (
        layout.height == 1 and (layout.width <= LONG or layout.width >= layout.columns)
    )


def _parts(data: Tensor, fmt: ScaledFormat, layout: Layout) -> tuple[int, Tensor, Tensor]:
    """Return the number of bytes before the scales, aligned memory for the scales, and the codes."""
    head, count = 4 * fmt.has_tensor_scale, layout.scales
    body = head + count * fmt.scale_bits // 8
    scales = data[head:body] if fmt.scale_bits == 8 else torch.empty(count, dtype=scale_dtype(fmt))
    return head, scales, data[body:]


def _put(scales: Tensor, out: Tensor, head: int) -> None:
    if scales.dtype is not torch.uint8:
        out[head:][: scales.nbytes].copy_(scales.view(torch.uint8))


@lru_cache(maxsize=4096)
def _tiling_of(block: Block, shape: Sequence[int], axis: int | None, name: str) -> _native.Tiling:
    return _tiling(cut(block, shape, axis, name))


@lru_cache(maxsize=4096)
def _tiling(layout: Layout) -> _native.Tiling:
    flat = layout.as_rows
    return _native.Tiling(flat.planes, flat.rows, flat.columns, flat.height, flat.width)


@cache
def _scaling(fmt: ScaledFormat) -> _native.Scaling:
    return _native.Scaling(*fmt.parts)


backend = NativeTiles()
