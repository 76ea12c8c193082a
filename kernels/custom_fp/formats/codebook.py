"""Codebook formats as values: a table of up to 256 numbers, and a scale for every tensor or block of one.

A tensor (or each block of it, in the order of its elements in memory) is divided by its largest magnitude; every
quotient, in [-1, 1], becomes the code of the nearest entry of the table. Standard library only.

The four tables of Dettmers, "8-Bit Approximations for Parallelism in Deep Learning" (ICLR 2016, arXiv:1511.04561),
section 2, 8 bits each. `dynamic_tree` is the author's own table: his kernels (clusterNet, kCompression_8bit) have
126 positive entries, a code for zero, a code for the maximum, and go over to the maximum at .995703, which is the
middle between 1 and this table's next entry, .99140625. Where the paper's text leaves the others open, what is
chosen here stands in their docstrings.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import ClassVar

from custom_fp.formats.protocol import NumberFormat

_BLOCK = re.compile(r"(?P<table>[a-z_]+?)(?:_b(?P<block>[1-9]\d*))?")


@dataclass(frozen=True)
class Codebook(NumberFormat):
    """A table of values in the order of their codes, and how much of a tensor shares a scale.

    values: 2 to 256 numbers in [-1, 1], rounded to float32, at least two of them different. A value that stands there
    twice is written as the first of its codes. block: elements that share a scale; None: the whole tensor. Raises
    ValueError for anything else.
    """

    LOOKS_LIKE: ClassVar = "dynamic_tree ..."
    scale_bits: ClassVar = 32  # a float32
    BACKENDS: ClassVar = {
        "cpu": "custom_fp.scaled.codebook_native:backend",
        "any": "custom_fp.scaled.codebook:backend",
    }
    exponent_bits: ClassVar = None
    has_inf: ClassVar = False  # a block that holds one is NaN
    has_nan: ClassVar = True  # of the scale
    has_negative_zero: ClassVar = False

    name: str
    values: tuple[float, ...]
    block: int | None = None

    def __post_init__(self) -> None:
        values = tuple(_float32(value) for value in self.values)
        object.__setattr__(self, "values", values)
        if not 2 <= len(values) <= 256:
            raise ValueError(f"codebook {self.name!r} has {len(values)} values; allowed: 2..256")
        if bad := [value for value in values if not -1.0 <= value <= 1.0]:
            raise ValueError(
                f"codebook {self.name!r} holds {bad[0]}; values lie in [-1, 1], the scale does the rest"
            )
        if len(set(values)) < 2:
            raise ValueError(f"codebook {self.name!r} holds one value only, {values[0]}")
        if self.block is not None and (not isinstance(self.block, int) or self.block < 1):
            raise ValueError(
                f"codebook {self.name!r} with block={self.block}; allowed: a whole number from 1, or None"
            )

    @classmethod
    def parse(cls, name: str | Codebook) -> Codebook:
        """The codebook called `name`: dynamic_tree, linear, static_tree or mantissa, with `_b64` for blocks of 64.

        Raises ValueError, which tells what is allowed.
        """
        found = name if isinstance(name, cls) else cls.named(name) if isinstance(name, str) else None
        if found is None:
            raise ValueError(
                f"unknown codebook {name!r}; allowed: {', '.join(TABLES)}, with _b<size> for blocks"
            )
        return found

    @classmethod
    def named(cls, name: str) -> Codebook | None:
        match = _BLOCK.fullmatch(name)
        if not match or match["table"] not in TABLES:
            return None
        block = int(match["block"]) if match["block"] else None
        return cls(name, tuple(TABLES[match["table"]]()), block)

    @cached_property
    def code_bits(self) -> int:
        """ceil(log2 n) bits a value."""
        return (len(self.values) - 1).bit_length()

    @property
    def is_signed(self) -> bool:
        return min(self.values) < 0

    @cached_property
    def sorted_codes(self) -> tuple[int, ...]:
        """A code for each distinct value, ascending by value."""
        first = {}
        for code, value in enumerate(self.values):
            first.setdefault(value, code)
        return tuple(first[value] for value in sorted(first))

    @cached_property
    def thresholds(self) -> tuple[float, ...]:
        """float32 t_i: of the distinct values v_0 < v_1 < ..., the nearest to y is v_i, where i = #{t_i < y}.

        A y in the middle of two values goes to the one of smaller magnitude; of -v and v, to v.
        """
        values = [self.values[code] for code in self.sorted_codes]
        found = []
        for low, high in pairwise(values):
            middle = (low + high) / 2  # exact: two float32 values in a double
            below = _at_most(middle)
            to_high = abs(high) <= abs(low)
            found.append(_previous(below) if to_high and below == middle else below)
        return tuple(found)


# ---- the paper's tables, in the order of their codes


def dynamic_tree() -> list[float]:
    """Sign bit; the leading zeros of the other 7 bits give the decade; the bits behind the first one, the value.

    z leading zeros, z = 0..5: 64, 32, 16, 8, 4, 2 values in the decade [.1, 1] * 10**-z, half of them in the middles
    of equal parts of [.1, .45], half in those of [.45, 1]. 0000001 is the maximum, 0000000 zero.
    """
    magnitudes = [Fraction(0), Fraction(1)]
    for zeros in range(5, -1, -1):
        half = 2 ** (5 - zeros)
        split = _middles(Fraction(1, 10), Fraction(45, 100), half) + _middles(
            Fraction(45, 100), Fraction(1), half
        )
        magnitudes += [value / 10**zeros for value in split]
    return _with_signs(magnitudes)


def linear() -> list[float]:
    """Sign bit and 7 bits k: k / 127. Linear quantization."""
    return _with_signs(Fraction(k, 127) for k in range(128))


def static_tree() -> list[float]:
    """Sign bit, 3 bits e of exponent, 4 bits of a bisection of [.1, 1]: middles of 16 equal parts, times 10**-e.

    Our choice: the two smallest magnitudes (e = 7) give their codes to zero and to the maximum, as dynamic_tree has it.
    """
    magnitudes = [
        value / 10**exponent for exponent in range(8) for value in _middles(Fraction(1, 10), Fraction(1), 16)
    ]
    smallest = 7 * 16
    magnitudes[smallest], magnitudes[smallest + 1] = Fraction(0), Fraction(1)
    return _with_signs(magnitudes)


def mantissa() -> list[float]:
    """Sign bit, 3 bits e of exponent to the base ten, 4 bits m of mantissa: m / 10 * 10**-e, as a decimal float.

    Our choice: m counts tenths, 0..15, and what is above 1 (m > 10 at e = 0) is 1: codes that say the same remain,
    as they do in any format to base ten.
    """
    magnitudes = [
        min(Fraction(m, 10) / 10**exponent, Fraction(1)) for exponent in range(8) for m in range(16)
    ]
    return _with_signs(magnitudes)


TABLES: dict[str, Callable[[], list[float]]] = {
    "dynamic_tree": dynamic_tree,
    "linear": linear,
    "static_tree": static_tree,
    "mantissa": mantissa,
}


def _middles(low: Fraction, high: Fraction, parts: int) -> list[Fraction]:
    """The middles of equal parts of [low, high], ascending."""
    return [low + (high - low) * Fraction(2 * i + 1, 2 * parts) for i in range(parts)]


def _with_signs(magnitudes: Iterable[Fraction]) -> list[float]:
    """Codes 0..127 as given, 128..255 negative; the second zero is read as zero and never written."""
    positive = [_float32(float(value)) for value in magnitudes]
    return positive + [-value if value else 0.0 for value in positive]


# ---- float32 in the standard library


def _float32(value: float) -> float:
    """Rounded to float32. Raises ValueError for what is no finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"a codebook holds finite numbers, not {value!r}")
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0] + 0.0  # no -0
    except OverflowError:
        return math.copysign(math.inf, value)


def _at_most(value: float) -> float:
    """The largest float32 that is not above a double in [-1, 1]."""
    rounded = _float32(value)
    return rounded if rounded <= value else _previous(rounded)


def _previous(value: float) -> float:
    """The next float32 below one."""
    if value == 0.0:
        return -(2.0**-149)
    (pattern,) = struct.unpack("<i", struct.pack("<f", value))
    return struct.unpack("<f", struct.pack("<i", pattern - 1 if value > 0 else pattern + 1))[0]
