"""Block-scaled formats as values: OCP Microscaling (MX) 1.0. Standard library only.

A tensor, in the order of its elements in memory, is cut in blocks of 32; the last one may be shorter. Each has a
scale of type e8m0, a power of two from 2**-127 to 2**127 (code 255: NaN), and elements in a small format:

    scale = 2**(floor(log2(max|x|)) - emax), clamped to e8m0      emax: exponent of the element's largest power of two
    element = x / scale, rounded to nearest even, saturating      (section 6.3)

Element formats (table 1): mxfp8_e4m3, mxfp8_e5m2, mxfp6_e3m2, mxfp6_e2m3, mxfp4 (e2m1), and mxint8, a two's complement
integer with 6 digits behind the point.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from custom_fp.formats.protocol import NumberFormat
from custom_fp.formats.scalar import Format

ELEMENTS = {
    "mxfp8_e4m3": "e4m3fn",
    "mxfp8_e5m2": "e5m2",
    "mxfp6_e3m2": "e3m2fn",
    "mxfp6_e2m3": "e2m3fn",
    "mxfp4": "e2m1fn",
    "mxint8": None,
}
ALIASES = {"mxfp4_e2m1": "mxfp4"}
BLOCK = 32
INT8_FRACTION_BITS = 6


@dataclass(frozen=True)
class BlockFormat(NumberFormat):
    """Blocks of elements of one format under a power of two: an MX format (`parse` makes those), or one like them.

    element: a Format of at most 8 bits, or its name; None: int8. block: elements that share a scale, 1 and more.
    Raises ValueError for anything else.
    """

    LOOKS_LIKE: ClassVar = f"{next(iter(ELEMENTS))} ..."
    scale_bits: ClassVar = 8  # an e8m0
    BACKENDS: ClassVar = {"cpu": "custom_fp.scaled.mx_native:backend", "any": "custom_fp.scaled.mx:backend"}
    exponent_bits: ClassVar = None
    has_inf: ClassVar = False  # a block that holds one is NaN
    has_nan: ClassVar = True  # of the scale
    is_signed: ClassVar = True

    name: str
    element: Format | None
    block: int = field(default=BLOCK)

    def __post_init__(self) -> None:
        if self.element is not None:
            object.__setattr__(self, "element", Format.parse(self.element))
            if self.element.bits > 8:
                raise ValueError(
                    f"block format {self.name!r} with elements of {self.element}, {self.element.bits} bits; "
                    "allowed: formats of at most 8 bits, or None for int8"
                )
        if not isinstance(self.block, int) or isinstance(self.block, bool) or self.block < 1:
            raise ValueError(
                f"block format {self.name!r} with block={self.block!r}; allowed: a whole number from 1"
            )

    @classmethod
    def parse(cls, name: str | BlockFormat) -> BlockFormat:
        """The MX format called `name`. Raises ValueError, which tells what is allowed."""
        found = name if isinstance(name, cls) else cls.named(name) if isinstance(name, str) else None
        if found is None:
            raise ValueError(f"unknown block format {name!r}; allowed: {', '.join(ELEMENTS)}")
        return found

    @classmethod
    def named(cls, name: str) -> BlockFormat | None:
        known = ALIASES.get(name, name)
        return cls(known, ELEMENTS[known]) if known in ELEMENTS else None

    @property
    def code_bits(self) -> int:
        return 8 if self.element is None else self.element.bits

    @property
    def has_negative_zero(self) -> bool:
        return self.element is not None

    @property
    def emax(self) -> int:
        """Exponent of the largest power of two that an element holds."""
        return 0 if self.element is None else self.element.emax
