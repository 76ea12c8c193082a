"""Affine integers with the compiled extension, csrc/scaled/, on the CPU, rounded to nearest; torch does the rest."""

from __future__ import annotations

from torch import Tensor, get_num_threads

from custom_fp import _scaled
from custom_fp.formats.affine import Affine
from custom_fp.rule import Rounding, Rule
from custom_fp.scaled.affine import NEAREST, AffineBlocks
from custom_fp.scaled.blocks import single


class NativeAffine(AffineBlocks):
    def quantize(self, x: Tensor, fmt: Affine, rule: Rule, out: Tensor, axis: int | None = None) -> None:
        layout = fmt.layout(x.shape, axis)
        if rule.rounding is not Rounding.NEAREST_EVEN or not x.numel():
            super().quantize(x, fmt, rule, out, axis)
            return
        x = single(x)
        addresses, rest = (x.data_ptr(), out.data_ptr()), (fmt.levels, get_num_threads())
        if layout.height == 1:
            rows = layout.planes * layout.rows
            _scaled.affine_quantize(*addresses, rows, layout.columns, layout.width, *rest)
        elif layout.width == 1:
            sizes = layout.planes, layout.rows, layout.columns, layout.height
            _scaled.affine_columns(*addresses, *sizes, *rest)
        else:
            super().quantize(x, fmt, rule, out, axis)

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
        if rule.rounding is not Rounding.NEAREST_EVEN or not x.numel() or layout.height > 1:
            super().encode(x, fmt, codes, scales, zeros, axis, rule)
            return
        x = single(x)
        addresses = [tensor.data_ptr() for tensor in (x, codes, scales, zeros)]
        sizes = layout.planes * layout.rows, layout.columns, layout.width
        _scaled.affine_encode(*addresses, *sizes, fmt.levels, get_num_threads())


backend = NativeAffine()
