"""Logarithmic numbers, which are stored as a sign and a logarithm.

A code consists of the sign and log2 of the magnitude in two's complement, with i integer bits and f fraction bits. The
format is from Swartzlander and Alexopoulos, "The Sign/Logarithm Number System", IEEE Transactions on Computers C-24
(1975). The smallest logarithm represents zero or, with the sign bit set, NaN, as in Coleman et al., "The European
Logarithmic Microprocessor", IEEE Transactions on Computers 57 (2008).

Rounding to nearest rounds the logarithm. The boundary between two values is therefore their geometric mean, and the
boundary to zero is half a step below the smallest value. Values and boundaries are irrational, so they are rounded to
23 binary digits.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import ClassVar

from custom_fp.formats.tabulated_format import Number, Tabulated

_NAME = re.compile(r"lns([0-9])_([0-9][0-9]?)")


@dataclass(frozen=True)
class Logarithmic(Tabulated):
    """A format of 1 + i + f bits, at most 16, where i is from 2 to 8.

    Numbers that would round to 2**(2**(i - 1)) or more overflow.
    """

    LOOKS_LIKE: ClassVar = "lns4_3 ..."
    PURPOSE: ClassVar = "logarithmic numbers, whose products are exact sums of logarithms"
    EXAMPLES: ClassVar = ("lns4_3", "lns5_6")
    whole: int
    fraction: int

    def __post_init__(self) -> None:
        if not (2 <= self.whole <= 8 and self.fraction >= 0 and self.code_bits <= 16):
            raise ValueError(f"no format {self.name!r}: i must be 2 to 8, and 1 + i + f at most 16 bits")

    @property
    def name(self) -> str:
        return f"lns{self.whole}_{self.fraction}"

    @property
    def code_bits(self) -> int:
        return 1 + self.whole + self.fraction

    @classmethod
    def named(cls, name: str) -> Logarithmic | None:
        found = _NAME.fullmatch(name)
        return cls(int(found[1]), int(found[2])) if found else None

    @property
    def beyond(self) -> Number:
        return 2.0**2 ** (self.whole - 1)

    def _logarithm(self, code: int) -> int:
        """Return the logarithm as an integer, in units of its last place."""
        size = 1 << self.code_bits - 1
        return (code + size // 2) % size - size // 2

    def value_of(self, code: int) -> Number:
        sign, log = code >> self.code_bits - 1, self._logarithm(code)
        if log == -(1 << self.code_bits - 2):
            return math.nan if sign else 0.0
        return (-1) ** sign * 2.0 ** (log / 2**self.fraction)

    def boundary(self, low: int, high: int | None) -> Number:
        return 2.0 ** ((self._logarithm(low) + 0.5) / 2**self.fraction)
