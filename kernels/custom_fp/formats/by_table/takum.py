"""Linear takums: Hunhold, "Beating Posits at Their Own Game: Takum Arithmetic" (arXiv:2404.18603), definition 8.

After the sign come a direction bit D, three regime bits R, the r bits of the characteristic C, and the fraction f. r is
R if D = 1 and 7 - R otherwise. The value is (1 + f) 2**c, where c is 2**r - 1 + C if D = 1 and -2**(r + 1) + 1 + C
otherwise, so c is -255 to 254. If a format has fewer than 12 bits, the missing bits count as zeros. Negative values,
NaR and rounding to nearest are as in posits (`by_table/posit.py`).

Half of the range lies outside float32. Values from 2**-126 to 2**128 are those of takums, and values beyond are not
represented (see formats/tabulated_format.py).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import ClassVar

from custom_fp.formats.tabulated_format import Number, Tabulated, magnitude, power

_NAME = re.compile(r"takum([1-9][0-9]?)")


@dataclass(frozen=True)
class Takum(Tabulated):
    """A takum of n = 8 to 16 bits."""

    LOOKS_LIKE: ClassVar = "takum8 ..."
    PURPOSE: ClassVar = "linear takums: similar to posits, with the same range for every number of bits"
    EXAMPLES: ClassVar = ("takum8", "takum12")
    tapered: ClassVar = True
    code_bits: int

    def __post_init__(self) -> None:
        if not 8 <= self.code_bits <= 16:
            raise ValueError(f"no format {self.name!r}: here, takums must have 8 to 16 bits")

    @property
    def name(self) -> str:
        return f"takum{self.code_bits}"

    @classmethod
    def named(cls, name: str) -> Takum | None:
        found = _NAME.fullmatch(name)
        return cls(int(found[1])) if found else None

    def value_of(self, code: int) -> Number:
        return _value(code, self.code_bits)

    def boundary(self, low: int, high: int | None) -> Number:
        assert high is not None  # a takum has no `beyond`
        return magnitude(_value(2 * min(low, high) + 1, self.code_bits + 1)) if low else 0.0


def _value(code: int, n: int) -> Number:
    if code in (0, 1 << n - 1):
        return math.nan if code else 0.0
    if code >> n - 1:
        return -_value((1 << n) - code, n)
    code, n = code << max(0, 12 - n), max(12, n)
    is_up, regime = code >> n - 2, code >> n - 5 & 7
    r = regime if is_up else 7 - regime
    p = n - 5 - r
    c = (code >> p & (1 << r) - 1) + ((1 << r) - 1 if is_up else 1 - (2 << r))
    return power((1 << p) + (code & (1 << p) - 1), c - p)
