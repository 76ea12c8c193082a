"""The elements of scaled formats: scalar formats, integers, and tables of values. This module does not import torch.

Every element has `name`, `code_bits`, `max`, `least`, `target`, `emax`, `has_negative_zero`, `is_signed` and
`code_values()`. `target` is the value to which a scale maps the largest magnitude of its block.

Scalar formats (formats/scalar.py) and most tables (formats/tabulated_format.py) can also be used without scales.
Integers and the tables of codebooks, which are defined here, are only used as elements of scaled formats.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, ClassVar, cast

from custom_fp.formats.scalar import Format
from custom_fp.formats.tables import TABLES, at_most, float32, previous
from custom_fp.formats.tabulated_format import Half, Tabulated


@dataclass(frozen=True)
class Integer:
    """Integers of k bits, times 2**-fraction_bits, in two's complement or unsigned.

    Symmetric integers do not use the most negative code, so that rounding is unbiased (arXiv 2510.25602).
    """

    code_bits: int
    fraction_bits: int = 0
    is_symmetric: bool = True
    is_signed: bool = True
    has_negative_zero: ClassVar = False

    def __post_init__(self) -> None:
        if type(self.code_bits) is not int or not 2 <= self.code_bits <= 8:
            raise ValueError(f"integers of {self.code_bits!r} bits are not supported; allowed: 2 to 8 bits")

    @property
    def name(self) -> str:
        return f"{'' if self.is_signed else 'u'}int{self.code_bits}"

    @property
    def mantissa_bits(self) -> int:
        """The number of binary digits that follow the first digit of the largest value."""
        return self.code_bits - 1 - self.is_signed

    @cached_property
    def unit(self) -> float:
        return 2.0**-self.fraction_bits

    @cached_property
    def max(self) -> float:
        return (2 ** (self.code_bits - self.is_signed) - 1) * self.unit

    @property
    def target(self) -> float:
        return self.max

    @cached_property
    def least(self) -> float:
        if not self.is_signed:
            return 0.0
        return -self.max if self.is_symmetric else -(self.max + self.unit)

    @property
    def emax(self) -> int:
        return self.mantissa_bits - self.fraction_bits

    @cached_property
    def as_scalar(self) -> Format:
        """A scalar format that contains these integers. With one exponent bit, all values have the same quantum."""
        return Format(1, self.code_bits, 1 - self.code_bits + self.fraction_bits, "fo")

    @cached_property
    def spec(self) -> int:
        """This element format, encoded in one integer for the kernels in the same way as `Format.spec`."""
        return (self.code_bits - 1 - self.fraction_bits + 512) << 16 | (self.code_bits - 1) << 8 | 1

    def code_values(self) -> list[float]:
        """Return the value of each code."""
        size = 2**self.code_bits
        wraps = size // 2 if self.is_signed else size
        return [(code - size * (code >= wraps)) * self.unit for code in range(size)]

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class ValueTable(Tabulated):
    """A table of up to 256 values in [-1, 1], as used by codebooks. It is only used as an element of scaled formats.

    A number is rounded to the nearest value. The midpoint of two values becomes the value of smaller magnitude, and the
    midpoint between -v and v becomes v. If several codes have the same value, the first code is written. Since values
    have up to 24 digits, like any float32, their midpoints may have more digits than a float32. Rounding is therefore
    correct only for numbers that are float32 values.

    Attributes:
        name: The name of the table, for messages.
        values: 2 to 256 numbers in [-1, 1] in the order of their codes. At least two must be different. They are
            rounded to float32.

    Raises:
        ValueError: `values` is not such a table.
    """

    name: str
    values: tuple[float, ...]  # type: ignore[assignment]  # `values` is a method of other tables
    has_negative_zero: ClassVar = False

    def __post_init__(self) -> None:
        values = tuple(float32(value) for value in self.values)
        object.__setattr__(self, "values", values)
        if not 2 <= len(values) <= 256:
            raise ValueError(f"codebook {self.name!r} has {len(values)} values; allowed: 2 to 256 values")
        if bad := [value for value in values if not -1.0 <= value <= 1.0]:
            raise ValueError(
                f"codebook {self.name!r} has the value {bad[0]}; values must be in [-1, 1], because a scale maps the "
                "largest magnitude of each block to 1"
            )
        if len(set(values)) < 2:
            raise ValueError(
                f"codebook {self.name!r} has only the value {values[0]}; at least two must be different"
            )

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.name, len(self.values)))

    @classmethod
    def named(cls, name: str) -> None:
        """Return None, because the names of codebooks mean scaled formats."""

    @cached_property
    def code_bits(self) -> int:
        """The number of bits of a code: ceil(log2(n)) for n values."""
        return (len(self.values) - 1).bit_length()

    @property
    def target(self) -> float:
        """The largest magnitude."""
        return max(map(abs, self.values))

    @property
    def emax(self) -> int:
        return math.frexp(self.target)[1] - 1

    def value_of(self, code: int) -> float:
        return self.values[code] if code < len(self.values) else math.nan

    @cached_property
    def decoded(self) -> list[float]:
        return [self.value_of(code) for code in range(1 << self.code_bits)]

    def code_values(self) -> tuple[float, ...]:
        """Return the values of the table. The last codes have no value if there are fewer than 2**code_bits values."""
        return self.values

    @cached_property
    def sorted_codes(self) -> tuple[int, ...]:
        """One code for each distinct value, in ascending order of the values."""
        first: dict[float, int] = {}
        for code, value in enumerate(self.values):
            first.setdefault(value, code)
        return tuple(first[value] for value in sorted(first))

    @cached_property
    def thresholds(self) -> tuple[float, ...]:
        """Thresholds t_i in float32. A number y is rounded to distinct value number i, where i = #{t_i < y}."""
        values = [self.values[code] for code in self.sorted_codes]
        found = []
        for low, high in pairwise(values):
            middle = (
                low + high
            ) / 2  # exact, because the sum of two float32 values in [-1, 1] fits in a double
            below = at_most(middle)
            to_high = abs(high) <= abs(low)
            found.append(previous(below) if to_high and below == middle else below)
        return tuple(found)

    def _half_of(self, sign: float) -> Half:
        """Return the values to which numbers of a sign are rounded. The first value may have the other sign."""
        is_negative, zero = sign < 0, bisect_left(self.thresholds, 0.0)
        codes = self.sorted_codes[zero::-1] if is_negative else self.sorted_codes[zero:]
        thresholds = self.thresholds[:zero][::-1] if is_negative else self.thresholds[zero:]
        return Half(
            sign,
            tuple(sign * self.values[code] + 0.0 for code in codes),
            codes,
            tuple(map(abs, thresholds)),
            (is_negative,) * len(thresholds),
            None,
            None,
            self.values[codes[0]],
        )


Element = Format | Tabulated | Integer

MXINT8 = Integer(8, fraction_bits=6, is_symmetric=False)  # OCP MX 1.0, section 5.3.4
_INTEGER = re.compile(r"(u?)int([2-8])")


def element(given: Element | str | Mapping[str, Any] | None) -> Element:
    """Return an element by its name or its attributes.

    Args:
        given: An element, which is returned unchanged. Or the name of an integer (int4), of a table (nf4), or of a
            format without scales (e2m1fn, posit8). Or the arguments of `Integer` or `ValueTable`. Or None for the int8
            of MX.

    Raises:
        ValueError: There is no such element.
    """
    if given is None:
        return MXINT8
    if isinstance(given, str):
        return _named(given)
    if isinstance(given, Mapping):
        return ValueTable(**given) if "values" in given else Integer(**given)
    return given


@cache
def _named(name: str) -> Element:
    if match := _INTEGER.fullmatch(name):
        return Integer(int(match[2]), is_signed=not match[1])
    if name in TABLES:
        return ValueTable(name, tuple(TABLES[name]()))
    from custom_fp.formats.names import KINDS  # imported here because formats.names imports this module

    for kind in KINDS.values():
        if kind.scale_bits == 0 and (found := kind.named(name)) is not None:
            return cast(Element, found)
    raise ValueError(
        f"unknown element {name!r}; allowed: int2 to int8, {', '.join(TABLES)}, formats without scales"
    )
