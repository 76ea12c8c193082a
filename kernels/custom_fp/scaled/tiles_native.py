"""Scaled formats with the compiled extension, csrc/cpu_blocks.h, on the CPU."""

from __future__ import annotations

from torch import Tensor, get_num_threads

from custom_fp import _native
from custom_fp.formats.block import BlockFormat
from custom_fp.formats.layout import Layout
from custom_fp.formats.scale import MXINT8
from custom_fp.rule import Rounding, Rule
from custom_fp.scaled.blocks import single
from custom_fp.scaled.tiles import NEAREST, Tiles


class NativeTiles(Tiles):
    def quantize(self, x: Tensor, fmt: BlockFormat, rule: Rule, out: Tensor, axis: int | None = None) -> None:
        layout = fmt.layout(x.shape, axis).as_rows
        if layout.height > 1 or not _is_compiled(fmt, rule):
            super().quantize(x, fmt, rule, out, axis)
        else:
            rows = layout.planes * layout.rows
            _quantize_rows(single(x), fmt, out, rows, layout.columns, layout)

    def quantize_rows(self, x_RxN: Tensor, fmt: BlockFormat, out_RxN: Tensor) -> None:
        rows, n = x_RxN.shape
        if _is_compiled(fmt, NEAREST) and fmt.together:
            _quantize_rows(x_RxN, fmt, out_RxN, rows, n, fmt.layout((n,)))
        else:
            super().quantize_rows(x_RxN, fmt, out_RxN)

    def encode(
        self, x: Tensor, fmt: BlockFormat, codes: Tensor, scales: Tensor, *rest, axis=None, rule=NEAREST
    ):
        layout = fmt.layout(x.shape, axis).as_rows
        if layout.rows * layout.planes > 1 or layout.height > 1 or not _is_compiled(fmt, rule):
            super().encode(x, fmt, codes, scales, *rest, axis=axis, rule=rule)
        else:
            _encode(single(x), fmt, scales, codes, layout, dense=False)

    def decode(self, codes: Tensor, scales: Tensor, *rest, axis=None) -> None:
        *_, fmt, out = rest
        layout = fmt.layout(codes.shape, axis).as_rows
        if layout.rows * layout.planes > 1 or layout.height > 1 or not _is_compiled(fmt, NEAREST):
            super().decode(codes, scales, *rest, axis=axis)
        else:
            _decode(scales, codes, fmt, out, layout, dense=False)

    def pack(self, x: Tensor, fmt: BlockFormat, shift: int, rule: Rule, out: Tensor, axis=None) -> None:
        layout = fmt.layout(x.shape, axis).as_rows
        if layout.rows * layout.planes > 1 or layout.height > 1 or not _is_compiled(fmt, rule):
            super().pack(x, fmt, shift, rule, out, axis)
        else:
            _encode(single(x), fmt, out, out[layout.scales :], layout, dense=True)

    def unpack(self, data: Tensor, fmt: BlockFormat, shift: int, out: Tensor, axis=None) -> None:
        layout = fmt.layout(out.shape, axis).as_rows
        if layout.rows * layout.planes > 1 or layout.height > 1 or not _is_compiled(fmt, NEAREST):
            super().unpack(data, fmt, shift, out, axis)
        else:
            _decode(data, data[layout.scales :], fmt, out, layout, dense=True)


def _is_compiled(fmt: BlockFormat, rule: Rule) -> bool:
    is_mx = fmt.rule == "floor" and (not fmt.is_integer or fmt.of == MXINT8)
    return is_mx and rule.rounding is Rounding.NEAREST_EVEN


def _quantize_rows(x: Tensor, fmt: BlockFormat, out: Tensor, rows: int, n: int, layout: Layout) -> None:
    _native.quantize_blocks(x.data_ptr(), out.data_ptr(), rows, n, *_blocks(fmt, layout))


def _encode(x: Tensor, fmt: BlockFormat, scales: Tensor, codes: Tensor, layout: Layout, dense: bool) -> None:
    addresses = (x.data_ptr(), scales.data_ptr(), codes.data_ptr())
    _native.encode_blocks(*addresses, dense, layout.numel, *_blocks(fmt, layout))


def _decode(
    scales: Tensor, codes: Tensor, fmt: BlockFormat, out: Tensor, layout: Layout, dense: bool
) -> None:
    addresses = (scales.data_ptr(), codes.data_ptr())
    _native.decode_blocks(*addresses, dense, out.data_ptr(), layout.numel, *_blocks(fmt, layout))


def _blocks(fmt: BlockFormat, layout: Layout) -> tuple[int, int, int, int]:
    return layout.width, 0 if fmt.is_integer else fmt.of.spec, fmt.emax, get_num_threads()


backend = NativeTiles()
