"""IEEE P3109, "Arithmetic Formats for Machine Learning" (Interim Report 3, 2025).

A format has K bits, a precision P, and optionally a sign and infinities. The magnitude of a code has P - 1 fraction
bits and K - P exponent bits, or K - P + 1 exponent bits without a sign. The bias is 2**(K - P), or 2**(K - P - 1) with
a sign. There are subnormals, a single zero, and a single NaN, which is the code 100..0, or the code of all ones without
a sign. Infinity is the code after the largest number. Ties go to the even code. overflow=infinity corresponds to OvfInf
of the report, saturate to SatFinite, and propagate to SatPropagate.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import ClassVar

from custom_fp.formats.tabulated_format import Number, Tabulated, power

_NAME = re.compile(r"(?:p3109_k|binary)([1-9][0-9]?)p([1-9][0-9]?)([su])([ef])")


@dataclass(frozen=True)
class P3109(Tabulated):
    """A format such as p3109_k8p3se, also called binary8p3se.

    The number of bits, K, is 2 to 16. The precision, P, is 1 to K, or 1 to K - 1 with a sign.
    """

    LOOKS_LIKE: ClassVar = "p3109_k8p3se ..."
    PURPOSE: ClassVar = (
        "IEEE P3109: K bits, precision P, signed or unsigned (s, u), infinities or none (e, f)"
    )
    EXAMPLES: ClassVar = ("p3109_k8p3se", "p3109_k8p4se", "p3109_k8p4sf", "p3109_k8p1uf", "p3109_k4p2sf")
    code_bits: int
    precision: int
    signed: bool = True
    extended: bool = True

    def __post_init__(self) -> None:
        most = self.code_bits - self.signed
        if not (2 <= self.code_bits <= 16 and 1 <= self.precision <= most):
            raise ValueError(
                f"no format {self.name!r}: K must be 2 to 16, and P must be 1 to K, or 1 to K-1 with a sign"
            )

    @property
    def name(self) -> str:
        return f"p3109_k{self.code_bits}p{self.precision}{'us'[self.signed]}{'fe'[self.extended]}"

    @classmethod
    def named(cls, name: str) -> P3109 | None:
        found = _NAME.fullmatch(name)
        return cls(int(found[1]), int(found[2]), found[3] == "s", found[4] == "e") if found else None

    @property
    def synonyms(self) -> tuple[str, ...]:
        return (self.name.replace("p3109_k", "binary"),)

    @property
    def _largest(self) -> int:
        return 2 ** (self.code_bits - self.signed) - 1 - (not self.signed) - self.extended

    @property
    def beyond(self) -> Number:
        return self._number(self._largest + 1)

    def _number(self, magnitude: int) -> Number:
        field, digits = divmod(magnitude, 2 ** (self.precision - 1))
        bias = 2 ** (self.code_bits - self.precision - self.signed)
        significand = digits + 2 ** (self.precision - 1) * (field > 0)
        return power(significand, max(field, 1) - bias - (self.precision - 1))

    def value_of(self, code: int) -> Number:
        sign, magnitude = divmod(code, 2 ** (self.code_bits - 1)) if self.signed else (0, code)
        if (sign and not magnitude) or magnitude > self._largest + self.extended:
            return math.nan
        value = self._number(magnitude) if magnitude <= self._largest else math.inf
        return -value if sign else value
