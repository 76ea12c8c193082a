"""Scales of blocks in torch: steps 1 to 3 of formats/block.py, in float32 as they stand there. B blocks."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from custom_fp.formats.block import POWERS, BlockFormat
from custom_fp.formats.scale import ScaleFormat
from custom_fp.operators import table as operators

SMALLEST_TENSOR_SCALE = 2.0**-126
_FLOAT32_MAX = torch.finfo(torch.float32).max


def of_tensor(fmt: BlockFormat, x: Tensor) -> Tensor:
    """Step 1 over the last dimension of x, which is left out: t."""
    finite = torch.where(x.isfinite(), x.abs(), 0.0)
    largest = finite.amax(-1) if x.shape[-1] else finite.new_zeros(x.shape[:-1])
    return (largest / (fmt.target * fmt.largest_scale)).clamp(min=SMALLEST_TENSOR_SCALE)


def of_blocks(fmt: BlockFormat, largest_B: Tensor, tensor_scale: Tensor | None, times: float = 1.0) -> Tensor:
    """Step 2: the codes of the scales, uint8, or float32 for fp32. largest_B: NaN or inf where a block holds one.
    times: of what the rule amax wants."""
    scale, finite_B = fmt.scaled_by, largest_B.isfinite()
    largest_B = torch.where(finite_B, largest_B, 0.0)
    if fmt.rule in POWERS:
        wanted_B = largest_B / fmt.of.max if fmt.rule == "rceil" else largest_B
        code_B = _exponent(wanted_B, fmt.added) - (0 if fmt.rule == "rceil" else fmt.emax) + 127
        code_B = torch.where(wanted_B > 0, code_B.clamp(0, 254), 0)
    else:
        wanted_B = largest_B / fmt.target
        wanted_B = wanted_B if tensor_scale is None else wanted_B / tensor_scale
        wanted_B = (wanted_B * times).clamp(scale.smallest, scale.largest)
        if scale.bits == 32:
            return torch.where(finite_B, wanted_B, math.nan)
        if scale.is_power_of_two:
            code_B = (_exponent(wanted_B, fmt.added) + 127).clamp(0, 254)
        else:
            code_B = operators.encode.compute(wanted_B, scale.magnitudes)[0]
    return torch.where(finite_B, code_B, scale.nan_code).to(torch.uint8)


def _exponent(value: Tensor, added: int) -> Tensor:
    """floor(log2) of positive values after their bits were raised by `added`."""
    is_small = value < 2.0**-100  # made larger, for the bits of subnormal values have no exponent
    bits = torch.where(is_small, value * 2.0**24, value).view(torch.int32)
    return (bits + added >> 23) - 127 - torch.where(is_small, 24, 0)


def values(scale: ScaleFormat, scales_B: Tensor) -> Tensor:
    """The float32 values of scales."""
    return scales_B if scale.bits == 32 else _table(scale, str(scales_B.device))[scales_B.to(torch.int32)]


def reciprocals(values_B: Tensor, tensor_scale: Tensor | None) -> Tensor:
    """Step 3: what the elements of each block are multiplied by."""
    return (1.0 / values_B if tensor_scale is None else 1.0 / tensor_scale / values_B).clamp(max=_FLOAT32_MAX)


@cache
def _table(scale: ScaleFormat, device: str) -> Tensor:
    """By code, 256 of them; NaN for those that are none."""
    if scale.magnitudes is None:
        powers = torch.exp2(torch.arange(-127, 128, dtype=torch.float64))
        return torch.cat([powers, torch.tensor([math.nan])]).to(torch.float32).to(device)
    found = operators.decode.compute([torch.arange(256, dtype=torch.int32)], scale.magnitudes)
    found[scale.nan_code :] = math.nan
    return found.to(device)
