"""Rounding to a table in PyTorch and float64, and the definition of the rounding modes, which reference.py uses, too.

Each number is rounded to the `Half` (formats/tabulated_format.py) of each sign, and the result of the number's own sign
is kept. `low` is the largest magnitude of the half that is at most |x|, and `high` is the next magnitude. `goes_up`
defines when x is rounded to `high`. Past the largest magnitude, `high` is `beyond`, and rounding to it is an overflow.
-0 is kept if the format has -0. NaN becomes infinity or the largest value if the format has no NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from custom_fp.formats.tabulated_format import Half, Tabulated
from custom_fp.rounding import Form, Rounding, Rule


@dataclass(frozen=True)
class Outcome:
    """The results for numbers past the largest value, for infinity, and for NaN."""

    past: float
    infinity: float
    nan: float


def outcome(fmt: Tabulated, half: Half, rule: Rule) -> Outcome:
    largest = math.copysign(half.magnitudes[-1], half.sign) if len(half.magnitudes) > 1 else half.zero
    has_inf = half.inf_code is not None
    infinity = half.sign * math.inf if has_inf else math.nan if fmt.has_nan else largest
    past = infinity if rule.overflows(half.sign < 0, not fmt.is_even(half.codes[-1])) else largest
    if rule.saturates or (rule.propagates and not has_inf):
        infinity = largest
    return Outcome(past, infinity, math.nan if fmt.has_nan else math.inf if fmt.has_inf else fmt.max)


def round_to_table(x: Tensor, fmt: Tabulated, rule: Rule, random: Tensor | None) -> Tensor:
    """Round float64 values to a table and return them as float64.

    Args:
        x: The values.
        fmt: The format.
        rule: The rounding mode and the overflow mode.
        random: 32 random bits for each element. The first `rule.bits` of them are used.
    """
    positive, negative = (_round(x.abs(), fmt, half, rule, random) for half in (fmt.positive, fmt.negative))
    return torch.where(torch.signbit(x), negative, positive)


@dataclass(frozen=True)
class Tensors:
    """The lists of a `Half` as tensors on a device.

    Attributes:
        magnitudes: The magnitudes, followed by `beyond`, or by infinity if there is no `beyond`.
        boundaries: The boundary between each magnitude and the next.
        ties_up: For each boundary, whether a number on the boundary becomes the larger neighbor.
        values: The magnitudes with the sign of the half.
        is_even: Whether the code of each magnitude is even.
    """

    magnitudes: Tensor
    boundaries: Tensor
    ties_up: Tensor
    values: Tensor
    is_even: Tensor


@cache
def _tensors(fmt: Tabulated, sign: float, device: str) -> Tensors:
    half = fmt.positive if sign > 0 else fmt.negative
    ends = [math.inf] if half.beyond is None else []
    after = math.inf if half.beyond is None else float(half.beyond)

    def column(values: list, dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    return Tensors(
        column([*half.magnitudes, after], torch.float64),
        column([*half.boundaries, *ends], torch.float64),
        column([*half.ties_up, *map(bool, [0] * len(ends))], torch.bool),
        column([half.zero, *(sign * value for value in half.magnitudes[1:])], torch.float64),
        column([fmt.is_even(code) for code in half.codes], torch.bool),
    )


def _round(magnitude: Tensor, fmt: Tabulated, half: Half, rule: Rule, random: Tensor | None) -> Tensor:
    table = _tensors(fmt, half.sign, str(magnitude.device))
    last = len(half.magnitudes) - 1
    at = (torch.searchsorted(table.magnitudes, magnitude, right=True) - 1).clamp(0, last + 1)
    low = at.clamp(max=last)  # if `at` is last + 1, the magnitude is at least `beyond`
    to = torch.where(at > last, at, low + _goes_up(magnitude, low, table, half.sign, rule, random))
    after = outcome(fmt, half, rule)
    result = torch.where(to > last, after.past, table.values[to.clamp(max=last)])
    result = torch.where(magnitude == math.inf, after.infinity, result)
    return torch.where(magnitude.isnan(), after.nan, result)


def _goes_up(
    magnitude: Tensor, low: Tensor, table: Tensors, sign: float, rule: Rule, random: Tensor | None
) -> Tensor:
    """Return whether finite magnitudes are rounded to the neighbor above, which has index low + 1."""
    below, above, boundary = table.magnitudes[low], table.magnitudes[low + 1], table.boundaries[low]
    place = Place(
        is_inexact=(magnitude > below) & (above < math.inf),
        is_past_middle=magnitude > boundary,
        is_middle=(magnitude == boundary) & (magnitude > below) & (above < math.inf),
        ties_up=table.ties_up[low],
        is_odd=~table.is_even[low],
        is_negative=torch.tensor(sign < 0, device=magnitude.device),
        distance=((magnitude - below) / (above - below)).nan_to_num(0.0).clamp(max=1.0),
    )
    return goes_up(place, rule, random)


@dataclass(frozen=True)
class Place:
    """The positions of magnitudes between their neighbors below and above.

    Attributes:
        is_inexact: Whether the magnitude differs from the neighbor below.
        is_past_middle: Whether rounding to nearest gives the neighbor above.
        is_middle: Whether rounding to nearest is a tie.
        ties_up: Whether a tie goes to the neighbor above, because that neighbor is even.
        is_odd: Whether the neighbor below is odd.
        is_negative: Whether the number is negative.
        distance: The distance from the neighbor below, as a share of the gap: float64 in [0, 1].
    """

    is_inexact: Tensor
    is_past_middle: Tensor
    is_middle: Tensor
    ties_up: Tensor
    is_odd: Tensor
    is_negative: Tensor
    distance: Tensor


def goes_up(place: Place, rule: Rule, random: Tensor | None) -> Tensor:
    """Return whether magnitudes are rounded to the neighbor above. This function defines the rounding modes.

    Args:
        place: The positions of the magnitudes between their neighbors.
        rule: The rounding mode.
        random: 32 random bits for each element (int64), for stochastic rounding.
    """
    match rule.rounding:
        case Rounding.NEAREST_EVEN:
            return place.is_past_middle | place.is_middle & place.ties_up
        case Rounding.NEAREST_AWAY:
            return place.is_past_middle | place.is_middle
        case Rounding.TOWARD_ZERO:
            return torch.zeros_like(place.is_inexact)
        case Rounding.TOWARD_POSITIVE:
            return place.is_inexact & ~place.is_negative
        case Rounding.TOWARD_NEGATIVE:
            return place.is_inexact & place.is_negative
        case Rounding.TO_ODD:
            return place.is_inexact & ~place.is_odd
        case Rounding.STOCHASTIC:
            assert random is not None
            return _carries(place.distance, random, rule)


def _carries(distance: Tensor, random: Tensor, rule: Rule) -> Tensor:
    """Return whether stochastic rounding goes up from a distance in [0, 1] (float64), as `Form` defines it.

    Args:
        distance: The distance from the neighbor below.
        rule: The form and the number of random bits.
        random: 32 random bits for each element. The first `rule.bits` of them are used.
    """
    steps = distance * 2.0**rule.bits
    whole = steps.floor()
    part, is_odd = steps - whole, whole % 2 == 1
    match rule.form:
        case Form.CUT:
            more = torch.zeros_like(is_odd)
        case Form.FAST:
            more = part >= 0.5
        case Form.EVEN:
            more = (part > 0.5) | (part == 0.5) & is_odd
        case Form.ODD:
            more = (part > 0.5) | (part == 0.5) & ~is_odd
    return whole + more + (random >> 32 - rule.bits) >= 2.0**rule.bits


# ---- codes


@cache
def _codes(fmt: Tabulated, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return all values in ascending order, the code of each of them, and the value of each code."""
    up, down = fmt.positive, fmt.negative
    pairs = dict(zip((-value for value in down.magnitudes[1:]), down.codes[1:], strict=True))
    pairs |= dict(zip(up.magnitudes, up.codes, strict=True))
    pairs |= {half.sign * math.inf: half.inf_code for half in (up, down) if half.inf_code is not None}
    order = sorted(pairs)
    return (
        torch.tensor(order, dtype=torch.float64, device=device),
        torch.tensor([pairs[value] for value in order], device=device),
        torch.tensor(fmt.decoded, dtype=torch.float32, device=device),
    )


def codes_of_values(value: Tensor, fmt: Tabulated) -> Tensor:
    """Return the codes (int64) of float64 values, which must be values of the format."""
    order, codes, _ = _codes(fmt, str(value.device))
    found = codes[torch.searchsorted(order, value).clamp(max=len(order) - 1)]
    minus_zero = (value == 0) & torch.signbit(value)
    found = torch.where(minus_zero, fmt.negative.codes[0], found)
    return found if fmt.nan_code is None else torch.where(value.isnan(), fmt.nan_code, found)


def values_of_codes(codes: Tensor, fmt: Tabulated) -> Tensor:
    """Return the values (float32) of int64 codes. Bits of a code above the format's width are ignored."""
    return _codes(fmt, str(codes.device))[2][codes & (1 << fmt.code_bits) - 1]
