"""The scales that the elements of a format share: how they are stored, who shares one, and how they are chosen.

A scale is positive or NaN, so its format needs no sign:

    e8m0     2**(code - 127) for the codes 0 to 254; 255 is NaN (OCP MX 1.0, section 5.4.1).
    e4m3fn   The OCP 8-bit format with its sign bit 0: the codes 1 to 126 are 2**-9 to 448, and 127 is NaN. `ue4m3` and
             `ue4m3fn` are other names for it, because the type of that name in the PTX ISA has the same seven bits.
    ue5m3    5 exponent bits of bias 15, 3 mantissa bits, subnormals, no infinity: the codes 1 to 254 are 2**-17 to
             114688, and 255 is NaN. These are the magnitudes of e5m3fn. `ue5m3fn` is another name for it.
    fp32     A float32. Except with the rule absmax, the smallest scale is 2**-126, so that its reciprocal is normal.

Code 0 of e4m3fn and ue5m3 is zero and is never written. This module does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from custom_fp.formats.layout import WHOLE, Block
from custom_fp.formats.scalar import Format

ALIASES = {"ue4m3": "e4m3fn", "ue4m3fn": "e4m3fn", "ue5m3fn": "ue5m3"}
BY_FORMAT: Any = None
"""The rule of a scale that says none: it depends on the format."""
_FLOAT32_MAX = (2 - 2.0**-23) * 2.0**127


@dataclass(frozen=True)
class ScaleFormat:
    """A format of scales.

    Attributes:
        name: The name of the format.
        bits: The bits of a code.
        smallest: The smallest scale.
        largest: The largest scale.
        nan_code: The code of NaN; None for float32.
        magnitudes: The scalar format that the codes belong to; None for e8m0 and fp32.
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
        """Return the format of scales with the given name. Raise ValueError if there is none."""
        if isinstance(name, ScaleFormat):
            return name
        if (known := ALIASES.get(name, name)) not in SCALES:
            raise ValueError(f"scales in {name!r}; allowed: {', '.join((*SCALES, *ALIASES))}")
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
        number: `ScaleRule` in csrc/tiles/tiles.h: 0 for 2**(exponent of amax - emax), 1 for amax / target as a power of
            two, 2 for amax / target in the format of the scales, 3 for the better of two of these. None means that the
            rule is computed by code of its own.
        added: What is added to the bits of a float32 before its mantissa is cut off to make it a power of two:
            0 rounds down, 0x400000 to the nearest, halves up, and 0x7FFFFF up.
        by_digits: Whether amax keeps as many digits as an element has, so that `added` is shifted by them.
        takes_margin: Whether the largest magnitude may be scaled to less than the target.
        formats: The formats of scales that the rule is for; empty for all.
        is_option: Whether a name can state the rule. The names of codebooks and of zero points imply theirs.
    """

    number: int | None
    added: int = 0x400000
    by_digits: bool = False
    takes_margin: bool = False
    formats: tuple[str, ...] = ()
    is_option: bool = True

    @property
    def is_power(self) -> bool:
        """Whether the rule makes powers of two in one step."""
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
"""The rules by name. A row here is all that another rule for powers of two needs, in every backend."""
RULES = tuple(name for name, rule in SCALE_RULES.items() if rule.is_option)


@dataclass(frozen=True)
class Scale:
    """The scales of a format.

    Attributes:
        format: The format of the scales, or its name.
        block: The elements that share a scale: a number of them along an axis, (rows, columns) of a tile, "row",
            "column" or "tensor" (layout.py).
        rule: How a scale is chosen (formats/scaled_format.py). None means "floor" for e8m0 and "amax" for other
        formats. has_tensor_scale: Whether a float32 scale of the whole tensor multiplies the scales of its blocks.
        margin: The rules amax and 4over6 scale the largest magnitude to the largest element divided by 2**margin.

    Raises:
        ValueError: An attribute has a value that is not allowed, or two of them do not fit together.
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
        """The rule itself."""
        return SCALE_RULES[self.rule]

    def _problem(self) -> str | None:
        """Return what is wrong with the attributes, or None."""
        sizes = self.block if isinstance(self.block, tuple) else (self.block,)
        is_size = all(type(size) is int and size >= 1 for size in sizes)
        if self.block not in WHOLE and not (is_size and len(sizes) == 1 + isinstance(self.block, tuple)):
            allowed = f"a whole number from 1, two of them, {', '.join(WHOLE)}"
            return f"with block={self.block!r}; allowed: {allowed}"
        if self.rule not in SCALE_RULES:
            return f"with rule={self.rule!r}; allowed: {', '.join(RULES)}"
        if (formats := self.how.formats) and self.format.name not in formats:
            known = ", ".join(name for name, rule in SCALE_RULES.items() if not rule.formats)
            return (
                f"with rule={self.rule} and scales in {self.format}; that rule is for {', '.join(formats)}; "
                f"allowed: {known}"
            )
        if self.has_tensor_scale and self.format.name in ("e8m0", "fp32"):
            return f"with a scale of the tensor and others in {self.format}, which need none; allowed: e4m3fn, ue5m3"
        if type(self.margin) is not int or not 0 <= self.margin < 100:
            return f"with margin={self.margin!r}; allowed: 0 .. 99"
        if self.margin and not self.how.takes_margin:
            known = " and ".join(name for name, rule in SCALE_RULES.items() if rule.takes_margin)
            return f"with margin={self.margin!r} and rule={self.rule}; allowed: 0 .. 99, with {known}"
        return None
