"""The arrays with which compiled code rounds to a table (csrc/tabulated/tabulated_rounding.h).

For each sign, rounding is a step function of the bits of a number (`_Steps`). The thresholds are float32 magnitudes as
integers, and the result changes above each threshold. Overflow, infinity and NaN are also steps. Rounding modes that
need the two neighbors of a number (stochastic, to_odd) use the values of the format as thresholds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from custom_fp.formats.tabulated_format import Half, Tabulated
from custom_fp.rounding import Overflow, Rounding, Rule
from custom_fp.tabulated.lifts import NO_LIFTS, lifts_of
from custom_fp.tabulated.rounding import codes_of_values, outcome

MOST_EVEN_CELLS = 1 << 12
"""The largest number of equally large cells for each sign. If more are needed, each octave has its own cell size."""

_LARGEST, _INFINITY, _NEVER = 0x7F7FFFFF, 0x7F800000, 0x7FFFFFFF
_STEPS, _RANDOM, _ODD = 0, 1, 2
_NARROW = 2.0**103
_HEAD = 20  # number of words of the head


@dataclass(frozen=True)
class _Steps:
    """A step function: result number i, where i is the number of thresholds below the magnitude.

    The thresholds (T,) are in ascending order, and the results (T + 1,) are float64.
    """

    thresholds: np.ndarray
    results: np.ndarray


@cache
def table_of(fmt: Tabulated, rounding: Rounding, overflow: str, device: str) -> Tensor:
    """Return all data that a kernel needs to round to a format, as an int32 tensor."""
    rule = Rule(rounding, Overflow(overflow))
    kind = {Rounding.STOCHASTIC: _RANDOM, Rounding.TO_ODD: _ODD}.get(rounding, _STEPS)
    halves = (fmt.positive, fmt.negative)
    steps = [_steps(fmt, half, rule, kind) for half in halves]
    if kind == _STEPS:
        steps = [_merged(one) for one in steps]
    cells = _cells([one.thresholds for one in steps])
    results = np.concatenate([one.results for one in steps])
    values = _bits(results)
    codes = codes_of_values(torch.from_numpy(results), fmt).numpy().astype(np.int32)
    places = cells.places + np.array([0, len(steps[0].results)])[:, None, None]
    empty, lifts = np.zeros(0, np.int32), NO_LIFTS
    parts = [cells.octaves, cells.thresholds, *[empty] * 8]
    if kind == _STEPS:
        parts[2:4] = values[places], codes[places]
        lifts = lifts_of([(one.thresholds, _bits(one.results)) for one in steps], fmt.has_negative_zero)
    else:
        lows, gaps, goes_up = (
            np.concatenate(each) for each in zip(*(_distances(fmt, half) for half in halves), strict=True)
        )
        parts[4:10] = places, lows.view(np.int32), gaps.view(np.int32), goes_up, values, codes
    narrow = fmt.max < _NARROW and kind != _RANDOM
    head = [kind, cells.by_octave, cells.shift, cells.first, cells.last, cells.half, fmt.code_bits, narrow]
    return _joined(head, [*parts, _bits(np.array(fmt.decoded)), lifts]).to(device)


def _joined(head: list[int], parts: list[np.ndarray]) -> Tensor:
    """Join the head, the offset of each part, and the parts. Parts begin at even words, since some contain doubles."""
    offsets, words = [], [np.zeros(_HEAD, np.int32)]
    at = _HEAD
    for part in parts:
        flat = np.ascontiguousarray(part).reshape(-1).astype(np.int32, copy=False)
        offsets.append(at)
        words += [flat, np.zeros(len(flat) % 2, np.int32)]
        at += len(flat) + len(flat) % 2
    words[0][: len(head) + len(offsets)] = [*map(int, head), *offsets]
    return torch.from_numpy(np.concatenate(words))


def _bits(values: np.ndarray) -> np.ndarray:
    """Return the bits of float32 values, with the same bits for every NaN."""
    with np.errstate(over="ignore"):
        bits = values.astype(np.float32).view(np.int32)
    return np.where(np.isnan(values), np.int32(0x7FC00000), bits)


def _steps(fmt: Tabulated, half: Half, rule: Rule, kind: int) -> _Steps:
    """Return the step function for the numbers of one sign.

    Its results are the values of the half, the result of overflow (if there is one), and those for infinity
    and NaN.
    """
    after = outcome(fmt, half, rule)
    magnitudes = _bits(np.array(half.magnitudes)).astype(np.int64)
    values = [half.zero, *(half.sign * value for value in half.magnitudes[1:])]
    past = [] if half.beyond is None else [after.past]
    above = [] if half.beyond is None else [min(float(half.beyond), math.inf)]
    ups = np.append(magnitudes[1:], _bits(np.array(above)).astype(np.int64) if above else magnitudes[:0])
    lows = magnitudes[: len(ups)]
    goes = _direction(rule.rounding, half.sign)
    if kind != _STEPS or goes is False:
        thresholds = ups - 1
    elif goes:
        thresholds = lows
    else:
        boundaries = _bits(np.array(half.boundaries)).astype(np.int64)
        up = np.array(half.ties_up, dtype=bool) if rule.rounding is Rounding.NEAREST_EVEN else True
        thresholds = np.maximum(boundaries - up, lows)
    thresholds = np.minimum(thresholds, _LARGEST)
    return _Steps(
        np.concatenate([thresholds, [_LARGEST, _INFINITY]]).astype(np.int64),
        np.array([*values, *past, after.infinity, after.nan], dtype=np.float64),
    )


def _direction(rounding: Rounding, sign: float) -> bool | None:
    """Return whether inexact magnitudes are rounded up. For rounding to nearest, return None."""
    upwards = {
        Rounding.TOWARD_POSITIVE: sign > 0,
        Rounding.TOWARD_NEGATIVE: sign < 0,
        Rounding.TOWARD_ZERO: False,
    }
    return upwards.get(rounding)


def _merged(steps: _Steps) -> _Steps:
    """Remove steps that coincide with a later one, and steps that do not change the result."""
    thresholds, results = steps.thresholds, steps.results
    # keep only the last of several steps at the same threshold
    last = np.append(thresholds[1:] > thresholds[:-1], True)
    thresholds, results = thresholds[last], np.concatenate([results[:1], results[1:][last]])
    bits = _bits(results)
    changes = bits[1:] != bits[:-1]
    return _Steps(thresholds[changes], np.concatenate([results[:1], results[1:][changes]]))


def _distances(fmt: Tabulated, half: Half) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return, for each place, the magnitude, the distance to the next one, and whether rounding to odd goes up."""
    n, ends = len(half.magnitudes), 2 + (half.beyond is not None)
    lows = np.zeros(n + ends)
    lows[:n] = half.magnitudes
    gaps = np.full(n + ends, math.inf)
    above = [*half.magnitudes[1:], math.inf if half.beyond is None else float(half.beyond)]
    gaps[:n] = np.array(above) - lows[:n]
    goes_up = np.zeros(n + ends, np.int32)
    goes_up[:n] = [fmt.is_even(code) for code in half.codes]
    goes_up[:n] &= np.isfinite(gaps[:n])
    return lows, gaps, goes_up


# ---- cells


@dataclass(frozen=True)
class _Cells:
    """The cells into which float32 numbers are divided by sign and magnitude.

    Each cell contains at most one threshold. `half` is the number of cells per sign. `thresholds` (2, half)
    contains the threshold of each cell. `places` (2, half, 2) contains the indices of the results at the
    lower and upper end of each cell.
    """

    by_octave: bool
    shift: int
    first: int
    last: int
    half: int
    octaves: np.ndarray
    thresholds: np.ndarray
    places: np.ndarray


def _cells(thresholds: list[np.ndarray]) -> _Cells:
    found = _even_cells(thresholds)
    if found is not None:
        shift, first, half = found
        starts = np.arange(first, first + half, dtype=np.int64) << shift
        starts[0] = 0
        head = (False, shift, first, half - 1, half, np.zeros(0, np.int32))
    else:
        shifts = _shifts_of_octaves(thresholds)
        counts = np.int64(1) << 23 - shifts
        begins = np.concatenate([[0], np.cumsum(counts)[:-1]])
        each = np.arange(256, dtype=np.int64)
        octave = np.repeat(each, counts)
        starts = (octave << 23) + (np.arange(len(octave)) - begins[octave] << shifts[octave])
        head = (True, 0, 0, 0, len(starts), (begins << 5 | shifts).astype(np.int32))
    ends = np.append(starts[1:], 1 << 31) - 1
    below = np.stack([np.searchsorted(t, starts, side="left") for t in thresholds])
    upto = np.stack([np.searchsorted(t, ends, side="left") for t in thresholds])
    inside = np.stack(
        [
            np.where(upto[i] > below[i], np.append(t, _NEVER)[np.minimum(below[i], len(t))], _NEVER)
            for i, t in enumerate(thresholds)
        ]
    )
    return _Cells(*head, inside.astype(np.int32), np.stack([below, upto], axis=2))


def _even_cells(thresholds: list[np.ndarray]) -> tuple[int, int, int] | None:
    """Return as few equally large cells as possible, or None if more than MOST_EVEN_CELLS are needed.

    Returns:
        (shift, first, number of cells of each sign). Each cell contains at most one threshold. The first cell extends
        down to zero, and the last one up to NaN.
    """
    each = [np.unique(t) for t in thresholds]
    for shift in range(23, 0, -1):
        firsts, lasts = [], []
        for t in each:
            if len(t) > 1:
                firsts.append(((int(t[1]) + 1) >> shift) - 1)
                lasts.append((int(t[-2]) >> shift) + 1)
        first = max(0, min(firsts, default=0))
        last = max(first + 1, *lasts) if lasts else first  # the first cell extends down to zero
        if last - first >= MOST_EVEN_CELLS:
            return None
        if all(_is_apart(t, shift, first, last).all() for t in each):
            return shift, first, last - first + 1
    return None


def _is_apart(t: np.ndarray, shift: int, first: int, last: int) -> np.ndarray:
    """Return whether neighboring distinct thresholds are in different cells. Thresholds at cell ends are skipped."""
    inner = t[(t + 1 & (1 << shift) - 1) != 0]
    cell = (inner >> shift).clip(first, last)
    return cell[1:] > cell[:-1]


def _shifts_of_octaves(thresholds: list[np.ndarray]) -> np.ndarray:
    """Return the largest possible cell size for each of the 256 float32 exponents, as the log2 of the size."""
    shifts = np.full(256, -1, dtype=np.int64)
    each = [np.unique(t) for t in thresholds]
    for shift in range(23, -1, -1):
        is_good = np.ones(256, dtype=bool)
        for t in each:
            inner = t[(t + 1 & (1 << shift) - 1) != 0]
            together = (inner[1:] >> shift) == (inner[:-1] >> shift)
            is_good[inner[1:][together] >> 23] = False
        shifts[is_good & (shifts < 0)] = shift
    return shifts
