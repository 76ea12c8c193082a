"""The compiled CPU backend of integers with zero points (csrc/scaled/). It rounds to nearest even."""

from __future__ import annotations

from torch import Tensor, get_num_threads

from custom_fp import _native
from custom_fp.formats.layout import Layout
from custom_fp.formats.scaled import ScaledFormat
from custom_fp.rounding import Rounding, Rule
from custom_fp.scaled.arithmetic import NEAREST
from custom_fp.scaled.blocks import single
from custom_fp.scaled.halves_native import NativeHalves


class NativeAffine(NativeHalves):
    """The fast paths of integers with zero points."""

    def quantize(
        self, x: Tensor, fmt: ScaledFormat, rule: Rule, out: Tensor, axis: int | None = None
    ) -> None:
        layout = fmt.layout(x.shape, axis)
        if rule.rounding is not Rounding.NEAREST_EVEN or not x.numel():
            super().quantize(x, fmt, rule, out, axis)
            return
        x = single(x)
        addresses, rest = (x.data_ptr(), out.data_ptr()), (_largest_code(fmt), get_num_threads())
        if layout.height == 1:
            _native.affine_quantize(*addresses, *_rows(layout), *rest)
        elif layout.width == 1:
            sizes = layout.planes, layout.rows, layout.columns, layout.height
            _native.affine_columns(*addresses, *sizes, *rest)
        else:
            _native.affine_tiles(*addresses, 0, 0, 0, *_tiles(layout), *rest)

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
        if rule.rounding is not Rounding.NEAREST_EVEN or not x.numel():
            super().encode(x, fmt, codes, scale_codes, *others, axis=axis, rule=rule)
            return
        x = single(x)
        addresses = [tensor.data_ptr() for tensor in (x, codes, scale_codes, *others)]
        rest = _largest_code(fmt), get_num_threads()
        if layout.height > 1:
            _native.affine_tiles(addresses[0], 0, *addresses[1:], *_tiles(layout), *rest)
        else:
            _native.affine_encode(*addresses, *_rows(layout), *rest)

    def decode(
        self,
        codes: Tensor,
        scale_codes: Tensor,
        *rest: Tensor | ScaledFormat,
        axis: int | None = None,
    ) -> None:
        zeros, fmt, out = rest
        layout = fmt.layout(codes.shape, axis)
        addresses = [tensor.data_ptr() for tensor in (codes, scale_codes, zeros, out)]
        if layout.height > 1:
            _native.affine_decode_tiles(*addresses, *_tiles(layout), get_num_threads())
        else:
            _native.affine_decode(*addresses, *_rows(layout), get_num_threads())


def _largest_code(fmt: ScaledFormat) -> int:
    return int(fmt.element.max)


def _rows(layout: Layout) -> tuple[int, int, int]:
    return layout.planes * layout.rows, layout.columns, layout.width


def _tiles(layout: Layout) -> tuple[int, int, int, int, int]:
    return layout.planes, layout.rows, layout.columns, layout.height, layout.width


backend = NativeAffine()
