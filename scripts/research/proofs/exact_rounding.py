"""The definition of rounding to a format in integers, as terms of an SMT solver, for the proofs.

x = sig * 2**p is divided by the quantum of its binade, with shifts of integers. reference.py contains the same
definition in float64. This module shares no code with reference.py or with the header.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from research.proofs.bit_words import TERMS, Truth, Word, all_of, any_of, no, where

INFINITY, SATURATE, PROPAGATE = range(3)
INF, NAN = 0x7F800000, 0x7FC00000  # the bit patterns of infinity and NaN in float32


class AnyFormat:
    """A format with unknown parameters, which represents all formats within bounds on exponent and mantissa bits.

    It corresponds to formats/scalar.py.
    """

    def __init__(self, exponent_bits: tuple[int, int], mantissa_bits: tuple[int, int]) -> None:
        names = ("exponent_bits", "mantissa_bits", "emin", "has_inf", "has_nan", "is_fnuz", "is_unsigned")
        self.unknown = {name: Word.unknown(32, name) for name in names}
        self.e, self.m, self.emin, inf, nan, fnuz, unsigned = self.unknown.values()
        self.spec = (fnuz << 31) | (inf << 30) | (nan << 29) | ((self.emin + 512) << 16) | (unsigned << 15)
        self.spec = self.spec | (self.m << 8) | self.e
        self.has_inf, self.has_nan, self.is_fnuz, self.is_unsigned = (
            word.equals(1) for word in (inf, nan, fnuz, unsigned)
        )
        self.width = self.e + self.m  # the number of bits of a code without its sign
        self.one = Word.number(32, 1)
        self.inf_code = ((self.one << self.e) - 1) << self.m
        all_ones = (self.one << self.width) - 1
        last_is_nan = all_of(self.has_nan, no(self.is_fnuz))
        self.max_code = where(self.has_inf, self.inf_code - 1, where(last_is_nan, all_ones - 1, all_ones))
        self.max = self.magnitude(self.max_code)
        self.bounds = [
            *(
                word >= low
                for word, low in zip((self.e, self.m), (exponent_bits[0], mantissa_bits[0]), strict=True)
            ),
            *(
                word <= high
                for word, high in zip((self.e, self.m), (exponent_bits[1], mantissa_bits[1]), strict=True)
            ),
        ]

    @cached_property
    def facts(self) -> list[Truth]:
        """The conditions that the unknown parameters satisfy because they belong to a valid format."""
        field = self.max_code >> self.m
        emax = where(field.equals(0), self.emin - 1, self.emin - 1 + field)
        flags = list(self.unknown.values())[3:]
        ieee = all_of(no(self.is_fnuz), any_of(*(all_of(a, b) for a, b in self._nan_of_ieee())))
        return [
            *self.bounds,
            *(flag >= 0 for flag in flags),
            *(flag <= 1 for flag in flags),
            self.emin >= -126,
            self.emin <= 104,
            emax <= 127,
            any_of(no(self.has_inf), ieee),
            any_of(no(self.is_fnuz), all_of(self.has_nan, no(self.has_inf), no(self.is_unsigned))),
        ]

    def _nan_of_ieee(self) -> Iterator[tuple[Truth, Truth]]:
        yield self.m > 0, self.has_nan
        yield self.m.equals(0), no(self.has_nan)

    @property
    def is_plain(self) -> Truth:
        return all_of(no(self.is_fnuz), no(self.is_unsigned))

    def magnitude(self, code: Word) -> Word:
        """Return the float32 bits of a finite value, from its code without the sign."""
        field, digits = code >> self.m, code & ((self.one << self.m) - 1)
        is_subnormal = field.equals(0)
        significand = where(is_subnormal, digits, digits + (self.one << self.m))
        return bits_of(significand, where(is_subnormal, self.emin, self.emin + field - 1) - self.m)

    def value_of(self, code: Word) -> Word:
        """Return the float32 bits of the value of a code. Bits above those of the format are ignored."""
        magnitude = code & ((self.one << self.width) - 1)
        sign = where(all_of(no(self.is_unsigned), code.bit(self.width)), 1 << 31, 0)
        is_infinite = all_of(self.has_inf, magnitude.equals(self.inf_code))
        special = where(is_infinite, sign | INF, NAN)
        found = where(magnitude > self.max_code, special, self.magnitude(magnitude) | sign)
        is_minus_zero = all_of(magnitude.equals(0), sign.differs(0))
        return where(all_of(self.is_fnuz, is_minus_zero), NAN, found)

    @property
    def nan_code(self) -> Word:
        of_ieee = self.inf_code | ((self.one << self.m) >> 1)
        return where(self.has_inf, of_ieee, self.max_code + 1)


def bits_of(n: Word, exponent: Word) -> Word:
    """Return the float32 bits of n * 2**exponent, a multiple of 2**-149, with as large an exponent field as needed."""
    top = n.highest_one() + exponent
    normal = ((top + 127) << 23) + ((n << (n.like(23) - n.highest_one())) & 0x7FFFFF)
    return where(n.equals(0), 0, where(top >= -126, normal, n << (exponent + 149)))


def rounded(fmt: AnyFormat, x: Word, rounding: str, overflow: Word, random: Word) -> Word:
    """Return the result of quantize, as rounding.py and reference.py define it."""
    magnitude, is_negative = x & 0x7FFFFFFF, x.bit(31)
    found = _multiple(fmt, magnitude, is_negative, rounding, random)
    infinity, past = _past_max(fmt, is_negative, rounding, overflow)
    found = where(found > fmt.max, past, found)
    found = where(magnitude.equals(INF), infinity, found)
    nan = where(fmt.has_nan, NAN, where(fmt.has_inf, INF, fmt.max))
    is_number = all_of(magnitude <= INF, found <= INF)
    signed = where(is_number, found | (x & (1 << 31)), found)
    return where(magnitude > INF, nan, _settled(fmt, signed, magnitude, rounding, overflow))


def _multiple(fmt: AnyFormat, magnitude: Word, is_negative: Truth, rounding: str, random: Word) -> Word:
    """Return the bits of a finite magnitude, rounded to a multiple of the quantum of its binade."""
    field, fraction = magnitude >> 23, magnitude & 0x7FFFFF
    significand = where(field.equals(0), fraction, fraction | 0x800000)
    p = where(field.equals(0), 1, field) - 150
    top = significand.highest_one() + p
    quantum = where(top < fmt.emin, fmt.emin, top) - fmt.m
    dropped = (
        quantum - p
    )  # the number of dropped bits. With 60, all 24 bits and all 31 random bits are dropped.
    few = where(dropped > 60, 60, where(dropped < 0, 0, dropped)).widened(64)
    x = significand.widened(64)
    n = x >> few
    rest, unit = x - (n << few), Word.number(64, 1) << few
    up = _goes_up(n.bit(0), rest, unit, few, is_negative, rounding, random)
    return where(dropped < 0, magnitude, bits_of(where(up, n + 1, n).low(32), quantum))


def _goes_up(
    is_odd: Truth, rest: Word, unit: Word, bits: Word, is_negative: Truth, rounding: str, random: Word
) -> Truth:
    """Return whether rest / unit, with unit = 2**bits, is rounded up, as rule.Rounding defines it."""
    twice, is_inexact = rest << 1, rest.differs(0)
    match rounding:
        case "nearest_even":
            return any_of(twice > unit, all_of(twice.equals(unit), is_odd))
        case "nearest_away":
            return twice >= unit
        case "toward_positive":
            return all_of(is_inexact, no(is_negative))
        case "toward_negative":
            return all_of(is_inexact, is_negative)
        case "to_odd":
            return all_of(is_inexact, no(is_odd))
        case "stochastic":
            return carries(rest, bits, random)
    return TERMS.mk_false()


def carries(rest: Word, bits: Word, random: Word) -> Truth:
    """Return whether rest / 2**bits + u is at least 1.

    u is the upper 31 of 32 random bits, divided by 2**31, followed by infinitely many ones if the last bit is set.
    """
    digits = (rest << 31) >> bits
    is_more = all_of(random.bit(0), (digits << bits).differs(rest << 31))
    return where(is_more, digits + 1, digits) + (random >> 1).widened(rest.width) >= 1 << 31


def _past_max(fmt: AnyFormat, is_negative: Truth, rounding: str, overflow: Word) -> tuple[Word, Word]:
    """Return the magnitude that replaces infinity, and the one that replaces finite numbers above the largest value."""
    special = where(fmt.has_inf, INF, where(fmt.has_nan, NAN, fmt.max))
    keeps = any_of(overflow.equals(SATURATE), all_of(overflow.equals(PROPAGATE), no(fmt.has_inf)))
    infinity = where(keeps, fmt.max, special)
    max_is_odd = where(fmt.m.equals(0), fmt.max_code, fmt.max_code & 1).differs(0)
    stays = {
        "toward_zero": TERMS.mk_true(), "to_odd": max_is_odd, "toward_negative": no(is_negative),
        "toward_positive": is_negative,
    }.get(rounding, TERMS.mk_false())  # fmt: skip
    return infinity, where(any_of(overflow.differs(INFINITY), stays), fmt.max, infinity)


def _settled(fmt: AnyFormat, value: Word, magnitude: Word, rounding: str, overflow: Word) -> Word:
    """Replace -0 and negative numbers if the format has none. `magnitude` is that of the input."""
    gone = where(all_of(fmt.has_nan, overflow.equals(INFINITY)), NAN, 0)
    number = gone.like(0) if rounding in ("toward_zero", "toward_positive") else gone
    is_below = all_of(fmt.is_unsigned, value.bit(31), value.differs(1 << 31))
    value = where(is_below, where(magnitude.equals(INF), gone, number), value)
    is_minus_zero = value.equals(1 << 31)
    return where(all_of(no(fmt.is_plain), is_minus_zero), 0, value)
