"""How a tensor is cut in blocks that share a scale. Standard library only.

Every cut is one of tiles: the tensor as `planes` matrices of `rows` times `columns` as they lie in memory, each in
tiles of `height` times `width`, of which the last ones may be smaller. Blocks along the last axis are tiles of
height 1, those along any other one tiles of width 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Block = int | tuple[int, int] | str
"""n: so many along the axis. (a, b): tiles of a rows and b columns of the last two dimensions, whatever the axis.
row, column: all of the axis, which is the last, the last but one where none is given. tensor: everything."""

WHOLE = ("row", "column", "tensor")


@dataclass(frozen=True)
class Layout:
    """shape: of the scales; without an axis, of a tensor in memory order, they have one dimension."""

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
        """The same blocks, as one long row where they are cut from memory as it lies."""
        if self.height > 1 or self.columns % self.width:
            return self
        return Layout(1, 1, self.numel, 1, self.width, self.shape)


def cut(block: Block | None, shape: Sequence[int], axis: int | None, name: str) -> Layout:
    """axis: from 0 on. name: the format's, for the ValueError that a tensor without its dimensions raises."""
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
