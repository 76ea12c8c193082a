"""Choose and apply the scales of blocks, in PyTorch: steps 1 to 4 of formats/scaled_format.py, in float32.

Shapes: B blocks of K values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from custom_fp.formats.scale import ScaleFormat
from custom_fp.formats.scaled_format import ScaledFormat
from custom_fp.operators import table as operators

SMALLEST_SCALE = 2.0**-126
"""The smallest scale of a whole tensor, and the smallest scale of the rule minmax."""
_FLOAT32_MAX = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class Scaled:
    """Blocks that were divided by their scales.

    Attributes:
        q: (B, K), the values to round to elements.
        codes: (B,), the codes of the scales: uint8, or float32 if the format of the scales is fp32.
        factors: (B,), the factors by which the elements are multiplied.
        zeros: (B,), the zero points as float32, or None.
    """

    q: Tensor
    codes: Tensor
    factors: Tensor
    zeros: Tensor | None = None


def scale_blocks(fmt: ScaledFormat, x_BxK: Tensor, tensor_scale: Tensor | None, times: float = 1.0) -> Scaled:
    """Choose the scales of blocks and divide by them.

    Args:
        fmt: The format.
        x_BxK: The values of the blocks.
        tensor_scale: The scale of the whole tensor, or None.
        times: A factor by which the scale of the rule amax is multiplied.
    """
    if fmt.scale.rule == "minmax":
        return _scale_by_range(fmt, x_BxK)
    largest_B = x_BxK.abs().amax(1)
    is_finite_Bx1 = largest_B.isfinite()[:, None]
    if fmt.scale.rule == "absmax":
        scales_B = torch.where(is_finite_Bx1[:, 0], largest_B, math.nan)
        divisors_B = torch.where(scales_B > 0, scales_B, 1.0)
        return Scaled(torch.where(is_finite_Bx1, x_BxK / divisors_B[:, None], -1.0), scales_B, scales_B)
    codes_B = scale_codes(fmt, largest_B, tensor_scale, times)
    values_B = values(fmt.scale.format, codes_B)
    reciprocals_B = 1.0 / values_B if tensor_scale is None else 1.0 / tensor_scale / values_B
    q_BxK = torch.where(is_finite_Bx1, x_BxK * reciprocals_B.clamp(max=_FLOAT32_MAX)[:, None], 0.0)
    factors_B = values_B if tensor_scale is None else values_B * tensor_scale
    return Scaled(q_BxK.clamp(fmt.element.least, fmt.element.max), codes_B, factors_B)


def _scale_by_range(fmt: ScaledFormat, x_BxK: Tensor) -> Scaled:
    """Choose scales and zero points by the rule minmax, and apply them."""
    most = fmt.element.max
    low_B, high_B = x_BxK.amin(1).clamp(max=0.0), x_BxK.amax(1).clamp(min=0.0)
    scales_B = divide(high_B - low_B, most).clamp(min=SMALLEST_SCALE)
    is_finite_B = scales_B.isfinite()
    scales_B = torch.where(is_finite_B, scales_B, math.nan)
    zeros_B = (0.0 - (low_B / scales_B).round()).clamp(0, most).nan_to_num(0.0)
    q_BxK = torch.where(is_finite_B[:, None], x_BxK * (1.0 / scales_B)[:, None], 0.0)
    return Scaled(q_BxK, scales_B, scales_B, zeros_B)


def tensor_scale(fmt: ScaledFormat, x: Tensor) -> Tensor:
    """Return the scale of the whole tensor (step 1), computed over the last dimension of x."""
    return tensor_scale_for(fmt, largest_magnitude(x))


def largest_magnitude(x: Tensor) -> Tensor:
    """Return the largest finite magnitude over the last dimension of x, or 0 if there is none."""
    finite = torch.where(x.isfinite(), x.abs(), 0.0)
    return finite.amax(-1) if x.shape[-1] else finite.new_zeros(x.shape[:-1])


def tensor_scale_for(fmt: ScaledFormat, largest: Tensor) -> Tensor:
    """Return the float32 scale of a tensor with the given largest finite magnitude."""
    return divide(largest, fmt.target * fmt.largest_scale).clamp(min=SMALLEST_SCALE)


def divide(x: Tensor, divisor: float) -> Tensor:
    """Return the correctly rounded quotient of a tensor and a number.

    Plain `x / divisor` is not correctly rounded on a GPU, because PyTorch multiplies by the reciprocal of a Python
    scalar.
    """
    return x / torch.full_like(x, divisor)


def scale_codes(
    fmt: ScaledFormat, largest_B: Tensor, tensor_scale: Tensor | None, times: float = 1.0
) -> Tensor:
    """Return the codes of scales (step 2) as uint8, or the scales as float32 if their format is fp32.

    Args:
        fmt: The format.
        tensor_scale: The scale of the whole tensor, or None.
        largest_B: The largest magnitude of each block, or NaN or infinity if the block contains it.
        times: A factor by which the scale of the rule amax is multiplied.
    """
    scale, is_finite_B = fmt.scale.format, largest_B.isfinite()
    largest_B = torch.where(is_finite_B, largest_B, 0.0)
    if fmt.scale.how.is_power:
        is_quotient = fmt.scale.how.number == 1
        wanted_B = divide(largest_B, fmt.target) if is_quotient else largest_B
        codes_B = _exponent(wanted_B, fmt.added) - (0 if is_quotient else fmt.emax) + 127
        codes_B = torch.where(wanted_B > 0, codes_B.clamp(0, 254), 0)
    else:
        wanted_B = divide(largest_B, fmt.target)
        wanted_B = wanted_B if tensor_scale is None else wanted_B / tensor_scale
        wanted_B = (wanted_B * times).clamp(scale.smallest, scale.largest)
        if scale.bits == 32:
            return torch.where(is_finite_B, wanted_B, math.nan)
        if scale.is_power_of_two:
            codes_B = (_exponent(wanted_B, fmt.added) + 127).clamp(0, 254)
        else:
            codes_B = operators.encode.compute(wanted_B, scale.magnitudes)[0]
    assert scale.nan_code is not None  # every 8-bit format of scales has a NaN
    return torch.where(is_finite_B, codes_B, scale.nan_code).to(torch.uint8)


def _exponent(value: Tensor, added: int) -> Tensor:
    """Return floor(log2) of the positive float32 values that result from adding `added` to the bits of `value`."""
    is_small = value < 2.0**-100
    # The bits of subnormal values contain no exponent, so small values are multiplied by 2**24 first.
    bits = torch.where(is_small, value * 2.0**24, value).view(torch.int32)
    return (bits + added >> 23) - 127 - torch.where(is_small, 24, 0)


def values(scale: ScaleFormat, codes_B: Tensor) -> Tensor:
    """Return the float32 values of the codes of scales."""
    return codes_B if scale.bits == 32 else _table(scale, str(codes_B.device))[codes_B.to(torch.int32)]


@cache
def _table(scale: ScaleFormat, device: str) -> Tensor:
    """Return the value of each of 256 codes of scales. Codes that are not scales are NaN."""
    if scale.magnitudes is None:
        powers = torch.exp2(torch.arange(-127, 128, dtype=torch.float64))
        return torch.cat([powers, torch.tensor([math.nan])]).to(torch.float32).to(device)
    found = operators.decode.compute([torch.arange(256, dtype=torch.int32)], scale.magnitudes)
    found[scale.nan_code :] = math.nan
    return found.to(device)
