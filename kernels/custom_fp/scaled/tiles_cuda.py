"""The CUDA backend of formats with scales (csrc/tiles/tiles.cuh).

Torch finds the largest magnitude of a whole tensor, and packs codes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from custom_fp.cuda import address, blocks, launch, mode_name, rule_args
from custom_fp.formats.layout import Layout
from custom_fp.formats.scaled import ScaledFormat
from custom_fp.rounding import Rule
from custom_fp.scaled import scales
from custom_fp.scaled.arithmetic import NEAREST, ScaledReference
from custom_fp.scaled.blocks import single

NOTHING = np.uint64(0)
WHOLE = 1 << 14  # longer blocks take a warp too long, so torch finds their largest magnitude first
RUNS = (16, 32, 64, 128)  # sizes of contiguous blocks that have kernels of their own
GROUP = 128  # elements that share random words


class CudaTiles(ScaledReference):
    def quantize(
        self, x: Tensor, fmt: ScaledFormat, rule: Rule, out: Tensor, axis: int | None = None
    ) -> None:
        if x.numel():
            x = single(x)
            t = scales.tensor_scale(fmt, x.view(-1)) if fmt.has_tensor_scale else None
            _run(x, fmt, fmt.layout(x.shape, axis), rule, t, (address(out), NOTHING, NOTHING))

    def encode(
        self,
        x: Tensor,
        fmt: ScaledFormat,
        codes: Tensor,
        scales_: Tensor,
        *tensor_scale: Tensor,
        axis: int | None = None,
        rule: Rule = NEAREST,
    ) -> None:
        if not x.numel():
            super().encode(x, fmt, codes, scales_, *tensor_scale, axis=axis, rule=rule)
            return
        x = single(x)
        t = scales.tensor_scale(fmt, x.view(-1)) if fmt.has_tensor_scale else None
        _run(x, fmt, fmt.layout(x.shape, axis), rule, t, (NOTHING, address(codes), address(scales_)))
        for found in tensor_scale:
            found.copy_(t)

    def decode(
        self, codes: Tensor, scales_: Tensor, *rest: Tensor | ScaledFormat, axis: int | None = None
    ) -> None:
        *tensor_scale, fmt, out = rest
        if codes.numel():
            layout, n = fmt.layout(codes.shape, axis), codes.numel()
            to = address(scales_), address(codes), address(out)
            scaling = (
                address(_scaling(fmt, str(codes.device))),
                address(tensor_scale[0]) if tensor_scale else NOTHING,
            )
            if width := run(layout):
                launch("scaled_decode_runs", codes, blocks(n, 8), *to, np.int64(n), np.int32(width), *scaling)
            else:
                launch("scaled_decode", codes, _grid(layout), *to, *_sizes(layout), *scaling)


def _run(
    x: Tensor, fmt: ScaledFormat, layout: Layout, rule: Rule, t: Tensor | None, to: tuple[Any, ...]
) -> None:
    tensor_scale = NOTHING if t is None else address(t)
    args = address(_scaling(fmt, str(x.device))), tensor_scale, *rule_args(rule)
    n, width = x.numel(), run(layout)
    shares_words = not rule.is_stochastic or rule.flat[3] % GROUP == 0
    if width and shares_words and fmt.scale.rule != "4over6":
        sizes = np.int64(n), np.int32(width)
        launch(f"scaled_runs_{mode_name(rule)}", x, blocks(n, 8), address(x), *to, *sizes, *args)
    elif layout.scales == 1 and n > WHOLE and fmt.scale.rule != "4over6":
        largest = x.abs().amax()
        whole = np.int64(n), address(largest)
        grid = blocks(n, 8 if rule.is_stochastic else 4)
        launch(f"scaled_whole_{mode_name(rule)}", x, grid, address(x), *to, *whole, *args)
    else:
        launch(f"scaled_tiles_{mode_name(rule)}", x, _grid(layout), address(x), *to, *_sizes(layout), *args)


def run(layout: Layout) -> int:
    """Return the size of contiguous blocks that kernels named _runs can process; 0 if the blocks are different."""
    rows = layout.as_rows
    return rows.width if rows.planes == rows.rows == 1 and rows.width in RUNS else 0


def _sizes(layout: Layout) -> tuple[np.int64, ...]:
    sizes = layout.planes, layout.rows, layout.columns, layout.height, layout.width
    return tuple(np.int64(size) for size in sizes)


def _grid(layout: Layout) -> tuple[int, ...]:
    return blocks(layout.scales * (1 if layout.width == 1 else 32), 1)


@cache
def _scaling(fmt: ScaledFormat, device: str) -> Tensor:
    """Return the struct `Scaling` of csrc/tiles/tiles.h in the device's memory."""
    words = [part if isinstance(part, int) else np.float32(part).view(np.uint32).item() for part in fmt.parts]
    return torch.from_numpy(np.array(words, np.uint32).view(np.int32)).to(device)


backend = CudaTiles()
