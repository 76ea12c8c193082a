"""How a value becomes one of a format's: which neighbour it takes, and what it is past the largest. No torch here.

Between the format's values below and above it, x lies on a grid of quantum q = 2**(max(floor(log2|x|), emin) - m).
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
    """A word of the operators' arguments: the string is as good as the member."""

    @classmethod
    def _missing_(cls, value: Any) -> None:
        raise ValueError(f"{cls.__name__.lower()} is {value!r}; allowed: {', '.join(cls)}")


class Rounding(_Word):
    """Which multiple of the quantum x becomes."""

    NEAREST_EVEN = "nearest_even"
    """q * round(x / q), halves to the even digit: IEEE 754-2019 roundTiesToEven. With m = 0 a tie between two normal
    values goes to the larger magnitude (4.3.1: both have an odd digit), half the smallest value to zero: it is even."""

    TOWARD_ZERO = "toward_zero"
    """sign(x) * q * floor(|x| / q); never overflows."""

    STOCHASTIC = "stochastic"
    """sign(x) * q * floor(|x| / q + u), u uniform in [0, 1) in steps of 2**-31: up with a probability equal to the
    distance. u is Philox4x32-7's, keyed by (seed, index of the element).

    `stochastic_N`, N of 1..31: u in steps of 2**-N, from N random bits (the first N of those 31), as an adder in
    hardware has it: d = |x| / q - floor(|x| / q) is cut off after N bits, and goes up where the N random bits, added to
    it, carry. So with probability floor(2**N d) / 2**N, which is d or less: the mean is too near zero, by q 2**-(N + 1)
    on average over d, and a d below 2**-N is lost. gfloat calls it StochasticFastest.

    `stochastic_fast_N`, `stochastic_even_N` and `stochastic_odd_N`, N of 1..29: the forms of less bias that Fitzgibbon
    and Felix compare it with, "On Stochastic Rounding with Few Random Bits" (arXiv:2504.20634). See `Form`."""

    NEAREST_AWAY = "nearest_away"
    """sign(x) * q * floor(|x| / q + 1/2): halves to the larger magnitude. IEEE 754-2019 roundTiesToAway."""

    TOWARD_POSITIVE = "toward_positive"
    """q * ceil(x / q): what is below minus the largest value becomes that. IEEE 754-2019 roundTowardPositive."""

    TOWARD_NEGATIVE = "toward_negative"
    """q * floor(x / q): what is past the largest value becomes that. IEEE 754-2019 roundTowardNegative."""

    TO_ODD = "to_odd"
    """x where it is a multiple of q, else the one of its two neighbours that is an odd multiple: to round the result to
    at least two digits fewer is to round x (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved
    algorithms using rounding to odd", 2008). Past the largest value: that, where it is an odd multiple, else what
    Overflow says. With m = 0 every power of two is odd."""

    @cached_property
    def mode(self) -> int:
        """Its number, `Mode` in csrc/custom_fp.h."""
        return list(Rounding).index(self)


class Form(_Word):
    """How stochastic rounding meets a distance d from the value below, 0 <= d < 1, of more digits than the N random
    bits R have. gfloat's RoundMode has all four, of IEEE P3109's stochastic roundings."""

    CUT = ""
    """Up where floor(2**N d) + R >= 2**N: with probability floor(2**N d) / 2**N. gfloat's StochasticFastest."""

    FAST = "fast"
    """Up where floor(2**(N + 1) d) + 2 R + 1 >= 2**(N + 1), half a bit added to R: with the probability that is d
    rounded to N bits, halves up. Too far from zero for a d halfway between N bits, and nowhere else. gfloat's
    StochasticFast."""

    EVEN = "even"
    """Up where n + R >= 2**N, n = 2**N d rounded to nearest, halves to even: with probability n / 2**N; what halves
    gain and lose is the same over all d. gfloat's Stochastic."""

    ODD = "odd"
    """So, halves to odd: a half of the last random bit is then never lost. gfloat's StochasticOdd."""

    @property
    def most_bits(self) -> int:
        """csrc/philox.h: `shaped` keeps three of 32 for itself."""
        return MOST_BITS if self is Form.CUT else MOST_BITS - 2

    @cached_property
    def told(self) -> int:
        """What csrc/philox.h's `shaped` reads below the bits that count."""
        return {Form.CUT: 0b000, Form.FAST: 0b001, Form.EVEN: 0b011, Form.ODD: 0b111}[self]

    def word(self, bits: int | str) -> str:
        return "_".join(filter(None, [Rounding.STOCHASTIC, self, str(bits)]))


MOST_BITS = 31
_FORMS = "|".join(filter(None, Form))
_STOCHASTIC = re.compile(rf"{Rounding.STOCHASTIC}(?:(?:_({_FORMS}))?_(\d{{1,9}}))?")


def is_stochastic(word: object) -> bool:
    """Whether a rounding's word, right or wrong in its number of bits, draws."""
    return isinstance(word, str) and _STOCHASTIC.fullmatch(word) is not None


def read_rounding(
    word: object, allowed: Sequence[str] = tuple(Rounding)
) -> tuple[Rounding, Form, int | None]:
    """`stochastic_even_8` as (STOCHASTIC, EVEN, 8); the bits are None where the word names none. Raises ValueError for
    a word that is none of `allowed`, where `stochastic` allows a number of bits, and for a number that there is not.
    Forms other than CUT go where every rounding does."""
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
    """For an error: `nearest_even, stochastic, stochastic_1 .. stochastic_31`."""
    forms = Form if all(rounding in allowed for rounding in Rounding) else [Form.CUT]
    few = ", ".join([Rounding.STOCHASTIC, *map(_bits_of, forms)])
    return ", ".join(few if word == Rounding.STOCHASTIC else str(word) for word in allowed)


def _bits_of(form: Form) -> str:
    return f"{form.word(1)} .. {form.word(form.most_bits)}"


class Overflow(_Word):
    """What is past the largest value after rounding."""

    INFINITY = "infinity"
    """inf; NaN where the format has no inf, max if it has neither."""

    SATURATE = "saturate"
    """max, for infinite inputs too."""

    PROPAGATE = "propagate"
    """max, but for infinite inputs, which stay infinite where the format has inf: SatPropagate of IEEE P3109."""

    @cached_property
    def mode(self) -> int:
        """Its number, `Overflow` in csrc/custom_fp.h."""
        return list(Overflow).index(self)


@dataclass(frozen=True)
class Rule:
    """How the elements of a tensor are rounded: `Rule` in csrc/cpu/kernels.h. Raises ValueError for a word or an offset
    that does not fit.

    seed: of stochastic rounding, 64 bits with or without a sign; None: not drawn yet. offset: the index of the tensor's
    first element, so that a part of a tensor is rounded as it is in the whole. bits, form: how many random bits an
    element has, and what they do; the word says both, as `stochastic_8` and `stochastic_even_8`.
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
    """Rule(*parts), made and checked once."""

    @cached_property
    def is_stochastic(self) -> bool:
        return self.rounding is Rounding.STOCHASTIC

    @property
    def word(self) -> str:
        """The rounding as it is typed, without a number of bits where all of them count."""
        plain = not self.is_stochastic or (self.bits == MOST_BITS and self.form is Form.CUT)
        return str(self.rounding) if plain else self.form.word(self.bits)

    @cached_property
    def saturates(self) -> bool:
        return self.overflow is Overflow.SATURATE

    @cached_property
    def propagates(self) -> bool:
        return self.overflow is Overflow.PROPAGATE

    def overflows(self, is_negative: bool, is_odd: bool) -> bool:
        """Whether a finite number past the largest value becomes what infinity does, and not that value: its sign, and
        whether that value's last digit is odd."""
        if self.overflow is not Overflow.INFINITY or self.rounding is Rounding.TOWARD_ZERO:
            return False
        if self.rounding is Rounding.TO_ODD:
            return not is_odd
        return self.rounding is not (Rounding.TOWARD_POSITIVE if is_negative else Rounding.TOWARD_NEGATIVE)

    def below_zero(self, has_nan: bool) -> tuple[float, float]:
        """What a negative number and -inf are in a format without a sign, as IEEE P3109 has it: NaN where there is one
        and Overflow does not say that ends are kept to; 0 otherwise, and where a finite number is rounded upwards."""
        gone = math.nan if has_nan and self.overflow is Overflow.INFINITY else 0.0
        upwards = self.rounding in (Rounding.TOWARD_ZERO, Rounding.TOWARD_POSITIVE)
        return 0.0 if upwards else gone, gone

    @cached_property
    def flat(self) -> tuple[int, int, int, int, int]:
        """(mode, overflow, seed, offset, mask), as the kernels take them: the seed without a sign; the mask has ones
        where an element's 32 random bits count, and the form below them."""
        seed, mask = (self.seed or 0) & (1 << 64) - 1, (1 << 32) - (1 << 32 - self.bits) | self.form.told
        return self.rounding.mode, self.overflow.mode, seed, self.offset, mask


Rule.of = lru_cache(maxsize=256)(Rule)
