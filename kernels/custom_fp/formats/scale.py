"""What scales, and elements that are integers, can be. Standard library only.

A scale is positive or NaN, so that its format needs no sign:

    e8m0     2**(code - 127), code 0..254; 255 is NaN (OCP MX 1.0, section 5.4.1)
    e4m3fn   the OCP 8-bit format with its sign bit 0: codes 1..126 are 2**-9 .. 448, 127 is NaN. `ue4m3` and
             `ue4m3fn` are other names for it: the PTX ISA's type of that name has the same seven bits
    ue5m3    5 exponent bits of bias 15, 3 mantissa bits, subnormals, no infinity: codes 1..254 are 2**-17 .. 114688,
             255 is NaN: the magnitudes of e5m3fn; `ue5m3fn` is another name for it
    fp32     a float32; the smallest that is used is 2**-126, so that its reciprocal is a normal number, too

Code 0 of the two in the middle is zero, and never written.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache, cached_property

from custom_fp.formats.scalar import Format

ALIASES = {"ue4m3": "e4m3fn", "ue4m3fn": "e4m3fn", "ue5m3fn": "ue5m3"}
_FLOAT32_MAX = (2 - 2.0**-23) * 2.0**127


@dataclass(frozen=True)
class ScaleFormat:
    name: str
    bits: int
    smallest: float
    largest: float
    nan_code: int | None  # None: a float32's own
    magnitudes: Format | None = None  # of which format the codes are

    @property
    def is_power_of_two(self) -> bool:
        return self.name == "e8m0"

    @classmethod
    def parse(cls, name: str | ScaleFormat) -> ScaleFormat:
        if isinstance(name, ScaleFormat):
            return name
        if (known := ALIASES.get(name, name)) not in SCALES:
            raise ValueError(f"scales in {name!r}; allowed: {', '.join((*SCALES, *ALIASES))}")
        return SCALES[known]

    def __str__(self) -> str:
        return self.name


def _of(name: str, magnitudes: Format) -> ScaleFormat:
    smallest, largest = magnitudes.smallest_subnormal, magnitudes.max
    assert smallest is not None
    return ScaleFormat(name, 8, smallest, largest, magnitudes.nan_code, magnitudes)


SCALES = {
    "e8m0": ScaleFormat("e8m0", 8, 2.0**-127, 2.0**127, 255),
    "e4m3fn": _of("e4m3fn", Format.parse("e4m3fn")),
    "ue5m3": _of("ue5m3", Format.parse("e5m3fn")),
    "fp32": ScaleFormat("fp32", 32, 2.0**-126, _FLOAT32_MAX, None),
}


@dataclass(frozen=True)
class Integer:
    """k bits of two's complement, times 2**-fraction_bits. Symmetric: the least is minus the largest, so that rounding
    has no bias (arXiv 2510.25602)."""

    bits: int
    fraction_bits: int = 0
    is_symmetric: bool = True

    @property
    def name(self) -> str:
        return f"int{self.bits}"

    @property
    def mantissa_bits(self) -> int:
        """Digits of the largest value behind its first."""
        return self.bits - 2

    @cached_property
    def unit(self) -> float:
        return 2.0**-self.fraction_bits

    @cached_property
    def max(self) -> float:
        return (2 ** (self.bits - 1) - 1) * self.unit

    @cached_property
    def least(self) -> float:
        return -self.max if self.is_symmetric else -(self.max + self.unit)

    @property
    def emax(self) -> int:
        return self.bits - 2 - self.fraction_bits

    @cached_property
    def spec(self) -> int:
        """As `Format.spec`, of a format without specials whose values are all multiples of the unit up to past
        2**(bits - 1): one exponent bit, so that all have one quantum."""
        return (self.bits - 1 - self.fraction_bits + 512) << 16 | (self.bits - 1) << 8 | 1

    def values(self) -> list[float]:
        """In the order of their codes, two's complement."""
        size = 2**self.bits
        return [(code - size * (code >= size // 2)) * self.unit for code in range(size)]

    def __str__(self) -> str:
        return self.name


MXINT8 = Integer(8, fraction_bits=6, is_symmetric=False)  # OCP MX 1.0, section 5.3.4
_INTEGER = re.compile(r"int([2-8])")


@cache
def element(name: Format | Integer | str | None) -> Format | Integer:
    """The element called `name`: int2 .. int8, or a Format's; None: MX's int8. ValueError tells what is allowed."""
    if name is None:
        return MXINT8
    if isinstance(name, Integer):
        return name
    if isinstance(name, str) and (match := _INTEGER.fullmatch(name)):
        return Integer(int(match[1]))
    return Format.parse(name)


def power_of_two_at_most(value: float) -> float:
    return 2.0 ** math.floor(math.log2(value))
