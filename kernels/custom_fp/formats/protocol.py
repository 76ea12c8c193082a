"""What every number format says of itself, whatever its kind. Standard library only; torch is loaded to compute.

A kind of format is a frozen dataclass under NumberFormat in a file of this folder, where names.py finds it. It states
the facts below, says which names are its own (`named`), and where the functions are that compute with it
(`backends`); the operators, the report and the runner ask for facts, never for the kind.
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
Tensor = Any  # torch's, which is not loaded here


class Backends(NamedTuple):
    """Where the functions are that compute with a format: a module or module:object by device type, None for none.

    `any` serves every device. It is the reference, which defines the results.
    """

    any: str
    cpu: str | None = None
    cuda: str | None = None


class NumberFormat(ABC):
    """A number format as a value: equal ones are one, and it can be a key."""

    LOOKS_LIKE: ClassVar[str]
    """Names of this kind, for messages: "e<1..8>m<0..23> (e5m2, e4m3fn), fp32 ..."."""

    PURPOSE: ClassVar[str] = ""
    """What formats of this kind are for, in a line."""

    EXAMPLES: ClassVar[tuple[str, ...]] = ()
    """Names that a list of formats shows; more exist."""

    BACKENDS: ClassVar[Backends | Mapping[str, str]]
    """The modules whose functions operators/table.py calls for the formats of this kind."""

    if TYPE_CHECKING:  # read only: a kind has a fact as a field, as a property, or once for all its formats

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
        """The one name of this format in records and messages; `parse` reads it back, but for a table of one's own."""

        code_bits: int
        """Of each value's code."""

        scale_bits: int = 0
        """Of each scale that stands beside the codes; 0: there are none."""

        block: Block | None = 1
        """Values that share a scale: so many along an axis, 1 where there are none; None: the whole tensor. See
        layout.py for tiles, rows and columns."""

        has_tensor_scale: bool = False
        """Whether a float32 scale of the whole tensor stands beside those of its blocks."""

        has_zero_point: bool = False
        """Whether a byte for each block stands beside its scale, the code of zero."""

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
    def backends(self) -> Backends:
        """The modules whose functions operators/table.py calls."""
        found = self.BACKENDS
        return found if isinstance(found, Backends) else Backends(**found)

    @property
    def synonyms(self) -> tuple[str, ...]:
        """Other names that `parse` reads as this format."""
        return ()

    def code_values(self) -> Sequence[float] | None:
        """What each code is read as, 2**code_bits of them, before scale and zero point; None: more than 16 bits, or a
        kind that does not say."""
        return None

    @cached_property
    def has_scales(self) -> bool:
        """Whether scales stand beside its codes: a scaled format."""
        return self.scale_bits > 0

    @property
    def together(self) -> int | None:
        """Values of a tensor of one dimension that are rounded together, whatever stands beside them: 1 each by itself;
        None: the whole tensor."""
        return self.block if isinstance(self.block, int) and not self.has_tensor_scale else None

    @property
    def is_flat(self) -> bool:
        """Whether tensors of one dimension have it: what goes over the wire."""
        return not isinstance(self.block, tuple) and self.block != "column"

    def check_flat(self) -> None:
        """Raises ValueError where what workers send, which is flat and has both signs, is not to be in it."""
        if not self.is_signed:
            raise ValueError(
                f"format={self.name} has no negative numbers, and what workers send has: take one with a sign (e4m3fn)"
            )
        if not self.is_flat:
            raise ValueError(
                f"format={self.name} has a scale for each tile or column of a matrix, and what workers send is flat: "
                "take blocks along an axis, as nvfp4 and fp8_b128 have them"
            )

    @cached_property
    def has_axis(self) -> bool:
        """Whether its blocks run along an axis, so that one tensor is another along another."""
        return self.has_scales and (type(self.block) is int or self.block in ("row", "column"))

    @cached_property
    def has_tiles(self) -> bool:
        """Whether its blocks are tiles of the last two dimensions."""
        return isinstance(self.block, tuple)

    @property
    def takes_rounding(self) -> bool:
        """Whether its values are rounded as one asks, not to nearest only."""
        return not self.has_scales

    @property
    def bits(self) -> int | float:
        """Bits a value, its share of a block's scale included. A whole tensor's one scale is left out, and so is that
        of a row or column, whose length the tensor says."""
        size = math.prod(self.block) if isinstance(self.block, tuple) else self.block
        return (
            self.code_bits + self.bits_of_block / size
            if self.scale_bits and isinstance(size, int)
            else self.code_bits
        )

    @property
    def bits_of_block(self) -> int:
        """Beside its codes."""
        return self.scale_bits + 8 * self.has_zero_point

    def layout(self, shape: Sequence[int], axis: int | None = None) -> Layout:
        """How a tensor of this shape is cut in blocks along an axis from 0 on; None: as `quantize` has it. ValueError
        where it cannot be."""
        try:
            return _cut(self.block, shape, axis, self.name)
        except TypeError:  # a compiler's numbers have no hash
            return cut(self.block, shape, axis, self.name)

    def scales(self, numel: int) -> int:
        """How many scales a tensor of so many elements and one dimension has, that of the tensor not counted."""
        return self.layout((numel,)).scales if self.scale_bits else 0

    def packed_size(self, shape: int | Sequence[int], axis: int | None = None) -> int:
        """Bytes of a packed tensor of this shape, or of so many elements: its scales, then ceil(n / 8) * k of codes."""
        shape = (shape,) if isinstance(shape, int) else shape
        codes = -(-math.prod(shape) // 8) * self.code_bits
        if not self.scale_bits:
            return codes
        return 4 * self.has_tensor_scale + self.layout(shape, axis).scales * self.bits_of_block // 8 + codes

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
