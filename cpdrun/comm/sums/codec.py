"""Elementwise steps of a sum, computed with `custom_fp`: scaled rounding, packing and adding.

The exchange between processes and the emulation in one process share this module. Only the exchange packs values.

`compat=cpd` adds gradients as the APS authors' code does (github.com/drcut/CPD, ddd9a67). That code differs
from the steps of `rounded_sum.py` in two ways:

    without APS   normal_sum_gradients and kahan_sum_gradients add the workers' unrounded values: acc = Q(acc + g_w),
                  where the addition is in float32. Such values do not fit in k bits, so gradients travel in float32.
                  Our definition rounds the values that are sent, q_w = Q(g_w). With two levels, the sums of the first
                  level are already rounded.
    Kahan         Only the second of two levels, between nodes, uses Kahan summation. A node adds its own workers
                  plainly (example/ResNet18/tools/mix.py).

The following errors of that code are not reproduced:

    - It computes E of APS with a float32 log2, which is too small by one just above some powers of two.
    - An all-zero layer becomes NaN.
    - A scale may exceed 2^127.
    - Its rounding decides ties of subnormals without the bits that were shifted out, does not overflow values that are
      rounded past the largest one, and flushes float32 subnormals to zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import custom_fp
import torch
from custom_fp.formats.protocol import NumberFormat
from torch import Tensor

from cpdrun.comm.sums.sum import RandomStream, Sum


def _rounding_options(sum: Sum, stream: RandomStream | None) -> dict[str, Any]:
    """Return the rounding options for functions of custom_fp. Stochastic rounding needs a random stream."""
    rule: dict[str, Any] = {"rounding": sum.rounding, "overflow": sum.overflow}
    return rule if stream is None else rule | {"seed": stream.seed(), "offset": stream.start}


def scale(x: Tensor, shift: int | Sequence[int]) -> Tensor:
    """Return x * 2^shift in float32, rounded once.

    If `shift` is a sequence, element j is the shift of x[..., j, :], as in `quantize_scaled`.
    """
    if isinstance(shift, int):
        return x if shift == 0 else custom_fp.scale_pow2(x, shift)
    if not any(shift):
        return x
    is_normal = all(-126 <= s <= 127 for s in shift)
    return (x * _power(shift, x, torch.float32 if is_normal else torch.float64)).float()


def quantize_scaled(
    x: Tensor, shift: int | Sequence[int], sum: Sum, stream: RandomStream | None = None
) -> Tensor:
    """Return Q(x * 2^shift), with a single rounding of the exact product.

    Args:
        x: A float32 tensor of any shape.
        shift: The exponent of the power of two. If it is a sequence, element j is the shift of x[..., j, :].
        sum: The description of the sum, which contains the format and the rounding mode.
        stream: The random numbers for stochastic rounding. None for the other rounding modes.
    """
    shifts = [shift] if isinstance(shift, int) else shift
    if not any(shifts):
        return custom_fp.quantize(x, sum.fmt, **_rounding_options(sum, stream))
    in_float32 = all(s == 0 or _float32_will_do(s, sum) for s in shifts)
    dtype = torch.float32 if in_float32 else torch.float64
    product = x.to(dtype) * _power(shift, x, dtype)
    return custom_fp.quantize(
        product, sum.fmt, out=product if in_float32 else None, **_rounding_options(sum, stream)
    )


def _power(shift: int | Sequence[int], x: Tensor, dtype: torch.dtype) -> float | Tensor:
    """Return 2^shift. For a sequence of G shifts, return a tensor of shape (G, 1) on the device of x."""
    if isinstance(shift, int):
        return 2.0**shift
    return torch.tensor([2.0**s for s in shift], dtype=dtype, device=x.device)[:, None]


def _float32_will_do(shift: int, sum: Sum) -> bool:
    """Return whether the product x * 2^shift may be computed in float32 before it is rounded to the format.

    The result must be the same as for the exact product. This requires that 2^shift is a normal float32 number and that
    values are rounded to nearest. The float32 product is then inexact in two cases, neither of which changes the
    result:

        shift > 0   The product overflows. It would overflow in the format, too. (With overflow=propagate, the result
                    would differ, because the product counts as infinity.)
        shift < 0   The product is below 2^-126 and loses bits below 2^-149. It is rounded to zero in any case if the
                    smallest value of the format is above 2^-120.

    In all other cases, float64 is used, which represents the product of any float32 value and any shift exactly.
    Formats that are not binary floating-point formats, such as posits, always use float64, because they may round large
    finite values differently from infinity, and tiny values differently from zero.
    """
    if sum.fmt.exponent_bits is None:
        return False
    fmt: Any = sum.fmt  # a binary floating-point format
    smallest = fmt.emin - fmt.mantissa_bits
    is_near = sum.rounding == "nearest_even" and -126 <= shift <= 127
    return is_near and (sum.overflow != "propagate" if shift > 0 else smallest > -120)


def accumulate(values: Sequence[Tensor], sum: Sum, stream: RandomStream | None = None) -> Tensor:
    """Return the sum of values of the format, added in the given order. Every partial sum is rounded to the format.

    If the order of the sum adds all values at once, only the result is rounded.
    """
    return custom_fp.accumulate(
        values, sum.fmt, kahan=sum.kahan, **sum.ordering.accumulate_options, **_rounding_options(sum, stream)
    )


# ---- packed bytes, in one-dimensional tensors


def round_and_pack(x: Tensor, shift: int, sum: Sum, stream: RandomStream | None, *, out: Tensor) -> None:
    """Write the packed values Q(x * 2^shift) to `out`."""
    custom_fp.pack(x, sum.fmt, shift=shift, out=out, **_rounding_options(sum, stream))


def add_packed(
    payloads: Sequence[Tensor], numel: int, sum: Sum, stream: RandomStream | None, *, out: Tensor
) -> None:
    """Unpack the payloads, add them in the given order, and write the packed sum to `out`."""
    how = {"kahan": sum.kahan, **sum.ordering.accumulate_options, **_rounding_options(sum, stream)}
    custom_fp.accumulate_packed(payloads, sum.fmt, numel, out=out, **how)


def add_unrounded(values: Sequence[Tensor], fmt: NumberFormat, *, kahan: bool) -> Tensor:
    """Return the sum of float32 values that are not rounded to the format before they are added.

    The values are added in the given order. Each addition is computed in float32 and then rounded to the format, to
    nearest even.
    """

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
        lost = torch.where(
            torch.isfinite(new_total), lost, 0.0
        )  # so that inf stays inf, as in custom_fp.accumulate
        total = new_total
    return total
