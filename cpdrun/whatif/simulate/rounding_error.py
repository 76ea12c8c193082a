"""From a table to one format and one shift: what rounding to nearest does to the elements, exactly.

Errors are of q(x 2^shift) 2^-shift - x, and of magnitudes: positive where a value grows. A value beyond the largest
one is counted in `beyond`, and its error is that of taking the largest one, whatever the run makes of it (infinity is
no number to take a mean of).

Exact for formats of at most 10 mantissa bits. Wider ones: underflow is exact too, the squared error is its bound,
half a spacing for each element, `error` and `product` are 0, and of values within the largest binade none is beyond;
those of 23 bits have no error, since float32 has no more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from custom_fp import Format

from cpdrun.whatif.collect.moments import COLUMNS, OF_SPACING, SPACINGS
from cpdrun.whatif.collect.observation import Seen
from cpdrun.whatif.simulate.additive import Additive

NO_ERROR_DB = 200.0
"""Signal to noise where nothing is lost: more than float32 can tell."""

_FLOAT32_BITS, _FLOAT32_LEAST = 23, -149
_FIRST = {name: COLUMNS.index(f"{name}{SPACINGS[0]}") for name in OF_SPACING}


@dataclass(frozen=True)
class Tally(Additive):
    """Sums over elements that are finite and not zero; they add. magnitude, square: of |x| and x^2; product: of |x|
    times the error."""

    count: float = 0.0
    to_zero: float = 0.0
    beyond: float = 0.0
    magnitude: float = 0.0
    square: float = 0.0
    error: float = 0.0
    squared_error: float = 0.0
    product: float = 0.0

    def figures(self) -> dict[str, float]:
        """NaN where there is nothing to divide by. cosine: of the values and what becomes of them."""
        rounded = self.square + 2 * self.product + self.squared_error
        return {
            "underflow": _ratio(self.to_zero, self.count),
            "saturation": _ratio(self.beyond, self.count),
            "snr_db": decibel(self.square, self.squared_error),
            "bias": _ratio(self.error, self.magnitude),
            "cosine": _ratio(self.square + self.product, math.sqrt(max(0.0, self.square * rounded))),
        }


def tally(seen: Seen, fmt: Format, shift: int = 0) -> Tally:
    """Of the elements of a table, rounded to a format after a shift by 2^shift."""
    k_K = seen.binades.astype(np.int64)
    shifted_K = k_K + shift
    mantissa_K = fmt.mantissa_bits - np.maximum(0, fmt.emin - shifted_K)
    count, magnitude, square = seen.rows[:, 0], seen.rows[:, 1], seen.rows[:, 2]
    of = {
        name: seen.rows[
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
        # values of the grid that the format does not have: how many, their errors, and how far above the largest
        missing = [(next_binade, up, up_error)]
        if top < next_binade - 1.5 * spacing:  # its last code is NaN
            missing.append((next_binade - spacing, *below))
        for value, n, errors in missing:
            past = value - top
            beyond[i] += n
            squared[i] += past * past * n - 2 * past * errors
            error[i] -= past * n
            product[i] -= past * (n * value - errors)
    sums = (count, to_zero, beyond, magnitude, square, error, squared, product)
    return Tally(*(float(values.sum()) for values in sums))


def of_values(x: np.ndarray, rounded: np.ndarray, largest: float) -> Tally:
    """The same of values themselves: what they became, and the format's largest value in their units. Zeros and what is
    not finite take no part; what became infinite or NaN is beyond, as is what is larger than the largest."""
    x, rounded = x.astype(np.float64).reshape(-1), rounded.astype(np.float64).reshape(-1)
    here = np.isfinite(x) & (x != 0)
    a, q = np.abs(x[here]), rounded[here] * np.sign(x[here])
    beyond = ~np.isfinite(q) | (a > largest) & (q >= largest)
    q = np.where(np.isfinite(q), q, largest if math.isfinite(largest) else a)
    e = q - a
    return Tally(
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
    """10 log10(signal / noise), at most NO_ERROR_DB; NaN of no signal."""
    if not signal > 0:
        return math.nan
    if noise <= signal * 10 ** (-NO_ERROR_DB / 10):
        return NO_ERROR_DB
    return 10 * math.log10(signal / noise)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
