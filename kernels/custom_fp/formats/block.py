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
class BlockFormat:
    """Blocks of elements of one format under a power of two: an MX format (`parse` makes those), or one like them.

    element: a Format of at most 8 bits, or its name; None: int8. block: elements that share a scale, 1 and more.
    Raises ValueError for anything else.
    """

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
        if isinstance(name, cls):
            return name
        known = ALIASES.get(name, name) if isinstance(name, str) else None
        if known not in ELEMENTS:
            raise ValueError(f"unknown block format {name!r}; allowed: {', '.join(ELEMENTS)}")
        element = ELEMENTS[known]
        return cls(known, None if element is None else Format.parse(element))

    @property
    def code_bits(self) -> int:
        return 8 if self.element is None else self.element.bits

    @property
    def scale_bits(self) -> int:
        """Of each scale, an e8m0."""
        return 8

    @property
    def bits(self) -> float:
        """Bits a value, its share of the block's scale included."""
        return self.code_bits + self.scale_bits / self.block

    @property
    def emax(self) -> int:
        """Exponent of the largest power of two that an element holds."""
        return 0 if self.element is None else self.element.emax

    def scales(self, numel: int) -> int:
        """How many scales a tensor of so many elements has."""
        return -(-numel // self.block)

    def packed_size(self, numel: int) -> int:
        """Bytes of a packed tensor: its scales, then ceil(numel / 8) * k bytes of codes."""
        return self.scales(numel) + -(-numel // 8) * self.code_bits

    def __str__(self) -> str:
        return self.name
