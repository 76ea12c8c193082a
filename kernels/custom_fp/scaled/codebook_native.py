"""The compiled CPU backend of codebooks (csrc/scaled/). Tiles run in PyTorch."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor, get_num_threads

from custom_fp import _native
from custom_fp.formats.elements import ValueTable
from custom_fp.formats.layout import Layout
from custom_fp.formats.scaled import ScaledFormat
from custom_fp.rounding import Rule
from custom_fp.scaled.arithmetic import NEAREST
from custom_fp.scaled.blocks import single
from custom_fp.scaled.halves_native import NativeHalves
from custom_fp.scaled.search import search_of


class NativeCodebook(NativeHalves):
    """The fast paths of codebooks."""

    def quantize(
        self, x: Tensor, fmt: ScaledFormat, rule: Rule, out: Tensor, axis: int | None = None
    ) -> None:
        layout = fmt.layout(x.shape, axis)
        if not x.numel() or (layout.height > 1 and layout.width > 1):
            super().quantize(x, fmt, rule, out, axis)
            return
        x, (tables, _) = single(x), _tables(fmt.element)
        addresses = x.data_ptr(), out.data_ptr()
        if layout.height == 1:
            _native.codebook_quantize(*addresses, *_rows(layout), tables, get_num_threads())
        else:
            sizes = layout.planes, layout.rows, layout.columns, layout.height
            _native.codebook_columns(*addresses, *sizes, tables, get_num_threads())

    def quantize_rows(self, x_RxN: Tensor, fmt: ScaledFormat, out_RxN: Tensor) -> None:
        rows, n = x_RxN.shape
        width = fmt.layout((n,)).width
        addresses, (tables, _) = (x_RxN.data_ptr(), out_RxN.data_ptr()), _tables(fmt.element)
        _native.codebook_quantize(*addresses, rows, n, width, tables, get_num_threads())

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
        if not x.numel() or (layout.height > 1 and (layout.width > 1 or axis is None)):
            super().encode(x, fmt, codes, scale_codes, axis=axis)
        elif layout.height == 1:
            _encode(single(x), fmt, codes, scale_codes, layout)
        else:
            along = single(x).movedim(axis, -1).contiguous()
            last = fmt.layout(along.shape, along.dim() - 1)
            codes_of_rows = torch.empty(along.shape, dtype=torch.uint8)
            scales_of_rows = torch.empty(last.shape)
            _encode(along, fmt, codes_of_rows, scales_of_rows, last)
            codes.movedim(axis, -1).copy_(codes_of_rows)
            scale_codes.movedim(axis, -1).copy_(scales_of_rows)

    def decode(
        self,
        codes: Tensor,
        scale_codes: Tensor,
        *rest: Tensor | ScaledFormat,
        axis: int | None = None,
    ) -> None:
        fmt, out = rest
        layout = fmt.layout(codes.shape, axis)
        if not codes.numel() or (layout.height > 1 and (layout.width > 1 or axis is None)):
            super().decode(codes, scale_codes, fmt, out, axis=axis)
        elif layout.height == 1:
            _decode(codes, scale_codes, fmt, out, layout)
        else:
            along = codes.movedim(axis, -1).contiguous()
            values_of_rows = torch.empty(along.shape)
            last = fmt.layout(along.shape, along.dim() - 1)
            _decode(along, scale_codes.movedim(axis, -1).contiguous(), fmt, values_of_rows, last)
            out.movedim(axis, -1).copy_(values_of_rows)

    def pack(
        self, x: Tensor, fmt: ScaledFormat, shift: int, rule: Rule, out: Tensor, axis: int | None = None
    ) -> None:
        layout, n, bits = fmt.layout(x.shape, axis), x.numel(), fmt.code_bits
        is_whole_bytes = bits == 8 or (bits == 4 and (layout.width % 2 == 0 or layout.scales == 1))
        if not (n and is_whole_bytes and layout.as_rows.rows == layout.planes == 1 == layout.height):
            super().pack(x, fmt, shift, rule, out, axis)
            return
        x, scales_B, (tables, _) = single(x), torch.empty(layout.scales), _tables(fmt.element)
        body = out[scales_B.nbytes :]
        addresses = x.data_ptr(), body.data_ptr(), scales_B.data_ptr()
        if bits == 8:
            _native.codebook_encode(*addresses, 1, n, layout.width, tables, get_num_threads())
        else:
            _native.codebook_pack_halves(*addresses, n, layout.width, tables, get_num_threads())
        out[: scales_B.nbytes].copy_(scales_B.view(torch.uint8))
        body[math.ceil(n * bits / 8) :].zero_()


def _rows(layout: Layout) -> tuple[int, int, int]:
    """Return the number of rows, their length, and how much of one shares a scale, for blocks along rows."""
    return layout.planes * layout.rows, layout.columns, layout.width


def _encode(x: Tensor, fmt: ScaledFormat, codes: Tensor, scales: Tensor, layout: Layout) -> None:
    tables, _ = _tables(fmt.element)
    addresses = x.data_ptr(), codes.data_ptr(), scales.data_ptr()
    _native.codebook_encode(*addresses, *_rows(layout), tables, get_num_threads())


def _decode(codes: Tensor, scales: Tensor, fmt: ScaledFormat, out: Tensor, layout: Layout) -> None:
    addresses = codes.data_ptr(), scales.data_ptr(), out.data_ptr()
    values = _values(fmt.element).data_ptr()
    _native.codebook_decode(*addresses, *_rows(layout), values, get_num_threads())


@cache
def _values(table: ValueTable) -> Tensor:
    """Return the value of each byte. Bytes that are no code are NaN."""
    rest = [math.nan] * (256 - len(table.values))
    return torch.tensor([*table.values, *rest], dtype=torch.float32)


@cache
def _tables(table: ValueTable) -> tuple[_native.CodebookTables, object]:
    """Return what the compiled functions take, and what keeps its memory."""
    search = search_of(table, "cpu")
    return _native.CodebookTables(*search.addresses(int), len(table.sorted_codes)), search


backend = NativeCodebook()
