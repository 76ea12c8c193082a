"""How a value becomes one of a format's: which neighbour it takes, and what it is past the largest. No torch here.

Between the format's values below and above it, x lies on a grid of quantum q = 2**(max(floor(log2|x|), emin) - m).
"""

from __future__ import annotations

from collections.abc import Callable
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
    distance. u is Philox4x32-7's, keyed by (seed, index of the element)."""

    @cached_property
    def mode(self) -> int:
        """Its number, `Mode` in csrc/custom_fp.h."""
        return list(Rounding).index(self)


class Overflow(_Word):
    """What is past the largest value after rounding."""

    INFINITY = "infinity"
    """inf; NaN where the format has no inf, max if it has neither."""

    SATURATE = "saturate"
    """max, for infinite inputs too."""


@dataclass(frozen=True)
class Rule:
    """How the elements of a tensor are rounded: `Rule` in csrc/cpu_kernels.h. Raises ValueError for a word or an offset
    that does not fit.

    seed: of stochastic rounding, 64 bits with or without a sign; None: not drawn yet. offset: the index of the tensor's
    first element, so that a part of a tensor is rounded as it is in the whole.
    """

    rounding: Rounding = Rounding.NEAREST_EVEN
    overflow: Overflow = Overflow.INFINITY
    seed: int | None = None
    offset: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "rounding", Rounding(self.rounding))
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
    def flat(self) -> tuple[int, bool, int, int]:
        """(mode, saturates, seed, offset), as the kernels take them: the seed without a sign."""
        return self.rounding.mode, self.saturates, (self.seed or 0) & (1 << 64) - 1, self.offset


Rule.of = lru_cache(maxsize=256)(Rule)
