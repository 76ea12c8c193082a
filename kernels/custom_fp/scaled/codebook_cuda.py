"""The CUDA backend of codebooks and affine integers (csrc/scaled/scaled.cuh).

The kernels round to nearest. For the other roundings, torch computes on the GPU.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from custom_fp.cuda import address, blocks, launch
from custom_fp.formats.layout import Layout
from custom_fp.formats.scaled import ScaledFormat
from custom_fp.rounding import Rounding, Rule
from custom_fp.scaled.arithmetic import NEAREST, ScaledReference
from custom_fp.scaled.blocks import single
from custom_fp.scaled.search import search_of
from custom_fp.scaled.tiles_cuda import run

NOTHING = np.uint64(0)
WHOLE = 1 << 14  # longer blocks take a warp too long, so torch finds the range of the tensor first


class CudaCodebook(ScaledReference):
    def quantize(
        self, x: Tensor, fmt: ScaledFormat, rule: Rule, out: Tensor, axis: int | None = None
    ) -> None:
        to = address(out), NOTHING, NOTHING
        _run("codebook", single(x), fmt.layout(x.shape, axis), to, _search(fmt, x))

    def quantize_rows(self, x_RxN: Tensor, fmt: ScaledFormat, out_RxN: Tensor) -> None:
        rows, n = x_RxN.shape
        row = fmt.layout((n,))
        layout = replace(row, rows=rows, shape=(rows, row.scales))
        to = address(out_RxN), NOTHING, NOTHING
        _run("codebook", x_RxN, layout, to, _search(fmt, x_RxN))

    def encode(
        self,
        x: Tensor,
        fmt: ScaledFormat,
        codes: Tensor,
        scales: Tensor,
        *others: Tensor,
        axis: int | None = None,
        rule: Rule = NEAREST,
    ) -> None:
        scales.zero_()  # also if the tensor has no elements
        to = NOTHING, address(codes), address(scales)
        _run("codebook", single(x), fmt.layout(x.shape, axis), to, _search(fmt, x))


class CudaAffine(ScaledReference):
    def quantize(
        self, x: Tensor, fmt: ScaledFormat, rule: Rule, out: Tensor, axis: int | None = None
    ) -> None:
        if rule.rounding is not Rounding.NEAREST_EVEN:
            super().quantize(x, fmt, rule, out, axis)
            return
        to = address(out), NOTHING, NOTHING, NOTHING
        _run("affine", single(x), fmt.layout(x.shape, axis), to, (np.float32(fmt.element.max),))

    def encode(
        self,
        x: Tensor,
        fmt: ScaledFormat,
        codes: Tensor,
        scales: Tensor,
        *zeros: Tensor,
        axis: int | None = None,
        rule: Rule = NEAREST,
    ) -> None:
        if rule.rounding is not Rounding.NEAREST_EVEN or not x.numel():
            super().encode(x, fmt, codes, scales, *zeros, axis=axis, rule=rule)
            return
        to = NOTHING, *map(address, (codes, scales, *zeros))
        _run("affine", single(x), fmt.layout(x.shape, axis), to, (np.float32(fmt.element.max),))


def _run(kind: str, x: Tensor, layout: Layout, to: tuple[Any, ...], parameters: tuple[Any, ...]) -> None:
    n, source = x.numel(), address(x)
    if not n:
        return
    if layout.scales == 1 and n > WHOLE:
        ends = _ends(kind, x)
        launch(f"{kind}_whole", x, blocks(n, 4), source, *to, np.int64(n), address(ends), *parameters)
        return
    if width := run(layout):
        sizes = np.int64(n), np.int32(width)
        launch(f"{kind}_runs", x, blocks(n, 8), source, *to, *sizes, *parameters)
        return
    sizes = layout.planes, layout.rows, layout.columns, layout.height, layout.width
    threads = layout.scales * (1 if layout.width == 1 else 32)
    launch(f"{kind}_tiles", x, blocks(threads, 1), source, *to, *map(np.int64, sizes), *parameters)


def _ends(kind: str, x: Tensor) -> Tensor:
    """Return the largest magnitude, or NaN; for affine integers also the smallest and largest value or zero."""
    low, high = (end.to(torch.float32) for end in torch.aminmax(x))
    largest = torch.maximum(low.abs(), high.abs())
    return largest if kind == "codebook" else torch.stack([largest, low.clamp(max=0.0), high.clamp(min=0.0)])


def _search(fmt: ScaledFormat, x: Tensor) -> tuple[Any, ...]:
    arguments = search_of(fmt.element, str(x.device)).addresses(np.int32)
    return tuple(a if isinstance(a, np.int32) else np.uint64(a) for a in arguments)


codebook, affine = CudaCodebook(), CudaAffine()
