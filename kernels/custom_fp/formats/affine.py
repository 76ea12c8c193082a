"""Integers with a scale and a zero point, as values: affine quantization. Standard library only.

Of a block with the least value low and the largest high, in float32, every step rounded once:

    low, high = min(low, 0), max(high, 0)            so that zero is one of the values
    scale     = max((high - low) / (2**k - 1), 2**-126)
    zero      = 0 - round(low / scale)               within 0 .. 2**k - 1
    code      = round(x * (1 / scale)) + zero        within 0 .. 2**k - 1
    value     = (code - zero) * scale

round: to nearest even; that of the codes also toward zero or stochastic, as asked. These are the operations of torch's
min-max observers, quantize_per_tensor and quantize_per_channel with torch.quint8, and fake_quantize_*_affine, but that
torch's observers hold a scale at 2**-23 and above, which would make zeros of small gradients.

NaN, inf   make their block NaN, and so does a range past the largest float32
-0         becomes +0
zeros      stay zeros
subnormal  x is read as it is; what lies within half of 2**-126 becomes 0
overflow   none, but that of the zero point's rounding: the ends may lie half a step outside and are held within
ties       to even codes before the zero point is added

Names: k = 2 .. 8 bits, `int8_affine` with one scale for the tensor, `int4_affine_b32` for every 32 along the axis,
`int8_affine_channel` (or _row) for all of the axis, which is the last where none is given, `_column` for all of the
last but one, `_64x32` for tiles of the last two dimensions. A scale is a float32, a zero point a byte.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from custom_fp.formats.layout import WHOLE, Block
from custom_fp.formats.protocol import NumberFormat

_NAME = re.compile(
    r"int(?P<bits>[2-8])_affine(?:_(?:b(?P<along>[1-9]\d*)|(?P<height>[1-9]\d*)x(?P<width>[1-9]\d*)|(?P<word>[a-z]+)))?"
)
_BLOCKS = {None: "tensor", "tensor": "tensor", "channel": "row", "row": "row", "column": "column"}


@dataclass(frozen=True)
class Affine(NumberFormat):
    """k bits a value, a scale and a zero point a block; `parse` makes those that have names.

    bits_of_code: 2 .. 8. block: n along the axis, (a, b) for tiles, "row", "column" or "tensor" (layout.py). Raises
    ValueError for anything else.
    """

    LOOKS_LIKE: ClassVar = "int8_affine ..."
    PURPOSE: ClassVar = (
        "integers with a scale and a zero point: activations and weights of one sign or off centre"
    )
    EXAMPLES: ClassVar = ("int8_affine", "int8_affine_channel", "int4_affine_b32")
    scale_bits: ClassVar = 32
    has_zero_point: ClassVar = True
    takes_rounding: ClassVar = True
    BACKENDS: ClassVar = {
        "cpu": "custom_fp.scaled.affine_native:backend",
        "cuda": "custom_fp.scaled.codebook_cuda:affine",
        "any": "custom_fp.scaled.affine:backend",
    }
    exponent_bits: ClassVar = None
    has_inf: ClassVar = False  # a block that holds one is NaN
    has_nan: ClassVar = True  # of the scale
    has_negative_zero: ClassVar = False
    is_signed: ClassVar = True

    name: str
    bits_of_code: int = 8
    block: Block = "tensor"

    def __post_init__(self) -> None:
        if isinstance(self.block, list):
            object.__setattr__(self, "block", tuple(self.block))
        if type(self.bits_of_code) is not int or not 2 <= self.bits_of_code <= 8:
            raise ValueError(f"affine format {self.name!r} of {self.bits_of_code!r} bits; allowed: 2 .. 8")
        sizes = self.block if isinstance(self.block, tuple) else (self.block,)
        is_size = all(type(size) is int and size >= 1 for size in sizes)
        if self.block not in WHOLE and not (is_size and len(sizes) == 1 + isinstance(self.block, tuple)):
            raise ValueError(
                f"affine format {self.name!r} with block={self.block!r}; allowed: a whole number from 1, two of "
                f"them, {', '.join(WHOLE)}"
            )

    @property
    def code_bits(self) -> int:
        return self.bits_of_code

    @property
    def levels(self) -> int:
        """The largest code."""
        return 2**self.bits_of_code - 1

    def code_values(self) -> list[float]:
        return [float(code) for code in range(self.levels + 1)]

    @classmethod
    def named(cls, name: str) -> Affine | None:
        return _named(name)


@cache
def _named(name: str) -> Affine | None:
    match = _NAME.fullmatch(name)
    if match is None or (match["word"] and match["word"] not in _BLOCKS):
        return None
    bits, base = int(match["bits"]), f"int{match['bits']}_affine"
    if match["along"]:
        return Affine(name, bits, int(match["along"]))
    if match["height"]:
        return Affine(name, bits, (int(match["height"]), int(match["width"])))
    block = _BLOCKS[match["word"]]
    words = {"tensor": "", "row": "_channel", "column": "_column"}
    return Affine(base + words[block], bits, block)
