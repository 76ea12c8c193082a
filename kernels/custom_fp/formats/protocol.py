"""What every number format says of itself, whatever its kind. Standard library only; torch is loaded to compute.

A kind of format is a frozen dataclass under NumberFormat in a file of this folder, where names.py finds it. It states
the facts below, says which names are its own (`named`), and where the functions are that compute with it
(`BACKENDS`); the operators, the report and the runner ask for facts, never for the kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Self

import custom_fp

Tensor = Any  # torch's, which is not loaded here


class NumberFormat(ABC):
    """A number format as a value: equal ones are one, and it can be a key."""

    LOOKS_LIKE: ClassVar[str]
    """Names of this kind, for messages: "e<1..8>m<0..23> (e5m2, e4m3fn), fp32 ..."."""

    BACKENDS: ClassVar[Mapping[str, str]]
    """By type of device a module, or module:object, with the functions that compute: what custom_fp.operators calls.
    "any" serves every device and defines the results."""

    name: str
    """The one name of this format in records and messages; `parse` reads it back, but for a table of one's own."""

    code_bits: int
    """Of each value's code."""

    scale_bits: int = 0
    """Of each scale that stands beside the codes; 0: there are none."""

    block: int | None = 1
    """Values that are rounded together: 1 each by itself, else those that share a scale; None: the whole tensor."""

    exponent_bits: int | None
    """Of a binary floating-point format; None for any other."""

    has_inf: bool
    has_nan: bool
    """Whether a NaN that is rounded to the format stays one."""

    has_negative_zero: bool
    is_signed: bool

    is_fp32: bool = False
    """Whether this is float32 itself, so that rounding to it changes no float32."""

    @classmethod
    @abstractmethod
    def named(cls, name: str) -> Self | None:
        """The format of this kind called `name`, None if the name is not of this kind; ValueError for one that is, but
        which no format can have (e9m2)."""

    @cached_property
    def has_scales(self) -> bool:
        """Whether scales stand beside its codes: a scaled format."""
        return self.scale_bits > 0

    @property
    def bits(self) -> int | float:
        """Bits a value, its share of a block's scale included; a whole tensor's one scale is left out."""
        return (
            self.code_bits + self.scale_bits / self.block
            if self.scale_bits and self.block
            else self.code_bits
        )

    def scales(self, numel: int) -> int:
        """How many scales a tensor of so many elements has."""
        if not self.scale_bits:
            return 0
        return -(-numel // self.block) if self.block else 1

    def packed_size(self, numel: int) -> int:
        """Bytes of a packed tensor: its scales, then ceil(numel / 8) * k bytes of codes."""
        return self.scales(numel) * self.scale_bits // 8 + -(-numel // 8) * self.code_bits

    def __str__(self) -> str:
        return self.name

    # what it does, as custom_fp.quantize(x, format, ...) and so on

    def quantize(self, x: Tensor, **rule: Any) -> Tensor:
        return custom_fp.quantize(x, self, **rule)

    def encode(self, x: Tensor, **rule: Any) -> Tensor | tuple[Tensor, Tensor]:
        return custom_fp.encode(x, self, **rule)

    def decode(self, codes: Tensor | tuple[Tensor, Tensor], **rule: Any) -> Tensor:
        return custom_fp.decode(codes, self, **rule)

    def pack(self, x: Tensor, **rule: Any) -> Tensor:
        return custom_fp.pack(x, self, **rule)

    def unpack(self, data: Tensor, shape: Sequence[int] | int, **rule: Any) -> Tensor:
        return custom_fp.unpack(data, self, shape, **rule)
