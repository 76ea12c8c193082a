"""Formats that are defined by tables: they have at most 16 bits, and each code can have any value.

A kind of format defines the value of each code (`value_of`). All rounding modes, encoding, packing, sums and products
are derived from these values, on the CPU and in CUDA (csrc/tabulated/). by_table/ contains the kinds. This module does
not import torch.

Values of the same sign form a `Half`, in the order of their magnitudes. A number x whose magnitude lies between the
neighbors low and high is rounded as follows:

    nearest_even    rounds up above `boundary`. The boundary is the midpoint unless a kind defines another one. On the
                    boundary, the neighbor with the even code is chosen.
    stochastic      rounds up with probability floor(2^31 d) / 2^31, where d = (|x| - low) / (high - low) in double.
    other modes     choose low or high as `Rounding` defines.

Past the largest value, numbers are rounded as if one more value, `beyond`, existed. Numbers that round to `beyond`
overflow. Without `beyond`, every finite number past the largest value becomes the largest value, and the overflow mode
applies only to infinity. In a format without a sign, the largest value of the negative half is zero, so every negative
number is past the largest value.

Every value is a float32. The values of a kind are rounded to 23 binary digits, so that the midpoint of two values is
also a float32. Values with at most 23 digits do not change. float32 cannot represent values past its largest one, or
values below 2**-126 that are not multiples of 2**-134. Such values are never written. A number that would be rounded to
one of them becomes the nearest nonzero value that float32 can represent, and so does such a code when it is decoded.
`unheld` counts these codes.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

from custom_fp.formats.protocol import NumberFormat
from custom_fp.formats.scalar import Format

Number = float | Fraction

_DIGITS = 23
_LARGEST = (2 - 2.0**-22) * 2.0**127
_SMALLEST, _FINEST, _TINIEST = 2.0**-126, 2.0**-134, 2.0**-149


@dataclass(frozen=True)
class Half:
    """The values of one sign, as magnitudes.

    Attributes:
        sign: 1.0 or -1.0.
        magnitudes: The magnitudes in ascending order, beginning with zero. In a codebook without zero, the first entry
            stands for the value nearest to zero. If that value has the opposite sign, the entry is negative.
        codes: The code of each magnitude.
        boundaries: The boundary between each magnitude and the next one. If `beyond` is not None, the last entry is the
            boundary between the largest magnitude and `beyond`.
        ties_up: For each boundary, whether a number on the boundary becomes the larger neighbor.
        beyond: The magnitude that would follow the largest one, or None.
        inf_code: The code of infinity with this sign, or None.
        zero: The zero of this sign, or the only zero of the format. In a codebook, the value nearest to zero.
    """

    sign: float
    magnitudes: tuple[float, ...]
    codes: tuple[int, ...]
    boundaries: tuple[float, ...]
    ties_up: tuple[bool, ...]
    beyond: Number | None
    inf_code: int | None
    zero: float


class Tabulated(NumberFormat):
    """A format of at most 16 bits that is defined by the values of its codes, one of which is zero."""

    BACKENDS: ClassVar = Format.BACKENDS
    exponent_bits: ClassVar = None
    tapered: ClassVar[bool] = False
    """Whether precision is highest in the middle of the range. `emax` is then the end of the precise range."""

    if TYPE_CHECKING:  # declared read-only, as in NumberFormat

        @property
        def beyond(self) -> Number | None: ...

    else:
        beyond: Number | None = None
        """The value that would follow the largest one. Numbers that round to it overflow. If None, none do."""

    @abstractmethod
    def value_of(self, code: int) -> Number:
        """Return the exact value of a code from 0 to 2**code_bits - 1, or a double close to it.

        The value can be -0.0, infinity or NaN.
        """

    def boundary(self, low: int, high: int | None) -> Number:
        """Return the magnitude at which rounding to nearest changes from one code to the code of the next magnitude.

        Args:
            low: The code of the smaller magnitude.
            high: The code of the next larger magnitude, or None for `beyond`.
        """
        end = self.beyond if high is None else self._exact[high]
        assert end is not None  # `_half` passes None for `high` only if `beyond` exists
        below, above = magnitude(self._exact[low]), magnitude(end)
        if isinstance(below, float) and isinstance(above, float) and (below + above) - above == below:
            return (below + above) / 2  # an exact sum
        return (Fraction(below) + Fraction(above)) / 2

    def is_even(self, code: int) -> bool:
        """Return whether ties are rounded to a code. `beyond` counts as even if the largest value is not even."""
        return code % 2 == 0

    @cached_property
    def _exact(self) -> list[Number]:
        if not 1 <= self.code_bits <= 16:
            raise ValueError(f"{self.name} has {self.code_bits} bits; a table can have at most 16 bits")
        return [self.value_of(code) for code in range(1 << self.code_bits)]

    @cached_property
    def _held(self) -> list[float | None]:
        return [held(magnitude(value)) if _is_finite(value) else None for value in self._exact]

    @cached_property
    def positive(self) -> Half:
        """The values to which numbers of at least +0 are rounded."""
        return self._half_of(1.0)

    @cached_property
    def negative(self) -> Half:
        """The values to which numbers of at most -0 are rounded."""
        return self._half_of(-1.0)

    def _half_of(self, sign: float) -> Half:
        if sign > 0:
            codes = [code for code, value in enumerate(self._exact) if _is_finite(value) and value >= 0]
            return self._half(1.0, codes)
        zero = self._code_where(lambda value: value == 0 and _is_minus(value))
        codes = [code for code, value in enumerate(self._exact) if _is_finite(value) and value < 0]
        if not codes:
            up = self.positive
            first = (up.magnitudes[1], up.boundaries[:1], up.ties_up[:1]) if len(up.magnitudes) > 1 else None
            beyond, boundaries, ties_up = first or (up.beyond, up.boundaries, up.ties_up)
            code = up.codes[0] if zero is None else zero
            return Half(
                -1.0, (0.0,), (code,), boundaries, ties_up, beyond, None, 0.0 if zero is None else -0.0
            )
        return self._half(-1.0, [self.positive.codes[0] if zero is None else zero, *codes])

    def _half(self, sign: float, codes: list[int]) -> Half:
        """Return the half with the given codes. If several codes have the same magnitude, the first code is used."""
        # Sort instead of hashing, because powers of two have only 61 different hashes.
        everything = [magnitude(self._exact[code]) for code in codes]
        order = sorted(range(len(codes)), key=lambda i: everything[i])
        order = [i for j, i in enumerate(order) if j == 0 or everything[i] != everything[order[j - 1]]]
        if not order or everything[order[0]] != 0:
            raise ValueError(f"{self.name} has no zero; the value of one code must be zero")
        each = [codes[i] for i in order]
        kept = [(i, at) for i, code in enumerate(each) if (at := self._held[code]) is not None]
        kept = [one for j, one in enumerate(kept) if j == 0 or one[1] > kept[j - 1][1]]
        found = [each[i] for i, _ in kept]
        boundaries = [
            self.boundary(found[j], each[i + 1])
            if j == 0 or kept[j + 1][0] == i + 1
            else (at + kept[j + 1][1]) / 2
            for j, (i, at) in enumerate(kept[:-1])
        ]
        is_whole = kept[-1][0] == len(each) - 1
        beyond = (held(self.beyond) or self.beyond) if is_whole and self.beyond is not None else None
        if beyond is not None:
            boundaries.append(self.boundary(found[-1], None))
        infinity = self._code_where(lambda value: value == sign * math.inf)
        return Half(
            sign,
            tuple(at for _, at in kept),
            tuple(found),
            tuple(map(_even, boundaries)),
            tuple(not self.is_even(code) for code in found[: len(boundaries)]),
            beyond,
            infinity,
            -0.0 if _is_minus(self._exact[found[0]]) else 0.0,
        )

    def _code_where(self, is_it: Callable[[Number], bool]) -> int | None:
        return next((code for code, value in enumerate(self._exact) if is_it(value)), None)

    @cached_property
    def nan_code(self) -> int | None:
        return self._code_where(lambda value: value != value)

    @cached_property
    def has_nan(self) -> bool:
        return self.nan_code is not None

    @cached_property
    def has_inf(self) -> bool:
        return self.positive.inf_code is not None

    @cached_property
    def has_negative_zero(self) -> bool:
        return _is_minus(self.negative.zero)

    @property
    def is_signed(self) -> bool:
        return self.least < 0

    @cached_property
    def max(self) -> float:
        """The largest value."""
        return self.positive.magnitudes[-1]

    @property
    def least(self) -> float:
        """The least value."""
        return -self.negative.magnitudes[-1]

    @property
    def target(self) -> float:
        """The value to which a scale maps a block's largest magnitude. Tapered formats are precise up to 2**emax."""
        return 2.0**self.emax if self.tapered else self.max

    @cached_property
    def smallest(self) -> float | None:
        """The smallest positive value, or None if there is no positive value."""
        return self.positive.magnitudes[1] if self.max else None

    @cached_property
    def emax(self) -> int:
        """The exponent to which APS scales the largest sum of a layer, which is floor(log2(max)).

        For a tapered format, it is the exponent of the last value whose relative distance to the next one is at most
        four times the smallest such distance, so that at most two digits are lost. Near `max`, a posit has only one
        value for several powers of two. We measured the relative root mean square errors of sums of 8 tensors. posit8
        has .067 (.063 with the best exponent, 1.1 with the exponent of `max`), and takum8 has .21 (.10 and 1.1).
        """
        if not self.max:
            return math.frexp(float(self.beyond))[1] - 2 if self.beyond is not None else 0
        values = self.positive.magnitudes[1:]
        steps = [high / low - 1 for low, high in pairwise(values)] if self.tapered else []
        limit = 4 * min(steps, default=0.0)
        at = [value for value, step in zip(values, steps, strict=False) if step <= limit]
        return math.frexp(at[-1] if at else self.max)[1] - 1

    @cached_property
    def unheld(self) -> int:
        """The number of codes whose values float32 cannot represent."""
        return sum(
            _is_finite(value) and at is None for value, at in zip(self._exact, self._held, strict=True)
        )

    def code_values(self) -> Sequence[float]:
        return self.values()

    def values(self) -> list[float]:
        """Return the value of each code."""
        return list(self.decoded)

    @cached_property
    def decoded(self) -> list[float]:
        """The value of each of the 2**code_bits codes."""
        return [self._read(value, at) for value, at in zip(self._exact, self._held, strict=True)]

    def _read(self, value: Number, at: float | None) -> float:
        if not _is_finite(value):
            return float(value)
        if at is None:
            every = (self.negative if value < 0 else self.positive).magnitudes
            place = bisect(every, magnitude(value))
            around = every[max(1, place - 1) : place + 1] or every[-1:]
            at = min(around, key=lambda v: abs(Fraction(v) - abs(Fraction(value))))
        return -at if _is_minus(value) else at


def _even(boundary: Number) -> float:
    """Return the nearest float32 whose last digit is even, or infinity past the largest float32."""
    if boundary > _LARGEST:
        return math.inf
    if boundary < _SMALLEST:
        return float(round(Fraction(boundary) / Fraction(2 * _TINIEST)) * 2 * _TINIEST)
    found = held(boundary)
    assert found is not None  # the boundary is a normal number of at most the largest float32
    return found


def magnitude(value: Number) -> Number:
    return math.fabs(value) if isinstance(value, float) else abs(value)


def held(magnitude: Number) -> float | None:
    """Return the value with 23 binary digits that is nearest to a magnitude, or None if it is not a float32."""
    if magnitude > _LARGEST:
        return None
    if magnitude < _SMALLEST:
        return float(magnitude) if Fraction(magnitude) % Fraction(_FINEST) == 0 else None
    fraction, exponent = math.frexp(magnitude)
    return min(math.ldexp(round(math.ldexp(fraction, _DIGITS)), exponent - _DIGITS), _LARGEST)


def power(significand: int, exponent: int) -> Number:
    """Return significand * 2**exponent exactly: as a float if the exponent is moderate, and otherwise as a Fraction."""
    if -1000 < exponent < 900:
        return math.ldexp(significand, exponent)
    return Fraction(significand) * Fraction(2) ** exponent


def _is_finite(value: Number) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _is_minus(value: Number) -> bool:
    return value < 0 or (isinstance(value, float) and math.copysign(1.0, value) < 0)
