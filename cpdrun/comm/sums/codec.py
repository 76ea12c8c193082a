"""Scaled rounding, packing and adding: the steps of a sum that touch every element, in terms of `custom_fp`.

The exchange between processes and the emulation share what is said here about numbers; only the exchange packs.

`compat=cpd`: sums as the code of APS's authors forms them where it departs from ours: github.com/drcut/CPD, ddd9a67

What it does otherwise, in the names of `summations/rounded.py`:

    without APS   normal_sum_gradients and kahan_sum_gradients add what workers have, unrounded: acc = Q(acc + g_w), the
                  addition in float32. Nothing that fits k bits could be sent: gradients travel in float32. Ours rounds
                  what travels, q_w = Q(g_w). In two levels the sums of the first are rounded already.
    Kahan         of two levels only the second, between nodes, knows it; a node adds its own workers plainly
                  (example/ResNet18/tools/mix.py).

What is not reproduced, for it is an error of theirs: E of APS from a float32 log2, too small by one just above some
powers of two; an all-zero layer, which becomes NaN; shifts beyond 2^127; and three errors of its cast: ties of
subnormals decided without the bits shifted away, values that round past the largest one left finite and outside the
format, float32 subnormals flushed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import custom_fp
import torch
from custom_fp import Format
from torch import Tensor

from cpdrun.comm.sums.sum import RandomStream, Sum


def _rounding_options(sum: Sum, stream: RandomStream | None) -> dict[str, Any]:
    """How to round, as custom_fp's functions take it. A stochastic rounding needs a draw."""
    rule: dict[str, Any] = {"rounding": sum.rounding, "overflow": sum.overflow}
    return rule if stream is None else rule | {"seed": stream.seed(), "offset": stream.start}


def scale(x: Tensor, shift: int) -> Tensor:
    """x * 2^shift in float32, rounded once, for any shift."""
    return x if shift == 0 else custom_fp.scale_pow2(x, shift)


def quantize_scaled(x: Tensor, shift: int, sum: Sum, stream: RandomStream | None = None) -> Tensor:
    """Q(x * 2^shift), one rounding of the exact product.

    x: float32 of any shape.
    """
    if shift and _float32_will_do(shift, sum):
        product = x * 2.0**shift
        return custom_fp.quantize(product, sum.fmt, out=product, **_rounding_options(sum, stream))
    exact = x.to(torch.float64) * 2.0**shift if shift else x
    return custom_fp.quantize(exact, sum.fmt, **_rounding_options(sum, stream))


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


def accumulate(values: Sequence[Tensor], sum: Sum, stream: RandomStream | None = None) -> Tensor:
    """The sum of values of the format, in the order given, every partial sum rounded to the format; or of all at once,
    rounded once, where the order of the sum says so."""
    return custom_fp.accumulate(
        values, sum.fmt, kahan=sum.kahan, **sum.ordering.accumulate_options, **_rounding_options(sum, stream)
    )


# ---- packed bytes, one-dimensional tensors


def round_and_pack(x: Tensor, shift: int, sum: Sum, stream: RandomStream | None, *, out: Tensor) -> None:
    """pack(Q(x * 2^shift))."""
    custom_fp.pack(x, sum.fmt, shift=shift, out=out, **_rounding_options(sum, stream))


def add_packed(
    payloads: Sequence[Tensor], numel: int, sum: Sum, stream: RandomStream | None, *, out: Tensor
) -> None:
    """pack(accumulate(unpacked payloads)), in the order given."""
    how = {"kahan": sum.kahan, **sum.ordering.accumulate_options, **_rounding_options(sum, stream)}
    custom_fp.accumulate_packed(payloads, sum.fmt, numel, out=out, **how)


def add_unrounded(values: Sequence[Tensor], fmt: Format, *, kahan: bool) -> Tensor:
    """Float32 values in the order given, each addition in float32 and then rounded to the format, nearest even."""

    def rounded(x: Tensor) -> Tensor:
        return custom_fp.quantize(x, fmt)

    total = torch.zeros_like(values[0])
    lost = torch.zeros_like(total)
    for value in values:
        if not kahan:
            total = rounded(total + value)
            continue
        corrected = rounded(value - lost)
        new_total = rounded(total + corrected)
        lost = rounded(rounded(new_total - total) - corrected)
        lost = torch.where(torch.isfinite(new_total), lost, 0.0)  # as custom_fp.accumulate: inf stays inf
        total = new_total
    return total
