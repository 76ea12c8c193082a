"""Scalar formats: binary floating point with any widths, bias and family. This module does not import torch.

A code consists of a sign, an exponent field and a mantissa field, from the top bit down. Codes with a zero exponent
field represent zero and the subnormals. The family determines what codes with the top exponent field represent:

    ieee   Infinity (mantissa 0) and NaN (any other mantissa).
    fn     Finite values. The code of all ones is NaN, as in E4M3 of OCP's OFP8. The three small formats of OCP's
           Microscaling (MX) specification 1.0, e2m1fn, e2m3fn and e3m2fn, have no NaN either.
    fo     Finite values only, without NaN (LLVM's "finite only"). The largest value of e4m3fo is 480. e2m1fo is the
           same format as e2m1fn, and likewise for the other two formats of MX.
    fnuz   Finite values. The code of -0 is NaN instead, as in LLVM, ml_dtypes and AMD's MI300. The default bias is
           2**(e-1), one more than in the other families, so the largest value of e4m3fnuz is 240.

A format whose name begins with u has no sign bit. It can have any family but fnuz. Examples are ue5m6 (11 bits, as in
R11G11B10) and ue4m3fn (7 bits). NVIDIA's names ue4m3 and ue5m3 mean ue4m3fn and ue5m3fn. The formats of these widths
with infinity are therefore named ue4m3b7 and ue5m3b15. In an unsigned format, -0 becomes 0, and negative numbers become
what `Rule.below_zero` returns. ue8m0fn has a zero (code 0), unlike OCP's E8M0.

Some special cases follow from these rules:

    m = 0          There are no subnormals. Family ieee has no NaN, because the mantissa cannot distinguish it from
                   infinity.
    e1mX           The exponent field is 0 or the top one. Family ieee has subnormals but no normal values, so that
                   max < 2**emin and emax = emin - 1.
    e1m0, e1m0fn   Zero is the only finite value. max is 0, and emax is emin - 1 by the same formula.

Sources: IEEE 754-2019 section 3; LLVM's APFloat (suffixes); OCP 8-bit Floating Point Specification
(OFP8) 1.0; OCP MX 1.0 table 1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, ClassVar

from custom_fp.formats.protocol import Backends, NumberFormat

ALSO = {"ue4m3": "ue4m3fn", "ue5m3": "ue5m3fn"} | {
    f"float8_{name}": name for name in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz")
}
"""Names used by NVIDIA and PyTorch. They are accepted as input, but the format's `name` is the other spelling."""
ALIASES = {"fp32": "e8m23", "tf32": "e8m10", "bf16": "e8m7", "fp16": "e5m10"}
FAMILIES = ("ieee", "fn", "fo", "fnuz")
_SHORT = {long: alias for alias, long in ALIASES.items()}
_MX_WITHOUT_NAN = {(2, 1), (2, 3), (3, 2)}
_NAME = re.compile(r"(u?)e([0-9]+)m([0-9]+)(?:b(-?[0-9]+))?(fnuz|fn|fo)?")
_ALLOWED = (
    "e<1..8>m<0..23>, then b<bias> and fn, fo or fnuz as options (e5m2, e4m3fn, e4m3b11fnuz), u in front for no sign "
    "(ue4m3fn), or " + ", ".join(ALIASES)
)

# None stands for the default bias: 2**(exponent_bits - 1) - 1, or 2**(exponent_bits - 1) in family fnuz.
_BY_WIDTHS: Any = None

# quantize adds 2**(emin - m + 23) to float32 values, so this number must be a float32 value itself.
_EMIN_RANGE = (-126, 104)


@dataclass(frozen=True, order=True)
class Format(NumberFormat):
    """A binary floating-point format of at most 32 bits. All of its values are float32 values.

    Attributes:
        exponent_bits: The number of exponent bits, 1 to 8.
        mantissa_bits: The number of mantissa bits, 0 to 23.
        bias: The bias of the exponent. The default is 2**(exponent_bits - 1) in family fnuz and one less in the others.
        family: The family: ieee, fn, fo or fnuz.
        is_signed: Whether the format has a sign bit.

    Raises:
        ValueError: An attribute is out of range, or the bias puts values outside float32. With 8 exponent bits, the
            only format of family fn is e8m0fn, because the others have values of 2**128 or more.
    """

    LOOKS_LIKE: ClassVar = "e<1..8>m<0..23> (e5m2, e4m3fn), fp32 ..."
    PURPOSE: ClassVar = "floating point of any widths: gradients on the wire, operands, weights, accumulators"
    EXAMPLES: ClassVar = (
        *ALIASES,
        *("e5m2", "e4m3", "e4m3fn", "e5m2fnuz", "e4m3fnuz", "e4m3b11fnuz", "e3m4", "e3m0"),
        *("e3m2fn", "e2m3fn", "e2m1fn", "ue4m3", "ue5m3"),
    )
    BACKENDS: ClassVar = Backends("custom_fp.reference", "custom_fp.native", "custom_fp.cuda")
    exponent_bits: int
    mantissa_bits: int
    bias: int = _BY_WIDTHS
    family: str = "ieee"
    is_signed: bool = True
    name: str = field(init=False, repr=False, compare=False)  # the alias if there is one, such as bf16

    def __post_init__(self) -> None:
        for what, least, most in (("exponent_bits", 1, 8), ("mantissa_bits", 0, 23)):
            if type(value := getattr(self, what)) is not int:
                raise ValueError(f"{what} is {value!r}; it must be a whole number")
            if not least <= value <= most:
                raise ValueError(f"{what} is {value}; allowed: {least} to {most}")
        if self.family not in FAMILIES:
            raise ValueError(f"family is {self.family!r}; allowed: {', '.join(FAMILIES)}")
        if type(self.is_signed) is not bool:
            raise ValueError(f"is_signed is {self.is_signed!r}; allowed: True, False")
        if self.family == "fnuz" and not self.is_signed:
            raise ValueError(
                "family fnuz needs a sign bit; for an unsigned format, use family ieee, fn or fo"
            )
        if self.family == "fo" and self._is_mx_without_nan:
            object.__setattr__(self, "family", "fn")
        if self.bias is _BY_WIDTHS:
            object.__setattr__(self, "bias", self.default_bias)
        sign, suffix = "" if self.is_signed else "u", "" if self.family == "ieee" else self.family
        fields = f"{sign}e{self.exponent_bits}m{self.mantissa_bits}"
        is_plain = self.bias == self.default_bias and fields + suffix not in ALSO
        name = f"{fields}{'' if is_plain else f'b{self.bias}'}{suffix}"
        object.__setattr__(self, "name", _SHORT.get(name, name))
        low, high = _EMIN_RANGE
        if not (low <= self.emin <= high and self.emax <= 127):
            least = max(1 - high, self.emax + self.bias - 127)
            allowed = f"{least} to {1 - low}" if least <= 1 - low else "none"
            raise ValueError(f"bias {self.bias} puts values outside float32; allowed biases: {allowed}")

    @classmethod
    def parse(cls, name: str | Format) -> Format:
        """Return the scalar format with the given name. If `name` is a format, return it unchanged.

        Raises:
            ValueError: There is no such format. The message says what is allowed.
        """
        if isinstance(name, cls):
            return name
        found = _named(name) if isinstance(name, str) else None
        if found is None:
            raise ValueError(f"unknown format {name!r}; allowed: {_ALLOWED}")
        return found

    @classmethod
    def named(cls, name: str) -> Format | None:
        return _named(name)

    @property
    def default_bias(self) -> int:
        return 2 ** (self.exponent_bits - 1) - (self.family != "fnuz")

    @property
    def _is_mx_without_nan(self) -> bool:
        return self.is_signed and (self.exponent_bits, self.mantissa_bits) in _MX_WITHOUT_NAN

    @cached_property
    def bits(self) -> int:
        return self.is_signed + self.exponent_bits + self.mantissa_bits

    @property
    def code_bits(self) -> int:
        return self.bits

    @cached_property
    def is_fp32(self) -> bool:
        return self.name == "fp32"

    @cached_property
    def has_inf(self) -> bool:
        return self.family == "ieee"

    @cached_property
    def has_nan(self) -> bool:
        if self.family == "ieee":
            return self.mantissa_bits > 0
        return self.family == "fnuz" or (self.family == "fn" and not self._is_mx_without_nan)

    @cached_property
    def has_negative_zero(self) -> bool:
        return self.is_signed and self.family != "fnuz"

    @cached_property
    def max_code(self) -> int:
        """The code of the largest finite value. Codes 0 to max_code are the nonnegative values in ascending order."""
        if self.family == "ieee":
            return ((2**self.exponent_bits - 1) << self.mantissa_bits) - 1
        return (1 << (self.exponent_bits + self.mantissa_bits)) - 1 - (self.family == "fn" and self.has_nan)

    @cached_property
    def max_is_odd(self) -> bool:
        """Whether the largest value is an odd multiple of its quantum. With m = 0, every value except zero is odd."""
        return bool(self.max_code & 1 if self.mantissa_bits else self.max_code)

    @cached_property
    def inf_code(self) -> int | None:
        return (2**self.exponent_bits - 1) << self.mantissa_bits if self.has_inf else None

    @cached_property
    def nan_code(self) -> int | None:
        """The code that is written for NaN (positive, quiet). In family ieee, other codes also decode to NaN."""
        if not self.has_nan:
            return None
        infinity = self.inf_code
        return self.max_code + 1 if infinity is None else infinity | 1 << (self.mantissa_bits - 1)

    @cached_property
    def emin(self) -> int:
        """The exponent of the smallest normal value. Subnormals are multiples of 2**(emin - m)."""
        return 1 - self.bias

    @cached_property
    def emax(self) -> int:
        """floor(log2(max))."""
        return (self.max_code >> self.mantissa_bits) - self.bias

    @cached_property
    def max(self) -> float:
        """The largest finite value."""
        return self.value_of(self.max_code)

    @property
    def least(self) -> float:
        """The least finite value, which is the most negative one."""
        return -self.max if self.is_signed else 0.0

    @property
    def target(self) -> float:
        """The value to which a scale maps the largest magnitude of its block."""
        return self.max

    @cached_property
    def smallest_normal(self) -> float | None:
        """The smallest normal value, 2**emin, or None if there is no normal value (e1mX, e1m0fn)."""
        return 2.0**self.emin if self.max >= 2.0**self.emin else None

    @cached_property
    def smallest_subnormal(self) -> float | None:
        """The smallest subnormal value, 2**(emin - m), or None if there is none (m = 0)."""
        return 2.0 ** (self.emin - self.mantissa_bits) if self.mantissa_bits else None

    @cached_property
    def epsilon(self) -> float:
        """The distance from 1 to the next larger value, 2**-m, even if 1 is outside the range of the format."""
        return 2.0**-self.mantissa_bits

    @cached_property
    def spec(self) -> int:
        """The format encoded in one integer for the kernels. See `Spec` in csrc/custom_fp.h."""
        flags = (
            (self.family == "fnuz") << 31
            | self.has_inf << 30
            | self.has_nan << 29
            | (not self.is_signed) << 15
        )
        return flags | (self.emin + 512) << 16 | self.mantissa_bits << 8 | self.exponent_bits

    def value_of(self, code: int) -> float:
        """Return the value of a code from 0 to 2**bits - 1."""
        if not 0 <= code < 2**self.bits:
            raise ValueError(f"{self.name} has codes 0 to {2**self.bits - 1}, but got {code}")
        if self.family == "fnuz" and code == self.nan_code:
            return float("nan")
        width = self.exponent_bits + self.mantissa_bits
        sign, magnitude = -1.0 if code >> width else 1.0, code & (1 << width) - 1
        if magnitude > self.max_code:
            return sign * float("inf") if magnitude == self.inf_code else float("nan")
        field, mantissa = magnitude >> self.mantissa_bits, magnitude & ((1 << self.mantissa_bits) - 1)
        significand = mantissa + (1 << self.mantissa_bits) * (field > 0)
        return sign * significand * 2.0 ** (max(field, 1) - self.bias - self.mantissa_bits)

    @property
    def synonyms(self) -> tuple[str, ...]:
        also = (short for short, name in ALSO.items() if name == self.name)
        return (*also, *([ALIASES[self.name]] if self.name in ALIASES else []))

    def code_values(self) -> list[float] | None:
        return self.values() if self.bits <= 16 else None

    def values(self) -> list[float]:
        """Return the value of every code. Formats of more than 16 bits raise ValueError."""
        if self.bits > 16:
            raise ValueError(f"{self.name} has {self.bits} bits; values can be listed for at most 16 bits")
        return [self.value_of(code) for code in range(2**self.bits)]


@cache
def _named(name: str) -> Format | None:
    match = _NAME.fullmatch(ALIASES.get(name, ALSO.get(name, name)))
    if not match:
        return None
    unsigned, exponent_bits, mantissa_bits, bias, family = match.groups()
    try:
        widths = int(exponent_bits), int(mantissa_bits)
        return Format(*widths, int(bias) if bias else _BY_WIDTHS, family or "ieee", not unsigned)
    except ValueError as error:
        raise ValueError(f"no format {name!r}: {error}") from None
