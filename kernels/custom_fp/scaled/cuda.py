"""The CUDA backend for formats with scales (csrc/tiles/tiles.cuh and csrc/scaled/scaled_kernels.cuh).

PyTorch operators pack codes, and decode codebooks and integers with zero points. Integers with zero points are also
rounded by PyTorch operators, except with rounding to nearest even, which has a CUDA kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from custom_fp.cuda import address, blocks, largest_magnitude, launch, mode_name, rule_args
from custom_fp.formats.elements import ValueTable
from custom_fp.formats.layout import Layout
from custom_fp.formats.scaled_format import ScaledFormat
from custom_fp.rounding import Rounding, Rule
from custom_fp.scaled import scales
from custom_fp.scaled.arithmetic import NEAREST, ScaledReference
from custom_fp.scaled.search import search_of

NOTHING = np.uint64(0)
# If a tensor is a single block longer than this, PyTorch computes its largest magnitude first, because one
# warp would take too long.
WHOLE = 1 << 14
RUNS = (16, 32, 64, 128)  # sizes of contiguous blocks that have their own kernels
GROUP = 128  # the number of elements whose random bits come from the same random words


class CudaScaled(ScaledReference):
    """The CUDA kernels for scaled formats, selected by operator and by `ScaledFormat.kernels`."""

    def kernel(
        self, operator: str, fmt: ScaledFormat, layout: Layout, rule: Rule = NEAREST
    ) -> Callable[..., None] | None:
        is_rounding, kind = operator in ("quantize", "encode"), fmt.kernels
        if kind == "tiles" and is_rounding:
            return partial(_round_tiles, fmt, layout, rule)
        if kind == "tiles" and operator == "decode":
            return partial(_decode_tiles, fmt, layout)
        if kind is not None and kind != "tiles" and is_rounding and rule.rounding is Rounding.NEAREST_EVEN:
            return partial(_round, kind, fmt, layout)
        return None


def _targets(out: tuple[Tensor, ...], count: int) -> list[np.uint64]:
    """Return the addresses of a kernel's outputs: the address of values, then `count` addresses of codes and scales."""
    found = [*map(address, out)] if len(out) == 1 else [NOTHING, *map(address, out)]
    return [*found, *[NOTHING] * count][: count + 1]


def _round_tiles(fmt: ScaledFormat, layout: Layout, rule: Rule, x: Tensor, *out: Tensor) -> None:
    t = scales.tensor_scale_for(fmt, largest_magnitude(x).float()) if fmt.has_tensor_scale else None
    to = _targets(out, 2)
    args = address(_scaling(fmt, str(x.device))), NOTHING if t is None else address(t), *rule_args(rule)
    n, width = x.numel(), run(layout)
    shares_words = not rule.is_stochastic or rule.flat[3] % GROUP == 0
    if width and shares_words and fmt.scale.rule != "4over6":
        sizes = np.int64(n), np.int32(width)
        launch(f"scaled_runs_{mode_name(rule)}", x, blocks(n, 8), address(x), *to, *sizes, *args)
    elif layout.scales == 1 and n > WHOLE and fmt.scale.rule != "4over6":
        ends = _ends("codebook", x)
        whole = np.int64(n), address(ends)
        grid = blocks(n, 8 if rule.is_stochastic else 4)
        launch(f"scaled_whole_{mode_name(rule)}", x, grid, address(x), *to, *whole, *args)
    else:
        launch(f"scaled_tiles_{mode_name(rule)}", x, _grid(layout), address(x), *to, *_sizes(layout), *args)
    if t is not None and len(out) > 1:
        out[2].copy_(t)


def _decode_tiles(fmt: ScaledFormat, layout: Layout, codes: Tensor, scales_: Tensor, *rest: Tensor) -> None:
    *tensor_scale, out = rest
    to, n = (address(scales_), address(codes), address(out)), codes.numel()
    scaling = (
        address(_scaling(fmt, str(codes.device))),
        address(tensor_scale[0]) if tensor_scale else NOTHING,
    )
    if width := run(layout):
        launch("scaled_decode_runs", codes, blocks(n, 8), *to, np.int64(n), np.int32(width), *scaling)
    else:
        launch("scaled_decode", codes, _grid(layout), *to, *_sizes(layout), *scaling)


def _round(kind: str, fmt: ScaledFormat, layout: Layout, x: Tensor, *out: Tensor) -> None:
    """Round to a codebook or to integers with zero points."""
    parameters: tuple[Any, ...]
    if isinstance(fmt.element, ValueTable):
        arguments = search_of(fmt.element, str(x.device)).addresses(np.int32)
        parameters = tuple(a if isinstance(a, np.int32) else np.uint64(a) for a in arguments)
    else:
        parameters = (np.float32(fmt.element.max),)
    n, to = x.numel(), (address(x), *_targets(out, 2 + fmt.zero_point))
    if layout.scales == 1 and n > WHOLE:
        ends = _ends(kind, x)
        launch(f"{kind}_whole", x, blocks(n, 4), *to, np.int64(n), address(ends), *parameters)
    elif width := run(layout):
        launch(f"{kind}_runs", x, blocks(n, 8), *to, np.int64(n), np.int32(width), *parameters)
    else:
        launch(f"{kind}_tiles", x, _grid(layout), *to, *_sizes(layout), *parameters)


def _ends(kind: str, x: Tensor) -> Tensor:
    """Return the largest magnitude, or NaN if x has one. For affine integers, append min(x, 0), max(x, 0)."""
    low, high = (end.to(torch.float32) for end in torch.aminmax(x))
    largest = torch.maximum(low.abs(), high.abs())
    return largest if kind == "codebook" else torch.stack([largest, low.clamp(max=0.0), high.clamp(min=0.0)])


def run(layout: Layout) -> int:
    """Return the size of the contiguous blocks, or 0 if the kernels named _runs cannot process these blocks."""
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


backend = CudaScaled()
