"""Scaled rounding, packing and adding: the steps of a sum that touch every element, in terms of `custom_fp`.

The exchange between processes and the emulation share what is said here about numbers; only the exchange packs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import custom_fp
import torch
from torch import Tensor

from cpdrun.comm.sums.draw import Draw
from cpdrun.comm.sums.sum import Sum


def _rule(sum: Sum, draw: Draw | None) -> dict[str, Any]:
    """How to round, as custom_fp's functions take it. A stochastic rounding needs a draw."""
    rule: dict[str, Any] = {"rounding": sum.rounding, "overflow": sum.overflow}
    return rule if draw is None else rule | {"seed": draw.seed(), "offset": draw.start}


def scale(x: Tensor, shift: int) -> Tensor:
    """x * 2^shift in float32, rounded once, for any shift."""
    return x if shift == 0 else custom_fp.scale_pow2(x, shift)


def quantize_scaled(x: Tensor, shift: int, sum: Sum, draw: Draw | None = None) -> Tensor:
    """Q(x * 2^shift), one rounding of the exact product.

    x: float32 of any shape.
    """
    if shift and _float32_will_do(shift, sum):
        product = x * 2.0**shift
        return custom_fp.quantize(product, sum.fmt, out=product, **_rule(sum, draw))
    exact = x.to(torch.float64) * 2.0**shift if shift else x
    return custom_fp.quantize(exact, sum.fmt, **_rule(sum, draw))


def _float32_will_do(shift: int, sum: Sum) -> bool:
    """Whether rounding to nearest cannot tell x * 2^shift in float32 from the exact product.

    2^shift must be a normal number. Upwards, only what overflows any format is inexact, which overflow=propagate tells
    from infinity. Downwards, bits are lost below 2^-149 of products under 2^-126, which round to zero in a format whose
    smallest value is above 2^-120. A double holds the product of any float32 and any shift. A format of another
    kind (a posit) may know what is finite from infinity, and the smallest value from zero.
    """
    if sum.fmt.exponent_bits is None:
        return False
    smallest = sum.fmt.emin - sum.fmt.mantissa_bits
    is_near = sum.rounding == "nearest_even" and -126 <= shift <= 127
    return is_near and (sum.overflow != "propagate" if shift > 0 else smallest > -120)


def accumulate(values: Sequence[Tensor], sum: Sum, draw: Draw | None = None) -> Tensor:
    """The sum of values of the format, in the order given, every partial sum rounded to the format; or of all at once,
    rounded once, where the order of the sum says so."""
    return custom_fp.accumulate(values, sum.fmt, kahan=sum.kahan, **sum.ordering.adding, **_rule(sum, draw))


# ---- packed bytes, one-dimensional tensors


def round_and_pack(x: Tensor, shift: int, sum: Sum, draw: Draw | None, *, out: Tensor) -> None:
    """pack(Q(x * 2^shift))."""
    custom_fp.pack(x, sum.fmt, shift=shift, out=out, **_rule(sum, draw))


def add_packed(payloads: Sequence[Tensor], numel: int, sum: Sum, draw: Draw | None, *, out: Tensor) -> None:
    """pack(accumulate(unpacked payloads)), in the order given."""
    how = {"kahan": sum.kahan, **sum.ordering.adding, **_rule(sum, draw)}
    custom_fp.accumulate_packed(payloads, sum.fmt, numel, out=out, **how)
