"""Recover the codes and scales of float32 values of a format with scales, for a matrix product.

block_scales.py lists the formats for which this is possible. The recovered codes and scales represent the same values,
bit for bit. They equal the codes and scales of the original rounding to nearest even, with one exception. A tensor of
nvfp4 with few blocks can have the same values under two adjacent scales of the tensor. The scale closest to (largest
magnitude) / (6 * 448) is then used. After stochastic rounding, a block of nvfp4 without a code of .5, 1.5, 3 or 6 may
be recovered with 6 instead of 4 as its largest code, under a smaller scale.

The scale of a whole tensor is not part of the product. The product multiplies codes times the scales of blocks. Its
result is then multiplied by the float32 product of both tensors' scales (alpha of cuBLAS) and rounded to nearest even.

Shapes: Z matrices of a batch, M rows, N columns, K terms, S = ceil(K / number of terms that share a scale), B blocks of
T elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, cast

import torch
from torch import Tensor

from custom_fp.accumulator import Accumulator
from custom_fp.formats.elements import Element
from custom_fp.formats.layout import Layout
from custom_fp.formats.scalar import Format
from custom_fp.formats.scaled_format import ScaledFormat
from custom_fp.operators import table as operators
from custom_fp.rounding import Rule
from custom_fp.scaled import scales
from custom_fp.scaled.blocks import from_blocks, to_blocks
from custom_fp.scaled.scales import divide

LARGEST_CODES = (6.0, 4.0, 3.0, 2.0, 1.5, 1.0, 0.5)
"""The candidates for the largest code of a block in e2m1fn, the most likely first.

After rounding to nearest even, the largest code is below 6 only under the two smallest scales.
"""

ULPS = (0, 1, -1, 2, -2, 3, -3)
"""The candidates for a tensor's scale, as distances in ulps from (largest magnitude) / (6 * 448)."""


class Operands(NamedTuple):
    """The operands of a kernel: float32 values and, for formats with scales, the exponent of each scale (int32).

    A subnormal scale has the exponent of the smallest normal scale.
    """

    a_ZxMxK: Tensor
    b_ZxKxN: Tensor
    a_scales_ZxMxS: Tensor | None = None
    b_scales_ZxSxN: Tensor | None = None


Product = Callable[[Operands, Accumulator, Rule, Tensor], None]


class Found(NamedTuple):
    """A recovered operand: its values, the exponents of their scales (int32), and the scale of the whole tensor."""

    values: Tensor
    scales: Tensor
    of_tensor: Tensor | None


def multiply(product: Product, a: Tensor, b: Tensor, how: Accumulator, rule: Rule, out: Tensor) -> None:
    """Multiply a (Z or 1, M, K) and b (Z or 1, K, N) with the given product.

    Raises:
        ValueError: An operand has values that its format cannot represent.
    """
    if not how.scales:
        product(Operands(a, b), how, rule, out)
        return
    a_format, b_format = cast(tuple[ScaledFormat, ScaledFormat], how.operand_formats)
    of_a, of_b = find(a, a_format, 2, how), find(b, b_format, 1, how)
    product(Operands(of_a.values, of_b.values, of_a.scales, of_b.scales), how, rule, out)
    of_tensors = [t for t in (of_a.of_tensor, of_b.of_tensor) if t is not None]
    if of_tensors:
        alpha = torch.stack(of_tensors).prod()
        operators.quantize.compute(out.double() * alpha.double(), "fp32", out=out)


def find(x: Tensor, fmt: ScaledFormat, axis: int, how: Accumulator) -> Found:
    """Recover the values and scales of one operand.

    Args:
        x: The operand, of shape (Z, M, K) or (Z, K, N).
        fmt: The format of the operand.
        axis: The dimension that is summed over: 2 for the first operand, 1 for the second.
        how: The accumulator, for the error message.

    Raises:
        ValueError: x has values that the format cannot represent.
    """
    layout = fmt.layout(x.shape, axis)
    if x.numel() == 0:
        return Found(x, torch.zeros(1, dtype=torch.int32, device=x.device), None)
    found = (_find_powers_of_two if fmt.scale.format.is_power_of_two else _find_with_mantissa)(
        x, fmt, layout, axis
    )
    if found is None:
        dimension = "last" if axis == 2 else "second to last"
        raise ValueError(
            f"the {'first' if axis == 2 else 'second'} operand of accumulator {how} must have values of {fmt}, in "
            f"blocks along its {dimension} dimension; round it first "
            f"(a rule with format: {fmt}, or custom_fp.quantize(x, {fmt.name!r}, axis={axis - 3}))"
        )
    values, exponents_B, of_tensor = found
    shared = exponents_B.view(layout.shape)
    if isinstance(fmt.block, tuple):  # repeat the scale of each tile for each of its rows or columns
        across = 3 - axis
        shared = shared.repeat_interleave(fmt.block[0], across).narrow(across, 0, x.shape[across])
    return Found(values, shared.to(torch.int32).contiguous(), of_tensor)


def _find_powers_of_two(
    x: Tensor, fmt: ScaledFormat, layout: Layout, axis: int
) -> tuple[Tensor, Tensor, None] | None:
    if not _all_equal(operators.quantize.compute(x, fmt, "nearest_even", "infinity", None, 0, axis), x):
        return None
    codes_B = scales.scale_codes(fmt, to_blocks(x, layout).abs().amax(1), None)
    return x, torch.where(codes_B == 255, 0, codes_B.int() - 127), None  # code 255 is NaN


def _find_with_mantissa(
    x: Tensor, fmt: ScaledFormat, layout: Layout, axis: int
) -> tuple[Tensor, Tensor, Tensor | None] | None:
    x_BxT = to_blocks(x, layout)
    is_nan_B = x_BxT.isnan().any(1)
    finite_BxT = torch.where(is_nan_B[:, None], 0.0, x_BxT)
    if not finite_BxT.isfinite().all():
        return None
    emin = cast(Format, fmt.scale.format.magnitudes).emin
    for near in _estimate_tensor_scale(fmt, finite_BxT):
        values_BxT = (
            finite_BxT if near is None else _round_to_8_digits(finite_BxT.double() / near.double()).float()
        )
        scale_B = _scales(values_BxT, fmt)
        if scale_B is None:
            continue
        for of_tensor in _neighbors(near):
            if _all_equal(_decoded(values_BxT, scale_B, of_tensor), finite_BxT):
                exponents_B = (torch.frexp(scale_B).exponent - 1).clamp(min=emin)
                values_BxT = torch.where(is_nan_B[:, None], torch.nan, values_BxT)
                values = from_blocks(values_BxT, layout).reshape(x.shape).contiguous()
                return (values, exponents_B, of_tensor) if _all_equal(values.isnan(), x.isnan()) else None
    return None


def _estimate_tensor_scale(fmt: ScaledFormat, finite: Tensor) -> Iterator[Tensor | None]:
    """Yield estimates of the tensor's scale. If the format has no such scale, yield None once.

    An estimate may be wrong in its last digits. The first one assumes that the code of the largest magnitude is 6. The
    second one assumes 4, which is possible if elements were not rounded to nearest even.
    """
    if not fmt.has_tensor_scale:
        yield None
        return
    for code in LARGEST_CODES[:2]:
        t = finite.abs().amax() / (code * fmt.largest_scale)
        yield t.clamp(min=scales.SMALLEST_SCALE)


def _neighbors(near: Tensor | None) -> list[Tensor | None]:
    if near is None:
        return [None]
    smallest = scales.SMALLEST_SCALE
    every = [(near.view(torch.int32) + ulps).view(torch.float32) for ulps in ULPS]
    return [t for t in every if t >= smallest]


def _round_to_8_digits(x: Tensor) -> Tensor:
    """Round to 8 binary digits, which is enough, because a code times a scale has at most 6."""
    mantissa, exponent = torch.frexp(x)
    return torch.ldexp((mantissa * 256).round() / 256, exponent)


def _scales(values_BxT: Tensor, fmt: ScaledFormat) -> Tensor | None:
    """Return, for each block, the smallest scale under which its values are codes, or None if a block has none."""
    scale_format = cast(Format, fmt.scale.format.magnitudes)
    largest_B = values_BxT.abs().amax(1).double()
    found_B = torch.where(largest_B == 0, fmt.scale.format.smallest, 0.0).double()
    for code in LARGEST_CODES:
        left = (found_B == 0).nonzero()[:, 0]
        if not len(left):
            break
        scale = divide(largest_B[left], code)
        codes = values_BxT[left].double() / scale[:, None]
        fits = _is_representable(scale, scale_format) & _is_representable(codes, fmt.element).all(1)
        found_B[left] = torch.where(fits, scale, 0.0)
    return found_B.float() if (found_B != 0).all() else None


def _is_representable(x: Tensor, fmt: Element) -> Tensor:
    return operators.quantize.compute(x, fmt, "nearest_even", "saturate").double() == x


def _decoded(values_BxT: Tensor, scale_B: Tensor, of_tensor: Tensor | None) -> Tensor:
    """Decode in the same way as custom_fp.decode: multiply each code by the float32 product of both scales."""
    if of_tensor is None:
        return values_BxT
    codes_BxT = (values_BxT.double() / scale_B.double()[:, None]).float()
    return codes_BxT * (scale_B * of_tensor)[:, None]


def _all_equal(x: Tensor, y: Tensor) -> bool:
    return bool(((x == y) | (x.isnan() & y.isnan())).all())
