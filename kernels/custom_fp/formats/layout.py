"""Determine how a tensor is cut into blocks that share a scale. This module does not import torch.

Every cut is described as a cut into tiles. In memory, the tensor consists of `planes` matrices of `rows` x `columns`,
and each matrix is cut into tiles of `height` x `width`. Tiles at an edge may be smaller. Blocks along the last axis are
tiles of height 1, and blocks along another axis are tiles of width 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Block = int | tuple[int, int] | str
"""Which elements share a scale.

- n: every n consecutive elements along the axis.
- (a, b): tiles of a rows and b columns of the last two dimensions, whatever the axis is.
- "row", "column": all elements along the axis. Without an axis, "row" means the last dimension and "column" the second
  to last one.
- "tensor": the whole tensor.
"""

WHOLE = ("row", "column", "tensor")


@dataclass(frozen=True)
class Layout:
    """A cut of a tensor into tiles.

    Attributes:
        planes: The number of matrices that the tensor consists of.
        rows: The number of rows of each matrix.
        columns: The number of columns of each matrix.
        height: The number of rows of a tile.
        width: The number of columns of a tile.
        shape: The shape of the scales. Without an axis, the scales have a single dimension.
    """

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
        """The same blocks within one long row if each block is contiguous in memory, and otherwise this layout."""
        if self.height > 1 or self.columns % self.width:
            return self
        return Layout(1, 1, self.numel, 1, self.width, self.shape)


def cut(block: Block | None, shape: Sequence[int], axis: int | None, name: str) -> Layout:
    """Return how a tensor is cut into blocks.

    Args:
        block: Which elements share a scale.
        shape: The shape of the tensor.
        axis: The nonnegative index of the axis along which blocks run, or None for the order in memory.
        name: The name of the format, for the error message.

    Raises:
        ValueError: The tensor does not have the dimensions that the blocks require.
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
                f"{name} has a scale for each column of the last two dimensions, but the tensor has shape "
                f"{list(shape)}; use a format with a scale for each row, or for blocks along an axis (_row, _b32)"
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
            f"{name} cuts the last two dimensions into tiles of {block[0]}x{block[1]}, but the tensor has shape "
            f"{list(shape)}; use a format with blocks along an axis (_b{block[1]}), or with one scale (_tensor)"
        )
    *outer, rows, columns = shape
    height, width = max(1, min(block[0], rows)), max(1, min(block[1], columns))
    scales = (*outer, _parts(rows, height), _parts(columns, width))
    return Layout(math.prod(outer), rows, columns, height, width, scales)


def _parts(size: int, length: int) -> int:
    return -(-size // length)
