"""Find binades in which rounding to a table is the same as adding and then subtracting a constant.

Adding 1.5 * 2**(u + 23) to a float32 below 2**(u + 22) and subtracting it again rounds to the nearest multiple of 2**u,
with ties to even. If a table's step function gives the same results in a whole binade, for both signs,
csrc/tabulated/cpu_lanes.h adds and subtracts the constant instead. Both functions are monotonic, so they are
equal everywhere if they are equal at the ends of the binade and on both sides of every threshold.
"""

from __future__ import annotations

import numpy as np

_WINDOW, _BINADES = 64, 257
_NAN, _INFINITY, _LARGEST = 0x7FC00000, 0x7F800000, 0x7F7FFFFF
_MOST = 103  # the largest u for which 1.5 * 2**(u + 23) is a float32
NO_LIFTS = np.zeros(4 + _WINDOW + _BINADES, np.int32)

_Half = tuple[np.ndarray, np.ndarray]


def lifts_of(halves: list[_Half], has_negative_zero: bool) -> np.ndarray:
    """Return the members of `Lifts` in csrc/tabulated/tabulated_rounding.h as int32.

    Args:
        halves: The step functions of positive and of negative numbers. Each has ascending thresholds (T,), which are
            magnitudes as integers, and results (T + 1,), which are float32 bits.
        has_negative_zero: Whether the format has -0.
    """
    inner = halves[0][0][halves[0][0] < 254 << 23]
    steps = np.bincount(_binade(inner + 1), minlength=_BINADES)
    lifts = np.full(_BINADES, _NAN, np.int64)
    for extra in (
        0,
        1,
        2,
    ):  # try the ulp that the number of steps suggests, then ulps that are 2 and 4 times as large
        found = _correct_lifts(halves, steps, extra, has_negative_zero)
        lifts = np.where(lifts == _NAN, found, lifts)
    is_lifted = lifts != _NAN
    if 4 * steps[is_lifted].sum() < steps.sum() or not steps[is_lifted].any():
        return NO_LIFTS
    within = np.convolve(steps * is_lifted, np.ones(_WINDOW - 1, int), mode="valid")
    best = np.flatnonzero(within == within.max())
    first = int(best[len(best) // 2])
    head = [1, first, -(1 << 31) if has_negative_zero else 0, all(map(_is_short, halves))]
    return np.concatenate([head, lifts[first : first + _WINDOW - 1], [_NAN], lifts]).astype(np.int32)


def _binade(magnitudes: np.ndarray) -> np.ndarray:
    """Return b for magnitudes m with (b - 1) << 23 < m <= b << 23, and 0 for zero."""
    return (magnitudes + 0x7FFFFF) >> 23


def _correct_lifts(halves: list[_Half], steps: np.ndarray, extra: int, has_negative_zero: bool) -> np.ndarray:
    """Return the constant to add in each binade, as float32 bits, or NaN if this does not round correctly.

    The constant must also be correct just above the binade, because a product may have been rounded down to the end of
    the binade.
    """
    each = np.arange(_BINADES)
    ulps = each - 128 - np.log2(np.maximum(steps, 1)).astype(int) + extra
    is_right = (ulps <= _MOST) & (ulps >= -149) & (each > 0) & (each < 255)
    lifts = np.ldexp(np.float32(1.5), np.where(is_right, ulps, 0) + 23).astype(np.float32)
    for sign, (thresholds, results) in zip((1, -1), halves, strict=True):
        inner = thresholds[thresholds < 254 << 23]
        points = np.concatenate([inner[inner > 0], inner + 1, each[1:255] << 23])
        above = each[:255] << 23
        points, binades = (
            np.append(points, [above + 1, above + 1]),
            np.append(_binade(points), [each[:255], each[1:256]]),
        )
        number = np.float32(sign) * points.astype(np.int32).view(np.float32)
        lifted = (number + lifts[binades]) - lifts[binades]
        if has_negative_zero:
            lifted = np.copysign(lifted, number)
        expected = results[np.searchsorted(thresholds, points, side="left")]
        is_right[binades[lifted.view(np.int32) != expected]] = False
    return np.where(is_right, lifts.view(np.int32), _NAN)


def _is_short(half: _Half) -> bool:
    """Return whether values have at most 11 digits, steps have at most 12, and no step is at or next to a value."""
    thresholds, results = half
    inner, values = thresholds[(thresholds > 0) & (thresholds < _LARGEST)], results & 0x7FFFFFFF
    values = values[(values > 0) & (values < _INFINITY)]
    steps = _has_digits(inner, 12) | _has_digits(inner + 1, 12)
    return bool(
        _has_digits(values, 11).all() and steps.all() and not np.isin(inner, [values, values - 1]).any()
    )


def _has_digits(magnitudes: np.ndarray, most: int) -> np.ndarray:
    significands, _ = np.frexp(magnitudes.astype(np.int32).view(np.float32))
    return np.ldexp(significands, most) % 1 == 0
