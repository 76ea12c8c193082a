"""The interface of every number format. This module does not import torch.

A kind of format is a frozen dataclass that inherits from NumberFormat, in a file of this folder, where names.py finds
it. It has the properties below, recognizes the names of its formats (`named`), and names the modules that compute with
them (`BACKENDS`). Operators, reports and the runner use these properties and never ask for the kind.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import custom_fp
from custom_fp.formats.layout import Block, Layout, cut

_cut = lru_cache(maxsize=4096)(cut)
Tensor = Any  # torch.Tensor; torch is not imported here


class Backends(NamedTuple):
    """Where the functions are that compute with a format: a module or module:object by device type, None for none.

    `any` serves every device. It is the reference, which defines the results.
    """

    any: str
    cpu: str | None = None
    cuda: str | None = None


class NumberFormat(ABC):
    """A number format. It is a value: it can be compared and can be the key of a dictionary."""

    LOOKS_LIKE: ClassVar[str]
    """The pattern of the names, for messages: "e<1..8>m<0..23> (e5m2, e4m3fn), fp32 ..."."""

    PURPOSE: ClassVar[str] = ""
    """What formats of this kind are for, in one line."""

    EXAMPLES: ClassVar[tuple[str, ...]] = ()
    """Some names, which a list of formats shows."""

    BACKENDS: ClassVar[Backends | Mapping[str, str]]
    """The modules whose functions operators/table.py calls for the formats of this kind."""

    if TYPE_CHECKING:  # read-only: a kind has each of these as a field, a property, or a class attribute

        @property
        def name(self) -> str: ...

        @property
        def code_bits(self) -> int: ...

        @property
        def scale_bits(self) -> int: ...

        @property
        def block(self) -> Block | None: ...

        @property
        def has_tensor_scale(self) -> bool: ...

        @property
        def has_zero_point(self) -> bool: ...

        @property
        def exponent_bits(self) -> int | None: ...

        @property
        def has_inf(self) -> bool: ...

        @property
        def has_nan(self) -> bool: ...

        @property
        def has_negative_zero(self) -> bool: ...

        @property
        def is_signed(self) -> bool: ...

        @property
        def is_fp32(self) -> bool: ...

    else:
        name: str
        """The name of the format in records and messages. `parse` reads it, except for a user's own table."""

        code_bits: int
        """The bits of the code of a value."""

        scale_bits: int = 0
        """The bits of a scale; 0 if there are no scales."""

        block: Block | None = 1
        """What shares a scale (layout.py); 1 if there are no scales."""

        has_tensor_scale: bool = False
        """Whether the tensor has a float32 scale in addition to those of its blocks."""

        has_zero_point: bool = False
        """Whether each scale has a zero point, a byte that is the code of zero."""

        exponent_bits: int | None
        """The exponent bits of a binary floating-point format; None for other formats."""

        has_inf: bool
        has_nan: bool
        """Whether NaN stays NaN when it is rounded to the format."""

        has_negative_zero: bool
        is_signed: bool

        is_fp32: bool = False
        """Whether the format is float32 itself."""

    @classmethod
    @abstractmethod
    def named(cls, name: str) -> Self | None:
        """Return the format of this kind with the given name, or None if the name is not of this kind.

        Raises:
            ValueError: The name is of this kind, but no format can have it (e9m2).
        """

    @cached_property
    def backends(self) -> Backends:
        """The modules whose functions operators/table.py calls."""
        found = self.BACKENDS
        return found if isinstance(found, Backends) else Backends(**found)

    @property
    def synonyms(self) -> tuple[str, ...]:
        """The other names that `parse` reads as this format."""
        return ()

    def code_values(self) -> Sequence[float] | None:
        """Return the value of each code, before scale and zero point.

        Returns:
            2**code_bits values, or None for more than 16 bits and for kinds that do not list their values.
        """
        return None

    @cached_property
    def has_scales(self) -> bool:
        """Whether the format has scales."""
        return self.scale_bits > 0

    @property
    def together(self) -> int | None:
        """The number of values of a flat tensor that are rounded together, independently of others.

        1 means that each value is rounded by itself, and None that the whole tensor is rounded together.
        """
        return self.block if isinstance(self.block, int) and not self.has_tensor_scale else None

    @property
    def is_flat(self) -> bool:
        """Whether tensors of one dimension can have this format, as gradients on the wire do."""
        return not isinstance(self.block, tuple) and self.block != "column"

    def check_flat(self) -> None:
        """Raise ValueError if workers cannot send gradients in this format, because gradients are flat and signed."""
        if not self.is_signed:
            raise ValueError(
                f"format={self.name} has no negative numbers, but gradients do: use a signed format, such as e4m3fn"
            )
        if not self.is_flat:
            raise ValueError(
                f"format={self.name} has a scale for each tile or column of a matrix, but workers send flat gradients: "
                "use a format with blocks along one axis, such as nvfp4 or fp8_b128"
            )

    @cached_property
    def has_axis(self) -> bool:
        """Whether blocks run along an axis, so that the result depends on the axis."""
        return self.has_scales and (type(self.block) is int or self.block in ("row", "column"))

    @cached_property
    def has_tiles(self) -> bool:
        """Whether blocks are tiles of the last two dimensions."""
        return isinstance(self.block, tuple)

    @property
    def takes_rounding(self) -> bool:
        """Whether the format supports every rounding mode, and not only rounding to nearest."""
        return not self.has_scales

    @property
    def bits(self) -> int | float:
        """The bits of a value, including its share of the scale of a block.

        The scale of a whole tensor, row or column is not included, because the length of these depends on the tensor.
        """
        size = math.prod(self.block) if isinstance(self.block, tuple) else self.block
        return (
            self.code_bits + self.bits_of_block / size
            if self.scale_bits and isinstance(size, int)
            else self.code_bits
        )

    @property
    def bits_of_block(self) -> int:
        """The bits of a block besides its codes."""
        return self.scale_bits + 8 * self.has_zero_point

    def layout(self, shape: Sequence[int], axis: int | None = None) -> Layout:
        """Return how a tensor of this shape is cut into blocks along an axis, from 0 on, or without one.

        Raises:
            ValueError: The tensor does not have the dimensions that the blocks need.
        """
        try:
            return _cut(self.block, shape, axis, self.name)
        except TypeError:  # because the numbers of a compiler have no hash
            return cut(self.block, shape, axis, self.name)

    def scales(self, numel: int) -> int:
        """Return the number of scales of a flat tensor, without the scale of the tensor."""
        return self.layout((numel,)).scales if self.scale_bits else 0

    def packed_size(self, shape: int | Sequence[int], axis: int | None = None) -> int:
        """Return the bytes of a packed tensor: its scales, then ceil(n / 8) * k bytes of codes.

        Args:
            shape: The shape of the tensor, or its number of elements.
            axis: The axis that blocks run along, or None.
        """
        shape = (shape,) if isinstance(shape, int) else shape
        codes = -(-math.prod(shape) // 8) * self.code_bits
        if not self.scale_bits:
            return codes
        return 4 * self.has_tensor_scale + self.layout(shape, axis).scales * self.bits_of_block // 8 + codes

    def __str__(self) -> str:
        return self.name

    # The operators: fmt.quantize(x) is custom_fp.quantize(x, fmt)

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
