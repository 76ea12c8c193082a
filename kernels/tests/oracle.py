"""Exact rational arithmetic: what every operator should return, written from the standard and nothing else.

No code is shared with custom_fp but Format's fields; values are Fractions, so that nothing can round unseen.
"""

from __future__ import annotations

import math
from fractions import Fraction

from custom_fp.formats.scalar import Format

INFINITY = float("inf")


def finite_magnitudes(fmt: Format) -> list[Fraction]:
    """Every finite value >= 0 in ascending order, from the meaning of the fields."""
    values = []
    for field in range(2**fmt.exponent_bits):
        for mantissa in range(2**fmt.mantissa_bits):
            all_ones = field == 2**fmt.exponent_bits - 1 and mantissa == 2**fmt.mantissa_bits - 1
            if fmt.has_inf and field == 2**fmt.exponent_bits - 1:
                continue
            if fmt.family == "fn" and all_ones and fmt.has_nan:
                continue
            significand = Fraction(mantissa, 2**fmt.mantissa_bits) + (field > 0)
            values.append(significand * Fraction(2) ** (max(field, 1) - fmt.bias))
    return values


def quantum_of(magnitude: Fraction, fmt: Format) -> Fraction:
    """The spacing of p-digit values around a magnitude, the exponent unbounded above."""
    if magnitude == 0:
        return Fraction(2) ** (fmt.emin - fmt.mantissa_bits)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    return Fraction(2) ** (max(exponent, fmt.emin) - fmt.mantissa_bits)


def overflowed(fmt: Format, overflow: str) -> float:
    """What infinity becomes."""
    if overflow == "saturate" or (overflow == "propagate" and not fmt.has_inf):
        return float(largest(fmt))
    if fmt.has_inf:
        return INFINITY
    return math.nan if fmt.has_nan else float(largest(fmt))


def largest(fmt: Format) -> Fraction:
    top = 2**fmt.exponent_bits - 1
    if fmt.has_inf:
        code = (top << fmt.mantissa_bits) - 1
    else:
        code = 2 ** (fmt.exponent_bits + fmt.mantissa_bits) - 1 - (fmt.family == "fn" and fmt.has_nan)
    field, mantissa = divmod(code, 2**fmt.mantissa_bits)
    return (Fraction(mantissa, 2**fmt.mantissa_bits) + (field > 0)) * Fraction(2) ** (
        max(field, 1) - fmt.bias
    )


def quantize(x: float, fmt: Format, rounding: str = "nearest_even", overflow: str = "infinity") -> float:
    """One value, given exactly as a float. Rounding to nearest is `round` of a Fraction: half to even."""
    if math.isnan(x):
        return math.nan if fmt.has_nan else INFINITY if fmt.has_inf else float(largest(fmt))
    negative = math.copysign(1.0, x) < 0
    if math.isinf(x):
        magnitude = overflowed(fmt, overflow)
    else:
        magnitude = quantize_exact(abs(Fraction(x)), fmt, rounding, overflow, negative)
    if magnitude == 0 and not fmt.has_negative_zero:
        return 0.0
    if negative and not fmt.is_signed and magnitude == magnitude:  # IEEE P3109, section 4.7.3
        is_number = math.isfinite(x)
        stays = overflow != "infinity" or (is_number and rounding in ("toward_zero", "toward_positive"))
        return 0.0 if stays or not fmt.has_nan else math.nan
    return -magnitude if negative else magnitude


def quantize_exact(
    magnitude: Fraction, fmt: Format, rounding: str, overflow: str = "infinity", negative: bool = False
) -> float:
    quantum = quantum_of(magnitude, fmt)
    digits = multiple(magnitude / quantum, rounding, negative)
    top = largest(fmt)
    if digits * quantum <= top:
        return float(digits * quantum)
    is_odd = top / quantum_of(top, fmt) % 2 == 1
    stays = {
        "toward_zero": True,
        "toward_positive": negative,
        "toward_negative": not negative,
        "to_odd": is_odd,
    }
    return float(top) if overflow != "infinity" or stays.get(rounding, False) else overflowed(fmt, overflow)


def multiple(digits: Fraction, rounding: str, negative: bool) -> int:
    below, above = math.floor(digits), math.ceil(digits)
    return {
        "nearest_even": round(digits),
        "nearest_away": math.floor(digits + Fraction(1, 2)),
        "toward_zero": below,
        "toward_positive": below if negative else above,
        "toward_negative": above if negative else below,
        "to_odd": below if below % 2 else above,
    }[rounding]


def same(a: float, b: float) -> bool:
    """Equal as bits, NaN equal to NaN."""
    return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1.0, a) == math.copysign(1.0, b))
