"""Affine integers with the compiled extension, csrc/scaled/, on the CPU, rounded to nearest; torch does the rest."""

from __future__ import annotations

import torch
from torch import Tensor, get_num_threads

from custom_fp import _scaled
from custom_fp.formats.affine import Affine
from custom_fp.rounding import Rounding, Rule
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
            sizes = layout.planes, layout.rows, layout.columns, layout.height, layout.width
            _scaled.affine_tiles(*addresses, 0, 0, 0, *sizes, *rest)

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
        if rule.rounding is not Rounding.NEAREST_EVEN or not x.numel():
            super().encode(x, fmt, codes, scales, zeros, axis, rule)
            return
        x = single(x)
        addresses = [tensor.data_ptr() for tensor in (x, codes, scales, zeros)]
        if layout.height > 1:
            sizes = layout.planes, layout.rows, layout.columns, layout.height, layout.width
            _scaled.affine_tiles(addresses[0], 0, *addresses[1:], *sizes, fmt.levels, get_num_threads())
            return
        sizes = layout.planes * layout.rows, layout.columns, layout.width
        _scaled.affine_encode(*addresses, *sizes, fmt.levels, get_num_threads())

    def decode(
        self, codes: Tensor, scales: Tensor, zeros: Tensor, fmt: Affine, out: Tensor, axis: int | None = None
    ) -> None:
        layout = fmt.layout(codes.shape, axis)
        addresses = [tensor.data_ptr() for tensor in (codes, scales, zeros, out)]
        if layout.height > 1:
            sizes = layout.planes, layout.rows, layout.columns, layout.height, layout.width
            _scaled.affine_decode_tiles(*addresses, *sizes, get_num_threads())
            return
        sizes = layout.planes * layout.rows, layout.columns, layout.width
        _scaled.affine_decode(*addresses, *sizes, get_num_threads())

    def join_codes(self, codes_n: Tensor, fmt: Affine, data: Tensor) -> None:
        if fmt.code_bits != 4:
            super().join_codes(codes_n, fmt, data)
            return
        n = codes_n.numel()
        _scaled.join_halves(codes_n.data_ptr(), data.data_ptr(), n, get_num_threads())
        data[(n + 1) // 2 :].zero_()

    def split_codes(self, data: Tensor, n: int, fmt: Affine) -> Tensor:
        if fmt.code_bits != 4:
            return super().split_codes(data, n, fmt)
        codes_n = torch.empty(n, dtype=torch.uint8)
        _scaled.split_halves(data.data_ptr(), codes_n.data_ptr(), n, get_num_threads())
        return codes_n


backend = NativeAffine()
