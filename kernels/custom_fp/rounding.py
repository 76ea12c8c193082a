"""Rounding modes decide to which neighbor a value is rounded, and overflow modes what becomes of large values.

A value x is rounded to a multiple of the quantum q = 2**(max(floor(log2|x|), emin) - m), where m is the number of
mantissa bits of the format. This module does not import torch.
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
    """A choice for an operator's argument. Operators also accept its text, such as "nearest_even"."""

    @classmethod
    def _missing_(cls, value: Any) -> None:
        raise ValueError(f"{cls.__name__.lower()} is {value!r}; allowed: {', '.join(cls)}")


class Rounding(_Word):
    """The rounding mode, which decides to which multiple of the quantum q a value x is rounded."""

    NEAREST_EVEN = "nearest_even"
    """q * round(x / q), with ties to the even digit: IEEE 754-2019 roundTiesToEven. With m = 0, a tie between two
    normal values goes to the larger magnitude (section 4.3.1, since both have an odd digit), and a tie between zero and
    the smallest value goes to zero."""

    TOWARD_ZERO = "toward_zero"
    """sign(x) * q * floor(|x| / q). This mode never overflows."""

    STOCHASTIC = "stochastic"
    """sign(x) * q * floor(|x| / q + u), with u uniform in [0, 1) in steps of 2**-31. x is rounded up with a probability
    equal to its distance from the lower neighbor. u is computed by Philox4x32-7 from the seed and the element's index.

    `stochastic_N`, for N from 1 to 31, uses only the first N of the 31 random bits, like an adder in hardware, so u has
    steps of 2**-N. The distance d = |x| / q - floor(|x| / q) is truncated to N bits, and x goes up if adding N random
    bits produces a carry. The probability of rounding up is floor(2**N d) / 2**N, which is at most d. The mean is
    therefore too close to zero, by q 2**-(N + 1) when averaged over d, and a distance below 2**-N has no effect. gfloat
    calls this StochasticFastest.

    `stochastic_fast_N`, `stochastic_even_N` and `stochastic_odd_N`, for N from 1 to 29, have less bias. `Form` defines
    them. Fitzgibbon and Felix compare all four in "On Stochastic Rounding with Few Random Bits" (arXiv:2504.20634)."""

    NEAREST_AWAY = "nearest_away"
    """sign(x) * q * floor(|x| / q + 1/2), with ties to the larger magnitude: IEEE 754-2019 roundTiesToAway."""

    TOWARD_POSITIVE = "toward_positive"
    """q * ceil(x / q), but not below minus the largest value: IEEE 754-2019 roundTowardPositive."""

    TOWARD_NEGATIVE = "toward_negative"
    """q * floor(x / q), but not above the largest value: IEEE 754-2019 roundTowardNegative."""

    TO_ODD = "to_odd"
    """x if x is a multiple of q, and otherwise the neighbor that is an odd multiple of q. Rounding this result to a
    format with at least two digits fewer equals rounding x (Boldo and Melquiond, "Emulation of FMA and correctly
    rounded sums: proved algorithms using rounding to odd", 2008). A value past the largest one becomes the largest one
    if that is an odd multiple, and otherwise overflows. With m = 0, every power of two is odd."""

    @cached_property
    def mode(self) -> int:
        """The number of the mode in `Mode` of csrc/custom_fp.h."""
        return list(Rounding).index(self)


class Form(_Word):
    """How stochastic rounding compares a distance d with N random bits R if d has more than N bits.

    d is the distance from the lower neighbor, 0 <= d < 1. IEEE P3109 defines these forms, and gfloat's RoundMode
    implements all four.
    """

    CUT = ""
    """Round up if floor(2**N d) + R >= 2**N. The probability is floor(2**N d) / 2**N. gfloat's StochasticFastest."""

    FAST = "fast"
    """Round up if floor(2**(N + 1) d) + 2 R + 1 >= 2**(N + 1), which adds half a unit to R. The probability is d
    rounded to N bits, with ties up. The mean is biased, away from zero, only if d lies halfway between two multiples of
    2**-N. gfloat's StochasticFast."""

    EVEN = "even"
    """Round up if n + R >= 2**N, where n is 2**N d rounded to nearest, with ties to even. The probability is n / 2**N.
    The errors of ties cancel when averaged over all d. gfloat's Stochastic."""

    ODD = "odd"
    """Like EVEN, but with ties to odd, so that half a unit of the last random bit is never lost. gfloat's
    StochasticOdd."""

    @property
    def most_bits(self) -> int:
        """The largest number of random bits. Forms other than CUT need three of the 32 bits of a mask."""
        return MOST_BITS if self is Form.CUT else MOST_BITS - 2

    @cached_property
    def mask_bits(self) -> int:
        """The low bits of the mask by which `rounding_bits` in csrc/philox.h recognizes the form."""
        return {Form.CUT: 0b000, Form.FAST: 0b001, Form.EVEN: 0b011, Form.ODD: 0b111}[self]

    def word(self, bits: int | str) -> str:
        """Return the name of the rounding mode with this form and number of bits."""
        return "_".join(filter(None, [Rounding.STOCHASTIC, self, str(bits)]))


MOST_BITS = 31
_FORMS = "|".join(filter(None, Form))
_STOCHASTIC = re.compile(rf"{Rounding.STOCHASTIC}(?:(?:_({_FORMS}))?_([0-9]{{1,9}}))?")


def is_stochastic(word: object) -> bool:
    """Return whether a name means stochastic rounding. The number of bits in the name may be out of range."""
    return isinstance(word, str) and _STOCHASTIC.fullmatch(word) is not None


def read_rounding(
    word: object, allowed: Sequence[str] = tuple(Rounding)
) -> tuple[Rounding, Form, int | None]:
    """Return the mode, the form and the number of random bits: (STOCHASTIC, EVEN, 8) for `stochastic_even_8`.

    Args:
        word: The name of a rounding mode.
        allowed: The allowed modes. If `stochastic` is among them, names with a number of bits are allowed too. Names
            with a form are allowed only if all modes are allowed.

    Returns:
        The mode, the form, and the number of bits, which is None if the name has none.

    Raises:
        ValueError: The mode is not allowed, or the number of bits is out of range for the form.
    """
    found = _STOCHASTIC.fullmatch(word) if isinstance(word, str) else None
    refused = found and found[1] and any(rounding not in allowed for rounding in Rounding)
    if found is None or found[2] is None or Rounding.STOCHASTIC not in allowed or refused:
        if word not in allowed:
            raise ValueError(f"rounding is {word!r}; allowed: {words(allowed)}")
        return Rounding(str(word)), Form.CUT, None
    form, bits = Form(found[1] or ""), int(found[2])
    if not 1 <= bits <= form.most_bits or word != form.word(bits):
        raise ValueError(
            f"rounding is {word!r}; allowed: {_bits_of(form)}, where the suffix is the number of random bits"
        )
    return Rounding.STOCHASTIC, form, bits


def words(allowed: Sequence[str] = tuple(Rounding)) -> str:
    """List the allowed modes for an error message: `nearest_even, stochastic, stochastic_1 to stochastic_31`."""
    forms = Form if all(rounding in allowed for rounding in Rounding) else [Form.CUT]
    few = ", ".join([Rounding.STOCHASTIC, *map(_bits_of, forms)])
    return ", ".join(few if word == Rounding.STOCHASTIC else str(word) for word in allowed)


def _bits_of(form: Form) -> str:
    return f"{form.word(1)} to {form.word(form.most_bits)}"


class Overflow(_Word):
    """The overflow mode, which decides what values past the largest one become after rounding."""

    INFINITY = "infinity"
    """Infinity, or NaN if the format has no infinity, or the largest value if the format has neither."""

    SATURATE = "saturate"
    """The largest value, even for infinite inputs."""

    PROPAGATE = "propagate"
    """The largest value, but infinite inputs stay infinite if the format has infinity: SatPropagate of IEEE P3109."""

    @cached_property
    def mode(self) -> int:
        """The number of the mode in `Overflow` of csrc/custom_fp.h."""
        return list(Overflow).index(self)


@dataclass(frozen=True)
class Rule:
    """How to round the elements of a tensor. `Rule` in csrc/cpu/kernels.h is the C++ counterpart.

    Attributes:
        rounding: The rounding mode. Its name may include a form and a number of bits, such as `stochastic_8`
            and `stochastic_even_8`. The rule then stores them in `form` and `bits`.
        overflow: The overflow mode, which decides what values past the largest one become.
        seed: The seed of stochastic rounding, a signed or unsigned 64-bit integer, or None if it has not been drawn.
        offset: The index of the tensor's first element. With the right offset, a part of a tensor is rounded as it is
            within the whole tensor.
        bits: The number of random bits that are used for each element.
        form: How the distance to the lower neighbor is compared with the random bits.

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
            raise ValueError(f"offset is {self.offset}; it counts elements, from 0 to 2**63 - 1")

    of: ClassVar[Callable[..., Rule]]
    """Return Rule(*parts). Rules are cached, so equal arguments are validated only once."""

    @cached_property
    def is_stochastic(self) -> bool:
        return self.rounding is Rounding.STOCHASTIC

    @property
    def word(self) -> str:
        """The name of the rounding mode. It includes the form and the number of bits unless they are the defaults."""
        plain = not self.is_stochastic or (self.bits == MOST_BITS and self.form is Form.CUT)
        return str(self.rounding) if plain else self.form.word(self.bits)

    @cached_property
    def saturates(self) -> bool:
        return self.overflow is Overflow.SATURATE

    @cached_property
    def propagates(self) -> bool:
        return self.overflow is Overflow.PROPAGATE

    def overflows(self, is_negative: bool, is_odd: bool) -> bool:
        """Return whether a finite number past the largest value overflows, instead of becoming the largest value.

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
        """Return the results for a finite negative number and -inf in a format without a sign (IEEE P3109).

        Both become NaN if the format has NaN and overflow is INFINITY, and 0 otherwise. A finite number that is rounded
        upward always becomes 0.
        """
        gone = math.nan if has_nan and self.overflow is Overflow.INFINITY else 0.0
        upwards = self.rounding in (Rounding.TOWARD_ZERO, Rounding.TOWARD_POSITIVE)
        return 0.0 if upwards else gone, gone

    @cached_property
    def flat(self) -> tuple[int, int, int, int, int]:
        """The numbers that are passed to kernels: (mode, overflow, unsigned seed, offset, mask).

        The mask selects the bits that are used from each element's 32 random bits. Its low bits encode the form.
        """
        seed, mask = (self.seed or 0) & (1 << 64) - 1, (1 << 32) - (1 << 32 - self.bits) | self.form.mask_bits
        return self.rounding.mode, self.overflow.mode, seed, self.offset, mask


Rule.of = lru_cache(maxsize=256)(Rule)
