"""Codebook formats as values: a table of up to 256 numbers, and a scale for every tensor or block of one.

A tensor (or each block of it, in the order of its elements in memory) is divided by its largest magnitude; every
quotient, in [-1, 1], becomes the code of the nearest entry of the table. Standard library only.

The tables that have names stand in tables.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import ClassVar

from custom_fp.formats.protocol import NumberFormat
from custom_fp.formats.tables import TABLES, at_most, float32, previous

_BLOCK = re.compile(r"(?P<table>[a-z_0-9]+?)(?:_b(?P<block>[1-9]\d*))?")


@dataclass(frozen=True)
class Codebook(NumberFormat):
    """A table of values in the order of their codes, and how much of a tensor shares a scale.

    values: 2 to 256 numbers in [-1, 1], rounded to float32, at least two of them different. A value that stands there
    twice is written as the first of its codes. block: elements that share a scale; None: the whole tensor. Raises
    ValueError for anything else.
    """

    LOOKS_LIKE: ClassVar = "dynamic_tree ..."
    PURPOSE: ClassVar = (
        "up to 256 values under a float32 scale: gradients on the wire, weights, optimizer states"
    )
    EXAMPLES: ClassVar = (*TABLES, "nf4_b64")
    scale_bits: ClassVar = 32  # a float32
    BACKENDS: ClassVar = {
        "cpu": "custom_fp.scaled.codebook_native:backend",
        "cuda": "custom_fp.scaled.codebook_cuda:codebook",
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
        values = tuple(float32(value) for value in self.values)
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
        """The codebook called `name`: one of `TABLES`, with `_b64` for blocks of 64.

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

    def code_values(self) -> tuple[float, ...]:
        """Fewer than 2**code_bits where the table has fewer."""
        return self.values

    @cached_property
    def sorted_codes(self) -> tuple[int, ...]:
        """A code for each distinct value, ascending by value."""
        first: dict[float, int] = {}
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
            below = at_most(middle)
            to_high = abs(high) <= abs(low)
            found.append(previous(below) if to_high and below == middle else below)
        return tuple(found)
