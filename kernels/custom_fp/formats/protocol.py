"""The interface of every number format. This module does not import torch.

A kind of format is a frozen dataclass that inherits from NumberFormat. It is defined in a file of this folder, where
names.py finds it. It has the properties below, recognizes the names of its formats (`named`), and states which modules
compute with them (`BACKENDS`). Operators, reports and the runner use only these properties, so they work with every
kind.
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
Tensor = Any  # stands for torch.Tensor, because this module does not import torch


class Backends(NamedTuple):
    """The modules that implement the operators for a format, by device type.

    Each value is written as "module" or "module:object". None means that the device type has no backend of its own.
    `any` is the reference implementation, which defines the results and runs on every device.
    """

    any: str
    cpu: str | None = None
    cuda: str | None = None


class NumberFormat(ABC):
    """A number format. Formats can be compared and used as dictionary keys."""

    LOOKS_LIKE: ClassVar[str]
    """The pattern of the names, for messages: "e<1..8>m<0..23> (e5m2, e4m3fn), fp32 ..."."""

    PURPOSE: ClassVar[str] = ""
    """A one-line description of what formats of this kind are used for."""

    EXAMPLES: ClassVar[tuple[str, ...]] = ()
    """The names of some formats of this kind, for the list of formats."""

    BACKENDS: ClassVar[Backends | Mapping[str, str]]
    """The modules whose functions operators/table.py calls for formats of this kind."""

    if (
        TYPE_CHECKING
    ):  # declared read-only, since a kind may define each as a field, a property or a class attribute

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
        """The name of the format in records and messages. `parse` accepts it, except for a user-defined table."""

        code_bits: int
        """The number of bits of a code, without the scale."""

        scale_bits: int = 0
        """The number of bits of a scale, or 0 if there are no scales."""

        block: Block | None = 1
        """Which values share a scale (see layout.py), or 1 if there are no scales."""

        has_tensor_scale: bool = False
        """Whether the whole tensor has a float32 scale in addition to the scales of its blocks."""

        has_zero_point: bool = False
        """Whether each scale has a zero point, a byte that contains the code of zero."""

        exponent_bits: int | None
        """The number of exponent bits of a binary floating-point format, or None for other formats."""

        has_inf: bool
        has_nan: bool
        """Whether NaN stays NaN when it is rounded to the format."""

        has_negative_zero: bool
        is_signed: bool

        is_fp32: bool = False
        """Whether the format is float32."""

    @classmethod
    @abstractmethod
    def named(cls, name: str) -> Self | None:
        """Return the format of this kind with the given name, or None if the name does not follow the pattern.

        Raises:
            ValueError: The name follows the pattern, but no such format exists (e9m2).
        """

    @cached_property
    def backends(self) -> Backends:
        """The modules that implement the operators for this format. See `BACKENDS`."""
        found = self.BACKENDS
        return found if isinstance(found, Backends) else Backends(**found)

    @property
    def synonyms(self) -> tuple[str, ...]:
        """The other names for which `parse` returns this format."""
        return ()

    def code_values(self) -> Sequence[float] | None:
        """Return the value of each code, before scale and zero point are applied.

        Returns:
            2**code_bits values, or None for codes of more than 16 bits and for kinds that do not list their values.
        """
        return None

    @cached_property
    def has_scales(self) -> bool:
        """Whether the format has scales."""
        return self.scale_bits > 0

    @property
    def together(self) -> int | None:
        """The number of values of a flat tensor that are rounded together, independently of other values.

        1 means that each value is rounded by itself, and None means that the whole tensor is rounded together.
        """
        return self.block if isinstance(self.block, int) and not self.has_tensor_scale else None

    @property
    def is_flat(self) -> bool:
        """Whether one-dimensional tensors can have this format. Workers send gradients as such tensors."""
        return not isinstance(self.block, tuple) and self.block != "column"

    def check_flat(self) -> None:
        """Raise ValueError if the format is unsuitable for the flat, signed gradients that workers send."""
        if not self.is_signed:
            raise ValueError(
                f"format={self.name} has no negative numbers, but gradients do; use a signed format, such as e4m3fn"
            )
        if not self.is_flat:
            raise ValueError(
                f"format={self.name} has a scale for each tile or column of a matrix, but workers send flat gradients; "
                "use a format with blocks along one axis, such as nvfp4 or fp8_b128"
            )

    @cached_property
    def has_axis(self) -> bool:
        """Whether blocks run along an axis, so the result depends on the axis."""
        return self.has_scales and (type(self.block) is int or self.block in ("row", "column"))

    @cached_property
    def has_tiles(self) -> bool:
        """Whether blocks are tiles of the last two dimensions."""
        return isinstance(self.block, tuple)

    @property
    def takes_rounding(self) -> bool:
        """Whether the format supports every rounding mode. If False, it supports only rounding to nearest."""
        return not self.has_scales

    @property
    def bits(self) -> int | float:
        """The number of bits per value, including the value's share of the scale of its block.

        The scale of a whole tensor, row or column is not included, because its share depends on the size of the tensor.
        """
        size = math.prod(self.block) if isinstance(self.block, tuple) else self.block
        return (
            self.code_bits + self.bits_of_block / size
            if self.scale_bits and isinstance(size, int)
            else self.code_bits
        )

    @property
    def bits_of_block(self) -> int:
        """The number of bits that a block needs in addition to its codes."""
        return self.scale_bits + 8 * self.has_zero_point

    def layout(self, shape: Sequence[int], axis: int | None = None) -> Layout:
        """Return how a tensor of this shape is cut into blocks.

        Args:
            shape: The shape of the tensor.
            axis: The nonnegative index of the axis along which blocks run, or None for the order in memory.

        Raises:
            ValueError: The tensor does not have the dimensions that the blocks require.
        """
        try:
            return _cut(self.block, shape, axis, self.name)
        except TypeError:  # the symbolic sizes of torch.compile are not hashable, so they cannot be cached
            return cut(self.block, shape, axis, self.name)

    def scales(self, numel: int) -> int:
        """Return the number of scales of a flat tensor, not counting the scale of the whole tensor."""
        return self.layout((numel,)).scales if self.scale_bits else 0

    def packed_size(self, shape: int | Sequence[int], axis: int | None = None) -> int:
        """Return the number of bytes of a packed tensor: its scales, then ceil(n / 8) * k bytes of k-bit codes.

        Args:
            shape: The shape of the tensor, or its number of elements.
            axis: The axis along which blocks run, or None.
        """
        shape = (shape,) if isinstance(shape, int) else shape
        codes = -(-math.prod(shape) // 8) * self.code_bits
        if not self.scale_bits:
            return codes
        return 4 * self.has_tensor_scale + self.layout(shape, axis).scales * self.bits_of_block // 8 + codes

    def __str__(self) -> str:
        return self.name

    # The operators as methods: fmt.quantize(x) equals custom_fp.quantize(x, fmt)

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
