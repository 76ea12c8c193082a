"""Low-precision sums in exact rational arithmetic, one number at a time. The tested code is not used here."""

from bisect import bisect_right
from fractions import Fraction
from functools import lru_cache
from math import inf, nan

from custom_fp import Format


@lru_cache
def magnitudes(fmt: Format) -> list[Fraction]:
    """Return the finite values >= 0 in ascending order, and the value that would follow the largest one."""
    values = [Fraction(fmt.value_of(code)) for code in range(fmt.max_code + 1)]
    return [*values, values[-1] + Fraction(2) ** (max(fmt.emax, fmt.emin) - fmt.mantissa_bits)]


def rounded(x: Fraction, fmt: Format) -> Fraction | float:
    """Return the nearest value. Ties go to the even code.

    Without mantissa bits, ties go to the larger magnitude, but half the smallest value goes to zero.
    """
    values = magnitudes(fmt)
    sign, magnitude = (-1 if x < 0 else 1), abs(x)
    if magnitude >= values[-1]:
        return overflowed(sign, fmt)
    above = bisect_right(values, magnitude)
    low, high = values[above - 1], values[above]
    middle = (low + high) / 2
    up = magnitude > middle
    if magnitude == middle:
        up = above > 1 if fmt.mantissa_bits == 0 else above % 2 == 0
    if up and above == len(values) - 1:
        return overflowed(sign, fmt)
    return sign * (high if up else low)


def overflowed(sign: int, fmt: Format) -> Fraction | float:
    if fmt.has_inf:
        return sign * inf
    return nan if fmt.has_nan else sign * Fraction(fmt.max)


def accumulated(values: list[Fraction], fmt: Format, kahan: bool) -> Fraction | float:
    """Return the sum in the given order, or inf or NaN if a partial sum overflows."""
    total = lost = Fraction(0)
    for value in values:
        if not kahan:
            total = rounded(total + value, fmt)
        else:
            corrected = rounded(value - lost, fmt)
            new_total = rounded(total + corrected, fmt)
            if isinstance(new_total, float):
                return new_total
            lost = rounded(rounded(new_total - total, fmt) - corrected, fmt)
            total = new_total
        if isinstance(total, float):
            return total
    return total


def aps_shift(gradients: list[Fraction], summands: int, fmt: Format) -> int:
    """emax - ceil(log2(max|g| * summands))."""
    bound = max(abs(g) for g in gradients) * summands
    exponent = -400
    while Fraction(2) ** exponent < bound:
        exponent += 1
    return fmt.emax - exponent


def summed(gradients: list[Fraction], fmt: Format, shift: int, kahan: bool) -> Fraction:
    """Scale and round every gradient, add them in order, and scale the sum back. Nothing may overflow."""
    terms = [rounded(g * Fraction(2) ** shift, fmt) for g in gradients]
    total = accumulated(terms, fmt, kahan)
    assert isinstance(total, Fraction)
    return total / Fraction(2) ** shift
