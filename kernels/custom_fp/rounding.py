"""Rounding modes and overflow: which neighbor a value becomes, and what it becomes past the largest one.

Between the neighbors below and above it, x lies on a grid of quantum q = 2**(max(floor(log2|x|), emin) - m). This
module does not import torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Any, ClassVar


class _Word(StrEnum):
    """A value of an operator's argument. Its text can be used in its place."""

    @classmethod
    def _missing_(cls, value: Any) -> None:
        raise ValueError(f"{cls.__name__.lower()} is {value!r}; allowed: {', '.join(cls)}")


class Rounding(_Word):
    """The rounding mode: which multiple of the quantum q a value x becomes."""

    NEAREST_EVEN = "nearest_even"
    """q * round(x / q), halves to the even digit: IEEE 754-2019 roundTiesToEven. With m = 0 a tie between two normal
    values goes to the larger magnitude (section 4.3.1: both have an odd digit), and half the smallest value to zero."""

    TOWARD_ZERO = "toward_zero"
    """sign(x) * q * floor(|x| / q). It never overflows."""

    STOCHASTIC = "stochastic"
    """sign(x) * q * floor(|x| / q + u), with u uniform in [0, 1) in steps of 2**-31: up with a probability equal to the
    distance. u comes from Philox4x32-7, keyed by (seed, index of the element).

    `stochastic_N`, N = 1 .. 31, has u in steps of 2**-N, from N random bits (the first N of those 31), like an adder in
    hardware. The distance d = |x| / q - floor(|x| / q) is truncated to N bits, and x goes up if adding N random bits
    carries. The probability is floor(2**N d) / 2**N, which is at most d: the mean is too near zero, by q 2**-(N + 1) on
    average over d, and a d below 2**-N is lost. gfloat calls it StochasticFastest.

    `stochastic_fast_N`, `stochastic_even_N` and `stochastic_odd_N`, N = 1 .. 29, are the forms of less bias that
    Fitzgibbon and Felix compare with it, "On Stochastic Rounding with Few Random Bits" (arXiv:2504.20634): `Form`."""

    NEAREST_AWAY = "nearest_away"
    """sign(x) * q * floor(|x| / q + 1/2): halves to the larger magnitude: IEEE 754-2019 roundTiesToAway."""

    TOWARD_POSITIVE = "toward_positive"
    """q * ceil(x / q), at least minus the largest value: IEEE 754-2019 roundTowardPositive."""

    TOWARD_NEGATIVE = "toward_negative"
    """q * floor(x / q), at most the largest value: IEEE 754-2019 roundTowardNegative."""

    TO_ODD = "to_odd"
    """x if it is a multiple of q, and otherwise its neighbor that is an odd multiple. Rounding that to two or more
    digits fewer equals rounding x (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms
    using rounding to odd", 2008). Past the largest value: that value if it is an odd multiple, and otherwise what
    Overflow says. With m = 0 every power of two is odd."""

    @cached_property
    def mode(self) -> int:
        """The number of the mode, `Mode` in csrc/custom_fp.h."""
        return list(Rounding).index(self)


class Form(_Word):
    """How stochastic rounding treats a distance d that has more digits than the N random bits R.

    d is the distance from the value below, 0 <= d < 1. gfloat's RoundMode has all four forms; IEEE P3109 defines them.
    """

    CUT = ""
    """Up if floor(2**N d) + R >= 2**N: with probability floor(2**N d) / 2**N. gfloat's StochasticFastest."""

    FAST = "fast"
    """Up if floor(2**(N + 1) d) + 2 R + 1 >= 2**(N + 1), which adds half a bit to R. The probability is d rounded to N
    bits, halves up. The mean is too far from zero only if d lies halfway between N bits. gfloat's StochasticFast."""

    EVEN = "even"
    """Up if n + R >= 2**N, where n = 2**N d is rounded to nearest, halves to even. The probability is n / 2**N. What
    halves gain and lose cancels over all d. gfloat's Stochastic."""

    ODD = "odd"
    """The same, with halves to odd: half of the last random bit is then never lost. gfloat's StochasticOdd."""

    @property
    def most_bits(self) -> int:
        """The largest number of random bits. `rounding_bits` in csrc/philox.h uses three of the 32 bits itself."""
        return MOST_BITS if self is Form.CUT else MOST_BITS - 2

    @cached_property
    def mask_bits(self) -> int:
        """The bits that `rounding_bits` in csrc/philox.h reads below the bits that count."""
        return {Form.CUT: 0b000, Form.FAST: 0b001, Form.EVEN: 0b011, Form.ODD: 0b111}[self]

    def word(self, bits: int | str) -> str:
        """Return the name of the rounding mode with this form and number of bits."""
        return "_".join(filter(None, [Rounding.STOCHASTIC, self, str(bits)]))


MOST_BITS = 31
_FORMS = "|".join(filter(None, Form))
_STOCHASTIC = re.compile(rf"{Rounding.STOCHASTIC}(?:(?:_({_FORMS}))?_(\d{{1,9}}))?")


def is_stochastic(word: object) -> bool:
    """Return whether a name is that of stochastic rounding, with any number of bits, allowed or not."""
    return isinstance(word, str) and _STOCHASTIC.fullmatch(word) is not None


def read_rounding(
    word: object, allowed: Sequence[str] = tuple(Rounding)
) -> tuple[Rounding, Form, int | None]:
    """Return the mode, the form and the number of random bits: (STOCHASTIC, EVEN, 8) for `stochastic_even_8`.

    Args:
        word: The name of a rounding mode.
        allowed: The allowed modes. `stochastic` allows a number of bits, and forms only if all modes are allowed.

    Returns:
        The mode, the form, and the number of bits or None if the name has none.

    Raises:
        ValueError: The mode is not allowed, or its form does not have this number of bits.
    """
    found = _STOCHASTIC.fullmatch(word) if isinstance(word, str) else None
    refused = found and found[1] and any(rounding not in allowed for rounding in Rounding)
    if found is None or found[2] is None or Rounding.STOCHASTIC not in allowed or refused:
        if word not in allowed:
            raise ValueError(f"rounding is {word!r}; allowed: {words(allowed)}")
        return Rounding(str(word)), Form.CUT, None
    form, bits = Form(found[1] or ""), int(found[2])
    if not 1 <= bits <= form.most_bits or word != form.word(bits):
        raise ValueError(f"rounding is {word!r}; allowed: {_bits_of(form)}, the number of random bits")
    return Rounding.STOCHASTIC, form, bits


def words(allowed: Sequence[str] = tuple(Rounding)) -> str:
    """List the allowed modes for an error message: `nearest_even, stochastic, stochastic_1 .. stochastic_31`."""
    forms = Form if all(rounding in allowed for rounding in Rounding) else [Form.CUT]
    few = ", ".join([Rounding.STOCHASTIC, *map(_bits_of, forms)])
    return ", ".join(few if word == Rounding.STOCHASTIC else str(word) for word in allowed)


def _bits_of(form: Form) -> str:
    return f"{form.word(1)} .. {form.word(form.most_bits)}"


class Overflow(_Word):
    """What values past the largest one become, after rounding."""

    INFINITY = "infinity"
    """inf, or NaN if the format has no inf, or the largest value if it has neither."""

    SATURATE = "saturate"
    """The largest value, for infinite inputs too."""

    PROPAGATE = "propagate"
    """The largest value, but infinite inputs stay infinite if the format has inf: SatPropagate of IEEE P3109."""

    @cached_property
    def mode(self) -> int:
        """The number of the rule, `Overflow` in csrc/custom_fp.h."""
        return list(Overflow).index(self)


@dataclass(frozen=True)
class Rule:
    """How the elements of a tensor are rounded: `Rule` in csrc/cpu/kernels.h.

    Attributes:
        rounding: The rounding mode. Its name may say the form and the bits: `stochastic_8`, `stochastic_even_8`.
        overflow: What values past the largest one become.
        seed: The seed of stochastic rounding, 64 bits with or without a sign; None if it is not drawn yet.
        offset: The index of the first element, so that a part of a tensor is rounded as it is in the whole.
        bits: The number of random bits of an element that count.
        form: How the distance is compared with the random bits.

    Raises:
        ValueError: The name of a mode is unknown, or the offset is out of range.
    """

    rounding: Rounding = Rounding.NEAREST_EVEN
    overflow: Overflow = Overflow.INFINITY
    seed: int | None = None
    offset: int = 0
    bits: int = MOST_BITS
    form: Form = Form.CUT

    def __post_init__(self) -> None:
        rounding, form, bits = read_rounding(self.rounding)
        object.__setattr__(self, "rounding", rounding)
        if bits is not None:
            object.__setattr__(self, "bits", bits)
            object.__setattr__(self, "form", form)
        object.__setattr__(self, "overflow", Overflow(self.overflow))
        if not 0 <= self.offset < 1 << 63:
            raise ValueError(f"offset is {self.offset}; it counts elements, from 0")

    of: ClassVar[Callable[..., Rule]]
    """Return Rule(*parts), which is made and checked once."""

    @cached_property
    def is_stochastic(self) -> bool:
        return self.rounding is Rounding.STOCHASTIC

    @property
    def word(self) -> str:
        """The name of the rounding mode, without a number of bits if all of them count."""
        plain = not self.is_stochastic or (self.bits == MOST_BITS and self.form is Form.CUT)
        return str(self.rounding) if plain else self.form.word(self.bits)

    @cached_property
    def saturates(self) -> bool:
        return self.overflow is Overflow.SATURATE

    @cached_property
    def propagates(self) -> bool:
        return self.overflow is Overflow.PROPAGATE

    def overflows(self, is_negative: bool, is_odd: bool) -> bool:
        """Return whether a finite number past the largest value becomes what infinity becomes, and not that value.

        Args:
            is_negative: The sign of the number.
            is_odd: Whether the last digit of the largest value is odd.
        """
        if self.overflow is not Overflow.INFINITY or self.rounding is Rounding.TOWARD_ZERO:
            return False
        if self.rounding is Rounding.TO_ODD:
            return not is_odd
        return self.rounding is not (Rounding.TOWARD_POSITIVE if is_negative else Rounding.TOWARD_NEGATIVE)

    def below_zero(self, has_nan: bool) -> tuple[float, float]:
        """Return what a negative number and -inf become in a format without a sign, as IEEE P3109 defines it.

        They become NaN if the format has one and overflow is INFINITY, and 0 otherwise. A finite number that is rounded
        upwards becomes 0.
        """
        gone = math.nan if has_nan and self.overflow is Overflow.INFINITY else 0.0
        upwards = self.rounding in (Rounding.TOWARD_ZERO, Rounding.TOWARD_POSITIVE)
        return 0.0 if upwards else gone, gone

    @cached_property
    def flat(self) -> tuple[int, int, int, int, int]:
        """The arguments of the kernels: (mode, overflow, seed without a sign, offset, mask).

        The mask has ones for those of an element's 32 random bits that count, and the form in its low bits.
        """
        seed, mask = (self.seed or 0) & (1 << 64) - 1, (1 << 32) - (1 << 32 - self.bits) | self.form.mask_bits
        return self.rounding.mode, self.overflow.mode, seed, self.offset, mask


Rule.of = lru_cache(maxsize=256)(Rule)
