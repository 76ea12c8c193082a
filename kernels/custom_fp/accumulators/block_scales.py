"""The scaled formats that the operands of an accumulator can use. This module does not import torch.

A product of float32 values of such formats requires the scales, because terms are aligned by the exponents of codes and
scales. The exponent of the scale counts even if the code is subnormal or zero, and a group of products is aligned by
its scales alone. For these formats, the scales can be recovered from float32 values:

    e8m0, floor      MX 1.0. However elements are rounded, the largest code of a block has the largest exponent unless
                     the scale is the smallest one. Rounding again therefore finds the same scale.
    e4m3fn, amax     NVFP4, only for groups. If elements were rounded to nearest even, the largest code is 6. Under a
                     scale of 2**-8 it can also be 4, and under a scale of 2**-9 it can be any code.

With other rules, scales cannot be recovered. With rceil, even and others, the largest code of a block can be at either
end of a binade, and with 4over6 it can be 4 or 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from custom_fp.formats.scalar import Format
from custom_fp.formats.scaled_format import ScaledFormat

GROUP_DIGITS = 8
"""Products of e2m1 elements under scales in e8m0 or e4m3fn are multiples of 2**(e - 8), where e is the sum of the
exponents of both scales. A subnormal scale has the exponent of the smallest normal scale."""


def problem(operands: Sequence[Any], group: int, block: int, aligned: bool) -> str | None:
    """Return a message that says what is wrong with the operands of an accumulator, or None.

    Args:
        operands: The formats of the two factors, or an empty sequence.
        group: The number of products that are added exactly before they are aligned.
        block: The number of terms in a block.
        aligned: Whether the accumulator has a width and no join.
    """
    scaled = [fmt for fmt in operands if fmt.has_scales]
    if not scaled:
        alone = f"group={group} requires operands whose products share scales; add of_mxfp4 or of_nvfp4"
        return alone if group > 1 else None
    if len(scaled) < len(operands):
        return f"operands are {operands[0]} and {operands[1]}; either both must have scales, or neither"
    if not aligned:
        return f"operands of {scaled[0]} are aligned with their scales, which requires width, without join"
    for fmt in scaled:
        if what := _scale_problem(fmt, group):
            return what
    size = size_of(scaled[0])
    assert size is not None  # _scale_problem rejects formats without blocks
    if any(size_of(fmt) != size for fmt in scaled):
        return f"operands are {scaled[0]} and {scaled[1]}; both must have blocks of the same size"
    if block % group or size % group:
        return f"group={group} must divide block={block} and the number of elements under a scale, {size}"
    return None


def _scale_problem(fmt: ScaledFormat, group: int) -> str | None:
    if not isinstance(fmt.element, Format) or size_of(fmt) is None:
        return f"operands is {fmt}; allowed with scales: floats, in blocks along an axis or in square tiles"
    if group > 1 and fmt.element.name != "e2m1fn":
        return f"group={group} requires elements of e2m1fn, but {fmt} has elements of {fmt.element}"
    how = (fmt.scale.format.name, fmt.scale.rule, fmt.scale.margin)
    if how == ("e8m0", "floor", 0):
        return None
    if how == ("e4m3fn", "amax", 0):
        return None if group > 1 else f"the scales of {fmt} are not powers of two, which requires group_16"
    known = "rule floor with e8m0 (mxfp8_e4m3), nvfp4"
    return f"operands is {fmt}, whose scales cannot be recovered from float32 values; allowed: {known}"


def size_of(fmt: ScaledFormat) -> int | None:
    """Return the number of terms of a dot product that share a scale, or None if it depends on the tensor."""
    if isinstance(fmt.block, tuple):
        return fmt.block[0] if fmt.block[0] == fmt.block[1] else None
    return fmt.block if isinstance(fmt.block, int) else None


def elements_of(fmt: Format | ScaledFormat) -> Format:
    return (
        cast(Format, fmt.element) if isinstance(fmt, ScaledFormat) else fmt
    )  # `problem` rejects other elements
