"""Rounding to a table, in torch and float64: the definition, which reference.py's operators call for these formats.

Each sign's half (`formats.tabulated.Half`) is worked on for all elements, and the one of an element's sign taken. With
low the largest magnitude of the half that is not above |x|, and high the next one:

    nearest     high above the boundary between them, and on it where ties go up
    a word      low or high, as it says
    stochastic  high where d = (|x| - low) / (high - low), as Rule.form cuts it, and the random bits carry

Above the largest, high is `beyond`: where it is taken, or passed, that is an overflow. -0 stays where there is one, NaN
becomes infinity, or the largest, where there is none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from custom_fp.formats.tabulated import Half, Tabulated
from custom_fp.rounding import Form, Rounding, Rule


@dataclass(frozen=True)
class Outcome:
    """What becomes of what is no number of a half: past its largest, infinity, NaN."""

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
    """float64 values as values of the format, in float64. `random`: 32 bits an element, of which the first `rule.bits`
    count."""
    positive, negative = (_round(x.abs(), fmt, half, rule, random) for half in (fmt.positive, fmt.negative))
    return torch.where(torch.signbit(x), negative, positive)


@dataclass(frozen=True)
class Tensors:
    """Of a half on a device: `Half`'s lists, magnitudes with `beyond` (infinity for none) behind them. values: with a
    sign. is_even: of the codes."""

    magnitudes: Tensor
    boundaries: Tensor
    ties_up: Tensor
    values: Tensor
    is_even: Tensor


@cache
def _tensors(fmt: Tabulated, sign: float, device: str) -> Tensors:
    half = fmt.positive if sign > 0 else fmt.negative
    ends = [math.inf] if half.beyond is None else []

    def column(values: list, dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    return Tensors(
        column([*half.magnitudes, *map(float, ends or [half.beyond])], torch.float64),
        column([*half.boundaries, *ends], torch.float64),
        column([*half.ties_up, *map(bool, [0] * len(ends))], torch.bool),
        column([half.zero, *(sign * value for value in half.magnitudes[1:])], torch.float64),
        column([fmt.is_even(code) for code in half.codes], torch.bool),
    )


def _round(magnitude: Tensor, fmt: Tabulated, half: Half, rule: Rule, random: Tensor | None) -> Tensor:
    table = _tensors(fmt, half.sign, str(magnitude.device))
    last = len(half.magnitudes) - 1
    at = (torch.searchsorted(table.magnitudes, magnitude, right=True) - 1).clamp(0, last + 1)
    low = at.clamp(max=last)  # where at is last + 1, `beyond` is passed
    to = torch.where(at > last, at, low + _goes_up(magnitude, low, table, half.sign, rule, random))
    after = outcome(fmt, half, rule)
    result = torch.where(to > last, after.past, table.values[to.clamp(max=last)])
    result = torch.where(magnitude == math.inf, after.infinity, result)
    return torch.where(magnitude.isnan(), after.nan, result)


def _goes_up(
    magnitude: Tensor, low: Tensor, table: Tensors, sign: float, rule: Rule, random: Tensor | None
) -> Tensor:
    """Whether the neighbour above, low + 1, is taken, of magnitudes that are no infinity."""
    below, above, boundary = table.magnitudes[low], table.magnitudes[low + 1], table.boundaries[low]
    is_inexact = (magnitude > below) & (above < math.inf)
    match rule.rounding:
        case Rounding.NEAREST_EVEN:
            return (magnitude > boundary) | (magnitude == boundary) & table.ties_up[low] & is_inexact
        case Rounding.NEAREST_AWAY:
            return (magnitude >= boundary) & is_inexact
        case Rounding.TOWARD_ZERO:
            return torch.zeros_like(is_inexact)
        case Rounding.TOWARD_POSITIVE | Rounding.TOWARD_NEGATIVE:
            return is_inexact & ((rule.rounding is Rounding.TOWARD_POSITIVE) == (sign > 0))
        case Rounding.TO_ODD:
            return is_inexact & table.is_even[low]
        case Rounding.STOCHASTIC:
            distance = ((magnitude - below) / (above - below)).nan_to_num(0.0).clamp(max=1.0)
            return carries(distance, random, rule)


def carries(distance: Tensor, random: Tensor, rule: Rule) -> Tensor:
    """Return whether stochastic rounding goes up from a distance in [0, 1] (float64), as `Form` defines it.

    Args:
        random: 32 random bits for each element, of which the first `rule.bits` count.
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
    """Ascending values with their codes, and each code's value."""
    up, down = fmt.positive, fmt.negative
    pairs = dict(zip((-value for value in down.magnitudes[1:]), down.codes[1:], strict=True))
    pairs |= dict(zip(up.magnitudes, up.codes, strict=True))
    pairs |= {half.sign * math.inf: half.inf_code for half in (up, down) if half.inf_code is not None}
    order = sorted(pairs)
    return (
        torch.tensor(order, dtype=torch.float64, device=device),
        torch.tensor([pairs[value] for value in order], device=device),
        torch.tensor(fmt.values(), dtype=torch.float32, device=device),
    )


def codes_of_values(value: Tensor, fmt: Tabulated) -> Tensor:
    """int64, of float64 values of the format."""
    order, codes, _ = _codes(fmt, str(value.device))
    found = codes[torch.searchsorted(order, value).clamp(max=len(order) - 1)]
    minus_zero = (value == 0) & torch.signbit(value)
    found = torch.where(minus_zero, fmt.negative.codes[0], found)
    return found if fmt.nan_code is None else torch.where(value.isnan(), fmt.nan_code, found)


def values_of_codes(codes: Tensor, fmt: Tabulated) -> Tensor:
    """float32, of the low bits of int64 codes."""
    return _codes(fmt, str(codes.device))[2][codes & (1 << fmt.code_bits) - 1]
