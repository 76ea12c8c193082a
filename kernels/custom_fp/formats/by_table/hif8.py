"""HiFloat8: Luo et al., "Ascend HiFloat8 Format for Deep Learning" (arXiv:2409.16626), tables 1 and 2.

After the sign, a prefix called the dot field determines the number of exponent bits: 4 for 11, 3 for 10, 2 for 01, 1
for 001, and 0 for 0001. The remaining 1 to 3 bits are the fraction. The exponent has a sign and a magnitude, whose
leading one is not stored. The prefix 0000 is followed by three bits M, and the value is 2**(M - 23), or zero if M is
zero. The code with the largest magnitude, 1.5 * 2**15, is infinity instead, and the code of -0 is NaN. The paper
rounds to nearest with ties away from zero, which is `nearest_away` here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from custom_fp.formats.tabulated_format import Number, Tabulated, power

# Each entry: the prefix, the number of bits after the prefix, and the number of exponent bits.
_DOTS = ((0b11, 5, 4), (0b10, 5, 3), (0b01, 5, 2), (0b001, 4, 1), (0b0001, 3, 0))


@dataclass(frozen=True)
class HiFloat8(Tabulated):
    LOOKS_LIKE: ClassVar = "hif8"
    PURPOSE: ClassVar = "HiFloat8: 8 bits, with 3 fraction bits near 1 and fewer far from it"
    EXAMPLES: ClassVar = ("hif8",)
    tapered: ClassVar = True
    name: ClassVar = "hif8"
    code_bits: ClassVar = 8
    beyond: ClassVar = 1.5 * 2**15

    @classmethod
    def named(cls, name: str) -> HiFloat8 | None:
        return cls() if name == cls.name else None

    def value_of(self, code: int) -> Number:
        sign, rest = divmod(code, 128)
        if rest == 0 or rest == 0b1101111:
            return (math.nan if sign else 0.0) if rest == 0 else math.copysign(math.inf, 0.5 - sign)
        return (-1) ** sign * _magnitude(rest)


def _magnitude(rest: int) -> Number:
    if rest < 8:
        return power(1, rest - 23)
    width, size = next((bits, end) for dot, end, bits in _DOTS if rest >> end == dot)
    digits = size - width
    exponent, fraction = divmod(rest & (1 << size) - 1, 1 << digits)
    if width:
        minus, low = divmod(exponent, 1 << width - 1)
        exponent = (-1) ** minus * (low + (1 << width - 1))
    return power((1 << digits) + fraction, exponent - digits)
