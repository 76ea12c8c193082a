"""Posits, from the Posit Working Group, "Standard for Posit Arithmetic" (2022).

See also Gustafson and Yonemoto, "Beating Floating Point at its Own Game" (2017).

After the sign comes a run of equal bits, which ends at the first different bit. A run of m ones means k = m - 1, and a
run of m zeros means k = -m. Then come es bits of the exponent e and the bits of the fraction f, as many as fit. The
value is (1 + f) 2**(2**es k + e). The code of a negative value is the two's complement of the code of its magnitude.
The code 100..0 is NaR, which is NaN here. Nonzero values are not rounded to zero, and finite values are not rounded to
NaR. Rounding to nearest instead returns the smallest or the largest value. The boundary between two codes is the value
of the code in between that is one bit longer, and ties go to the even code.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import ClassVar

from custom_fp.formats.tabulated_format import Number, Tabulated, magnitude, power

_NAME = re.compile(r"posit([1-9][0-9]?)(?:es([0-9]))?")


@dataclass(frozen=True)
class Posit(Tabulated):
    """A posit of n = 2 to 16 bits and es = 0 to 5 (2 in the standard). toward_zero and stochastic can return 0."""

    LOOKS_LIKE: ClassVar = "posit8 ..."
    PURPOSE: ClassVar = (
        "posits (standard of 2022, or any es): precise near 1, with a wide range and no overflow"
    )
    EXAMPLES: ClassVar = ("posit8", "posit8es0", "posit12")
    tapered: ClassVar = True
    code_bits: int
    es: int = 2

    def __post_init__(self) -> None:
        if not (2 <= self.code_bits <= 16 and 0 <= self.es <= 5):
            raise ValueError(f"no format {self.name!r}: a posit must have 2 to 16 bits and es from 0 to 5")

    @property
    def name(self) -> str:
        return f"posit{self.code_bits}" + (f"es{self.es}" if self.es != 2 else "")

    @classmethod
    def named(cls, name: str) -> Posit | None:
        found = _NAME.fullmatch(name)
        return cls(int(found[1]), int(found[2] or 2)) if found else None

    def value_of(self, code: int) -> Number:
        return _value(code, self.code_bits, self.es)

    def boundary(self, low: int, high: int | None) -> Number:
        assert high is not None  # a posit has no `beyond`
        return magnitude(_value(2 * min(low, high) + 1, self.code_bits + 1, self.es)) if low else 0.0


def _value(code: int, n: int, es: int) -> Number:
    if code in (0, 1 << n - 1):
        return math.nan if code else 0.0
    if code >> n - 1:
        return -_value((1 << n) - code, n, es)
    bits = f"{code:0{n}b}"[1:]
    run = len(bits) - len(bits.lstrip(bits[0]))
    rest = bits[run + 1 :].ljust(es, "0")
    k, e, f = (run - 1 if bits[0] == "1" else -run), int("0" + rest[:es], 2), rest[es:]
    return power(int("1" + f, 2), (k << es) + e - len(f))
