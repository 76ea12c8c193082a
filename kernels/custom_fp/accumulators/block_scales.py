"""The formats with scales that the operands of an accumulator can have. This module does not import torch.

A product of float32 values needs their scales, because terms are aligned by the exponents of codes and scales. A
subnormal code or a zero also adds the exponent of its scale, and a group of products is aligned by its scales alone.
The scales can be recovered from float32 values in these formats:

    e8m0, floor      MX 1.0. The largest code of a block has the largest exponent, whatever the rounding of elements, or
                     the scale is the smallest one. Rounding again therefore finds the same scale.
    e4m3fn, amax     NVFP4, only for groups. If elements were rounded to nearest even, the largest code is 6 (4 or 6
                     under a scale of 2**-8, any under 2**-9).

With other rules, they cannot be recovered: rceil, even and others put the largest code of some blocks at either end of
a binade, and 4over6 puts it at 4 or 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from custom_fp.formats.scalar import Format
from custom_fp.formats.scaled_format import ScaledFormat

GROUP_DIGITS = 8
"""Products of e2m1 elements under scales in e8m0 or e4m3fn are multiples of 2**(e - 8), where e is the sum of the
exponents of both scales. The exponent of a subnormal scale is that of the smallest normal one."""


def problem(operands: Sequence[Any], group: int, block: int, aligned: bool) -> str | None:
    """Return what is wrong with the operands of an accumulator, or None.

    Args:
        operands: The formats of the two factors; empty if none are given.
        group: The number of products that are added exactly.
        block: The number of terms of a block.
        aligned: Whether the accumulator has a width and no join.
    """
    scaled = [fmt for fmt in operands if fmt.has_scales]
    if not scaled:
        alone = f"group={group} adds products under one pair of scales; it goes with of_mxfp4 or of_nvfp4"
        return alone if group > 1 else None
    if len(scaled) < len(operands):
        return f"operands are {operands[0]} and {operands[1]}; either both have scales, or neither"
    if not aligned:
        return f"operands of {scaled[0]} are aligned with their scales; they go with width and without join"
    for fmt in scaled:
        if what := _unknown_scales(fmt, group):
            return what
    size = size_of(scaled[0])
    assert size is not None  # _unknown_scales refuses formats without blocks
    if any(size_of(fmt) != size for fmt in scaled):
        return f"operands are {scaled[0]} and {scaled[1]}; both must have blocks of one size"
    if block % group or size % group:
        return f"group={group} must divide block={block} and the {size} elements of a scale"
    return None


def _unknown_scales(fmt: ScaledFormat, group: int) -> str | None:
    if not isinstance(fmt.element, Format) or size_of(fmt) is None:
        return f"operands is {fmt}; allowed with scales: floats, in blocks along an axis or in square tiles"
    if group > 1 and fmt.element.name != "e2m1fn":
        return f"group={group} adds products of e2m1fn exactly; {fmt} has elements of {fmt.element}"
    how = (fmt.scale.format.name, fmt.scale.rule, fmt.scale.margin)
    if how == ("e8m0", "floor", 0):
        return None
    if how == ("e4m3fn", "amax", 0):
        return None if group > 1 else f"the scales of {fmt} are not powers of two; they go with group_16"
    known = "rule floor with e8m0 (mxfp8_e4m3), nvfp4"
    return f"operands is {fmt}, whose scales float32 values do not determine; allowed: {known}"


def size_of(fmt: ScaledFormat) -> int | None:
    """Return the number of terms of a dot product under one scale."""
    if isinstance(fmt.block, tuple):
        return fmt.block[0] if fmt.block[0] == fmt.block[1] else None
    return fmt.block if isinstance(fmt.block, int) else None


def elements_of(fmt: Format | ScaledFormat) -> Format:
    return cast(Format, fmt.element) if isinstance(fmt, ScaledFormat) else fmt  # `problem` allows no others
