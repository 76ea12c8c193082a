"""How a tensor is cut into blocks that share a scale. This module does not import torch.

Every cut is a cut into tiles. The tensor is `planes` matrices of `rows` times `columns` in memory, and each one is cut
into tiles of `height` times `width`. Tiles at an edge may be smaller. Blocks along the last axis are tiles of height
1, and blocks along another axis are tiles of width 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Block = int | tuple[int, int] | str
"""What shares a scale.

- n: every n elements along the axis.
- (a, b): tiles of a rows and b columns of the last two dimensions, for any axis.
- "row", "column": all of the axis. Without an axis it is the last one, or the last but one.
- "tensor": the whole tensor.
"""

WHOLE = ("row", "column", "tensor")


@dataclass(frozen=True)
class Layout:
    """A cut of a tensor into tiles. `shape` is the shape of the scales. Without an axis they have one dimension."""

    planes: int
    rows: int
    columns: int
    height: int
    width: int
    shape: tuple[int, ...]

    @property
    def scales(self) -> int:
        return math.prod(self.shape)

    @property
    def numel(self) -> int:
        return self.planes * self.rows * self.columns

    @property
    def as_rows(self) -> Layout:
        """The same blocks as one long row, if each block is contiguous in memory."""
        if self.height > 1 or self.columns % self.width:
            return self
        return Layout(1, 1, self.numel, 1, self.width, self.shape)


def cut(block: Block | None, shape: Sequence[int], axis: int | None, name: str) -> Layout:
    """Return how a tensor is cut into blocks.

    Args:
        block: What shares a scale.
        shape: The shape of the tensor.
        axis: The axis that blocks run along, from 0 on, or None.
        name: The name of the format, for the error message.

    Raises:
        ValueError: The tensor does not have the dimensions that the blocks need.
    """
    numel = math.prod(shape)
    if block is None or block == "tensor":
        return Layout(1, 1, numel, 1, max(1, numel), (1,))
    if isinstance(block, tuple):
        return _tiles(block, shape, name)
    if isinstance(block, int) and axis is None:
        return Layout(1, 1, numel, 1, max(1, min(block, numel)), (_parts(numel, block),))
    if axis is None:
        shape = tuple(shape) or (1,)
        axis = len(shape) - (2 if block == "column" else 1)
        if axis < 0:
            raise ValueError(
                f"{name} has a scale a column of the last two dimensions; shape {list(shape)} has not got them; "
                "take row, or blocks along an axis (_row, _b32)"
            )
    outer, size, inner = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    length = max(1, min(block, size) if isinstance(block, int) else size)
    scales = (*shape[:axis], _parts(size, length), *shape[axis + 1 :])
    if inner == 1:
        return Layout(1, outer, size, 1, length, scales)
    return Layout(outer, size, inner, length, 1, scales)


def _tiles(block: tuple[int, int], shape: Sequence[int], name: str) -> Layout:
    if len(shape) < 2:
        raise ValueError(
            f"{name} cuts tiles of {block[0]}x{block[1]} from the last two dimensions; shape {list(shape)} has not got "
            f"them; take blocks along an axis (_b{block[1]}), or _tensor"
        )
    *outer, rows, columns = shape
    height, width = max(1, min(block[0], rows)), max(1, min(block[1], columns))
    scales = (*outer, _parts(rows, height), _parts(columns, width))
    return Layout(math.prod(outer), rows, columns, height, width, scales)


def _parts(size: int, length: int) -> int:
    return -(-size // length)
