"""Compute rounding errors for a format and a shift from moments.

Values are rounded to nearest. The error of a value x is |q(x 2^shift)| 2^-shift - |x|, where q rounds to the format. A
positive error means that the magnitude grows. Values beyond the format's largest value are counted in `beyond`, and
their error is that of saturation, even if a run would turn them into infinity, because infinite errors have no mean.

The statistics are exact for formats with at most 10 mantissa bits. For wider formats:

- The number of values that round to zero is exact.
- The squared error is an upper bound, as if each element had an error of half a spacing.
- `error` and `product` are 0.
- No value of the format's largest binade counts as beyond the largest value.
- Values have no error if the spacing is at most that of float32, as with 23 mantissa bits.

Shapes: K binades.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
from custom_fp import Format

from cpdrun.whatif.collect.moments import COLUMNS, OF_SPACING, SPACINGS
from cpdrun.whatif.collect.observation import TensorStatistics

# The signal-to-noise ratio in dB if nothing is lost, far above that of rounding to float32.
NO_ERROR_DB = 200.0

# The number of mantissa bits of float32, and log2 of its smallest subnormal value.
_FLOAT32_BITS, _FLOAT32_LEAST = 23, -149
# The index of the first column of each moment that depends on the spacing.
_FIRST = {name: COLUMNS.index(f"{name}{SPACINGS[0]}") for name in OF_SPACING}


@dataclass(frozen=True)
class Additive:
    """A base of frozen dataclasses of sums, which can be added and weighted."""

    def times(self, weight: float) -> Self:
        return type(self)(*(weight * getattr(self, f.name) for f in fields(self)))

    def __add__(self, other: Self) -> Self:
        return type(self)(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True)
class RoundingError(Additive):
    """Rounding-error statistics: sums over the elements x that are finite and not zero.

    Attributes:
        count: The number of elements.
        to_zero: The number of elements that round to zero.
        beyond: The number of elements beyond the format's largest value.
        magnitude: The sum of |x|.
        square: The sum of x^2.
        error: The sum of e, the error of |x|.
        squared_error: The sum of e^2.
        product: The sum of |x| e.
    """

    count: float = 0.0
    to_zero: float = 0.0
    beyond: float = 0.0
    magnitude: float = 0.0
    square: float = 0.0
    error: float = 0.0
    squared_error: float = 0.0
    product: float = 0.0

    def figures(self) -> dict[str, float]:
        """Return underflow, saturation, snr_db, bias, and cosine (see `effects.py`).

        A statistic is NaN if its denominator is zero.
        """
        rounded = self.square + 2 * self.product + self.squared_error
        return {
            "underflow": _ratio(self.to_zero, self.count),
            "saturation": _ratio(self.beyond, self.count),
            "snr_db": decibel(self.square, self.squared_error),
            "bias": _ratio(self.error, self.magnitude),
            "cosine": _ratio(self.square + self.product, math.sqrt(max(0.0, self.square * rounded))),
        }


def rounding_error_of(statistics: TensorStatistics, fmt: Format, shift: int = 0) -> RoundingError:
    """Return the error of scaling a tensor by 2^shift and rounding it."""
    k_K = statistics.binades.astype(np.int64)
    shifted_K = k_K + shift
    mantissa_K = fmt.mantissa_bits - np.maximum(0, fmt.emin - shifted_K)
    count, magnitude, square = statistics.rows[:, 0], statistics.rows[:, 1], statistics.rows[:, 2]
    of = {
        name: statistics.rows[
            np.arange(len(k_K)), _FIRST[name] + np.clip(mantissa_K, SPACINGS[0], SPACINGS[-1]) + 1
        ]
        for name in OF_SPACING
    }
    error, squared, product = of["error"].copy(), of["squared_error"].copy(), of["product"].copy()
    to_zero = np.where(mantissa_K == -1, count - of["up"], 0.0)
    lost = mantissa_K < -1
    to_zero[lost], error[lost] = count[lost], -magnitude[lost]
    squared[lost], product[lost] = square[lost], -square[lost]
    wide = mantissa_K > SPACINGS[-1]
    kept = (mantissa_K >= _FLOAT32_BITS) | (k_K - mantissa_K <= _FLOAT32_LEAST)
    bound = count * np.exp2(2.0 * (k_K - mantissa_K - 1))
    squared = np.where(wide, np.where(kept, 0.0, bound), squared)
    error, product = np.where(wide, 0.0, error), np.where(wide, 0.0, product)

    top = math.ldexp(fmt.max, -shift)
    beyond = np.zeros_like(count)
    over = shifted_K > fmt.emax
    beyond[over], to_zero[over] = count[over], 0.0
    error[over] = (count * top - magnitude)[over]
    squared[over] = (count * top * top - 2 * top * magnitude + square)[over]
    product[over] = (top * magnitude - square)[over]
    for i in np.flatnonzero((shifted_K == fmt.emax) & ~wide):
        spacing = math.ldexp(1.0, int(k_K[i] - mantissa_K[i]))
        next_binade = math.ldexp(1.0, int(k_K[i]) + 1)
        up, up_error = of["up"][i], of["up_error"][i]
        below = (of["last"][i] - up, of["last_error"][i] - up_error)
        # The format lacks the first value of the next binade, and may lack the last value of its largest binade. Each
        # missing value, the number of elements that would round to it, and the sum of their errors:
        missing = [(next_binade, up, up_error)]
        if top < next_binade - 1.5 * spacing:  # the format's last code is NaN
            missing.append((next_binade - spacing, *below))
        for value, n, errors in missing:
            past = value - top
            beyond[i] += n
            squared[i] += past * past * n - 2 * past * errors
            error[i] -= past * n
            product[i] -= past * (n * value - errors)
    sums = (count, to_zero, beyond, magnitude, square, error, squared, product)
    return RoundingError(*(float(values.sum()) for values in sums))


def rounding_error_of_values(x: np.ndarray, rounded: np.ndarray, largest: float) -> RoundingError:
    """Return the rounding-error statistics of values, given their rounded values.

    Zeros, inf, and NaN in `x` are ignored. An element counts as beyond the largest value if it rounds to inf or NaN, or
    if it exceeds `largest` (inf if unknown) and rounds to at least `largest`.
    """
    x, rounded = x.astype(np.float64).reshape(-1), rounded.astype(np.float64).reshape(-1)
    here = np.isfinite(x) & (x != 0)
    a, q = np.abs(x[here]), rounded[here] * np.sign(x[here])
    beyond = ~np.isfinite(q) | (a > largest) & (q >= largest)
    q = np.where(np.isfinite(q), q, largest if math.isfinite(largest) else a)
    e = q - a
    return RoundingError(
        float(len(a)),
        float((q == 0).sum()),
        float(beyond.sum()),
        float(a.sum()),
        float((a * a).sum()),
        float(e.sum()),
        float((e * e).sum()),
        float((a * e).sum()),
    )


def decibel(signal: float, noise: float) -> float:
    """Return 10 log10(signal / noise), at most NO_ERROR_DB; NaN if the signal is not positive."""
    if not signal > 0:
        return math.nan
    if noise <= signal * 10 ** (-NO_ERROR_DB / 10):
        return NO_ERROR_DB
    return 10 * math.log10(signal / noise)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
