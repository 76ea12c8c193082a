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
    on average over d, and a d below 2**-N is lost. gfloat calls it StochasticFastest; Fitzgibbon and Felix, "On
    Stochastic Rounding with Few Random Bits" (arXiv:2504.20634), compare it with forms of less bias."""

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


MOST_BITS = 31
_STOCHASTIC = re.compile(rf"{Rounding.STOCHASTIC}(?:_(\d{{1,9}}))?")


def is_stochastic(word: object) -> bool:
    """Whether a rounding's word, right or wrong in its number of bits, draws."""
    return isinstance(word, str) and _STOCHASTIC.fullmatch(word) is not None


def read_rounding(word: object, allowed: Sequence[str] = tuple(Rounding)) -> tuple[Rounding, int | None]:
    """`stochastic_8` as (STOCHASTIC, 8); the bits are None where the word names none. Raises ValueError for a word that
    is none of `allowed`, and for a number of bits that there is not."""
    found = _STOCHASTIC.fullmatch(word) if isinstance(word, str) else None
    if found is None or found[1] is None or Rounding.STOCHASTIC not in allowed:
        if word not in allowed:
            raise ValueError(f"rounding is {word!r}; allowed: {words(allowed)}")
        return Rounding(word), None
    if not 1 <= (bits := int(found[1])) <= MOST_BITS or word != f"{Rounding.STOCHASTIC}_{bits}":
        raise ValueError(
            f"rounding is {word!r}; allowed: {Rounding.STOCHASTIC}_1 .. {Rounding.STOCHASTIC}_{MOST_BITS}, "
            f"the number of random bits"
        )
    return Rounding.STOCHASTIC, bits


def words(allowed: Sequence[str] = tuple(Rounding)) -> str:
    """For an error: `nearest_even, stochastic, stochastic_1 .. stochastic_31`."""
    few = f"{Rounding.STOCHASTIC}, {Rounding.STOCHASTIC}_1 .. {Rounding.STOCHASTIC}_{MOST_BITS}"
    return ", ".join(few if word == Rounding.STOCHASTIC else str(word) for word in allowed)


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
    first element, so that a part of a tensor is rounded as it is in the whole. bits: how many random bits an element
    has; the word says it, as `stochastic_8`.
    """

    rounding: Rounding = Rounding.NEAREST_EVEN
    overflow: Overflow = Overflow.INFINITY
    seed: int | None = None
    offset: int = 0
    bits: int = MOST_BITS

    def __post_init__(self) -> None:
        rounding, bits = read_rounding(self.rounding)
        object.__setattr__(self, "rounding", rounding)
        object.__setattr__(self, "bits", self.bits if bits is None else bits)
        object.__setattr__(self, "overflow", Overflow(self.overflow))
        if not 0 <= self.offset < 1 << 63:
            raise ValueError(f"offset is {self.offset}; it counts elements, from 0")

    of: ClassVar[Callable[..., Rule]]
    """Rule(*parts), made and checked once."""

    @cached_property
    def is_stochastic(self) -> bool:
        return self.rounding is Rounding.STOCHASTIC

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
        where an element's 32 random bits count."""
        seed, mask = (self.seed or 0) & (1 << 64) - 1, (1 << 32) - (1 << 32 - self.bits)
        return self.rounding.mode, self.overflow.mode, seed, self.offset, mask


Rule.of = lru_cache(maxsize=256)(Rule)
