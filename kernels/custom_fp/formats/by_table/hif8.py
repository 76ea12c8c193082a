"""HiFloat8: Luo et al., "Ascend HiFloat8 Format for Deep Learning" (arXiv:2409.16626), tables 1 and 2.

After the sign, a prefix called the dot field gives the number of exponent bits: 11 four, 10 three, 01 two, 001 one,
and 0001 none. The remaining 1 to 3 bits are the fraction. The exponent is a sign and a magnitude whose first bit, a
one, is not written. 0000 and three bits M are 2**(M - 23), or zero if M is zero. The largest code, 1.5 2**15, is
infinity, and the code of minus zero is NaN. The paper rounds to nearest with ties away from zero: `nearest_away`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from custom_fp.formats.tabulated_format import Number, Tabulated, power

# prefix, where it ends, exponent bits
_DOTS = ((0b11, 5, 4), (0b10, 5, 3), (0b01, 5, 2), (0b001, 4, 1), (0b0001, 3, 0))


@dataclass(frozen=True)
class HiFloat8(Tabulated):
    LOOKS_LIKE: ClassVar = "hif8"
    PURPOSE: ClassVar = "HiFloat8: 8 bits, 3 of fraction near 1 and fewer far from it"
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
