"""The scales of a scaled format: how they are stored, which elements share a scale, and how scales are chosen.

A scale is positive or NaN, so its format needs no sign:

    e8m0     2**(code - 127) for the codes 0 to 254. Code 255 is NaN (OCP MX 1.0, section 5.4.1).
    e4m3fn   The OCP 8-bit format with its sign bit set to 0. The codes 1 to 126 are 2**-9 to 448, and 127 is NaN. The
             other names `ue4m3` and `ue4m3fn` are accepted because the type with that name in the PTX ISA has the same
             seven bits.
    ue5m3    5 exponent bits with bias 15, 3 mantissa bits, subnormals, and no infinity. The codes 1 to 254 are 2**-17
             to 114688, and 255 is NaN. These are the magnitudes of e5m3fn. `ue5m3fn` is another name for it.
    fp32     A float32. The smallest scale is 2**-126, so that its reciprocal is normal, except with the rule absmax.

Code 0 of e4m3fn and ue5m3 is zero and is never written. This module does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from custom_fp.formats.layout import WHOLE, Block
from custom_fp.formats.scalar import Format

ALIASES = {"ue4m3": "e4m3fn", "ue4m3fn": "e4m3fn", "ue5m3fn": "ue5m3"}
BY_FORMAT: Any = None
"""The default of a rule, which depends on the format of the scales."""
_FLOAT32_MAX = (2 - 2.0**-23) * 2.0**127


@dataclass(frozen=True)
class ScaleFormat:
    """A format of scales.

    Attributes:
        name: The name of the format.
        bits: The number of bits of a code.
        smallest: The smallest scale.
        largest: The largest scale.
        nan_code: The code of NaN, or None for float32.
        magnitudes: The scalar format that the codes belong to, or None for e8m0 and fp32.
    """

    name: str
    bits: int
    smallest: float
    largest: float
    nan_code: int | None
    magnitudes: Format | None = None

    @property
    def is_power_of_two(self) -> bool:
        return self.name == "e8m0"

    @classmethod
    def parse(cls, name: str | ScaleFormat) -> ScaleFormat:
        """Return the scale format with the given name, or raise ValueError if the name is unknown."""
        if isinstance(name, ScaleFormat):
            return name
        if (known := ALIASES.get(name, name)) not in SCALES:
            raise ValueError(f"unknown format of scales {name!r}; allowed: {', '.join((*SCALES, *ALIASES))}")
        return SCALES[known]

    def __str__(self) -> str:
        return self.name


def _from_scalar(name: str, magnitudes: Format) -> ScaleFormat:
    smallest, largest = magnitudes.smallest_subnormal, magnitudes.max
    assert smallest is not None
    return ScaleFormat(name, 8, smallest, largest, magnitudes.nan_code, magnitudes)


SCALES = {
    "e8m0": ScaleFormat("e8m0", 8, 2.0**-127, 2.0**127, 255),
    "e4m3fn": _from_scalar("e4m3fn", Format.parse("e4m3fn")),
    "ue5m3": _from_scalar("ue5m3", Format.parse("e5m3fn")),
    "fp32": ScaleFormat("fp32", 32, 2.0**-126, _FLOAT32_MAX, None),
}


@dataclass(frozen=True)
class ScaleRule:
    """How the scale of a block is chosen from its largest magnitude, amax. formats/scaled_format.py defines each rule.

    Attributes:
        number: The number of the rule in `ScaleRule` of csrc/tiles/tiles.h. 0 is 2**(exponent of amax - emax), 1 is
            amax / target rounded to a power of two, 2 is amax / target in the format of the scales, and 3 is the better
            of two scales of rule 2. None means that the rule has its own code.
        added: The number that is added to the bits of a float32 before its mantissa is cleared, which makes it a power
            of two. 0 rounds down, 0x400000 rounds to nearest (ties up), and 0x7FFFFF rounds up.
        by_digits: Whether amax keeps as many digits as an element has. `added` is then shifted by this number.
        takes_margin: Whether the largest magnitude may be mapped to less than the target.
        formats: The formats of scales that can be combined with the rule. Empty means all.
        is_option: Whether the rule can be an option of a name. The names of codebooks and of formats with zero points
            imply their rules.
    """

    number: int | None
    added: int = 0x400000
    by_digits: bool = False
    takes_margin: bool = False
    formats: tuple[str, ...] = ()
    is_option: bool = True

    @property
    def is_power(self) -> bool:
        """Whether the rule computes a power of two in one step."""
        return self.number in (0, 1)


_E8M0 = ("e8m0",)
SCALE_RULES = {
    "floor": ScaleRule(0, added=0, formats=_E8M0),
    "ceil": ScaleRule(0, added=0x7FFFFF, formats=_E8M0),
    "nearest": ScaleRule(0, formats=_E8M0),
    "even": ScaleRule(0, by_digits=True, formats=_E8M0),
    "rceil": ScaleRule(1, added=0x7FFFFF, formats=_E8M0),
    "amax": ScaleRule(2, takes_margin=True),
    "4over6": ScaleRule(3, takes_margin=True),
    "absmax": ScaleRule(None, formats=("fp32",), is_option=False),
    "minmax": ScaleRule(None, formats=("fp32",), is_option=False),
}
"""The rules by name. To add a rule for powers of two, a row here is enough for every backend."""
RULES = tuple(name for name, rule in SCALE_RULES.items() if rule.is_option)


@dataclass(frozen=True)
class Scale:
    """The scales of a format.

    Attributes:
        format: The format of the scales, or its name.
        block: Which elements share a scale: a number of elements along an axis, (rows, columns) of a tile, "row",
            "column" or "tensor" (layout.py).
        rule: The rule that chooses scales (formats/scaled_format.py). The default is "floor" for e8m0 and "amax" for
            other formats.
        has_tensor_scale: Whether a float32 scale of the whole tensor multiplies the scales of the blocks.
        margin: With the rules amax and 4over6, the largest magnitude is mapped to the largest element divided by
            2**margin.

    Raises:
        ValueError: The value of an attribute is not allowed, or two attributes cannot be combined.
    """

    format: ScaleFormat
    block: Block = 32
    rule: str = BY_FORMAT
    has_tensor_scale: bool = False
    margin: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "format", ScaleFormat.parse(self.format))
        if isinstance(self.block, list):
            object.__setattr__(self, "block", tuple(self.block))
        if self.rule is BY_FORMAT:
            object.__setattr__(self, "rule", "floor" if self.format.is_power_of_two else "amax")
        if problem := self._problem():
            raise ValueError(problem)

    @property
    def how(self) -> ScaleRule:
        """The properties of the rule."""
        return SCALE_RULES[self.rule]

    def _problem(self) -> str | None:
        """Return a message that says which attribute is wrong, or None if all are right."""
        sizes = self.block if isinstance(self.block, tuple) else (self.block,)
        is_size = all(type(size) is int and size >= 1 for size in sizes)
        if self.block not in WHOLE and not (is_size and len(sizes) == 1 + isinstance(self.block, tuple)):
            allowed = f"a whole number of at least 1, two such numbers, {', '.join(WHOLE)}"
            return f"block is {self.block!r}; allowed: {allowed}"
        if self.rule not in SCALE_RULES:
            return f"rule is {self.rule!r}; allowed: {', '.join(RULES)}"
        if (formats := self.how.formats) and self.format.name not in formats:
            known = ", ".join(name for name, rule in SCALE_RULES.items() if not rule.formats)
            return (
                f"rule={self.rule} requires scales in {' or '.join(formats)}, not in {self.format}; allowed rules for "
                f"{self.format}: {known}"
            )
        if self.has_tensor_scale and self.format.name in ("e8m0", "fp32"):
            return f"scales in {self.format} cannot be combined with a scale of the tensor; allowed: e4m3fn, ue5m3"
        if type(self.margin) is not int or not 0 <= self.margin < 100:
            return f"margin is {self.margin!r}; allowed: 0 to 99"
        if self.margin and not self.how.takes_margin:
            known = " and ".join(name for name, rule in SCALE_RULES.items() if rule.takes_margin)
            return f"margin={self.margin!r} cannot be combined with rule={self.rule}; allowed rules: {known}"
        return None
