"""Recompute the products of kernels that read or write elements at wrong positions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from custom_fp.testing.failure import Cause, Failure

_TILES = (8, 16, 32, 64, 128, 256)


def layouts(failure: Failure) -> Iterator[Cause]:
    """Yield results with a tile that is transposed, is in the wrong position, or was added to another tile."""
    yield from _operand_tiles(failure)
    matrix = failure.matrix
    if matrix is None:
        return
    rows, columns = matrix.shape
    row, column = failure.row, failure.column
    for tile in _TILES:
        if tile > max(rows, columns):
            break
        values = _at(matrix, row - row % tile + column % tile, column - column % tile + row % tile)
        yield failure.of_values(f"the tile of {tile} x {tile} elements of the result is transposed", values)
        for down, right, text in (
            (tile, 0, f"{tile} rows below"),
            (-tile, 0, f"{tile} rows above"),
            (0, tile, f"{tile} columns to the right"),
            (0, -tile, f"{tile} columns to the left"),
        ):
            other = _at(matrix, row + down, column + right)
            yield failure.of_values(f"the result belongs to the tile {text}", other)
            yield failure.of_values(
                f"the sum began with that of the tile {text} (stale accumulator)", failure.exact + other
            )
    if rows == columns:
        yield failure.of_values("the result is transposed", matrix[column, row])
    for step in (1, -1):
        yield failure.of_values(f"the result belongs to row i {step:+d}", _at(matrix, row + step, column))
        yield failure.of_values(f"the result belongs to column j {step:+d}", _at(matrix, row, column + step))
    for name, x, index, partner in _operands(failure):
        if x.shape[0] == x.shape[1]:
            terms = x.double()[:, index].mT * partner
            yield failure.of_values(f"{name} is transposed", terms.nan_to_num(0, 0, 0).sum(1))


def _operands(failure: Failure) -> list[tuple[str, Tensor, Tensor, Tensor]]:
    """Return the name and values of both operands, with the row and the other factors of each element.

    Each entry has the name, the operand as (M, K) or (N, K), the index (E,) of each element's row in the operand, and
    the product (E, K) of all other factors of the element's terms.
    """
    a, b = failure.whole.a[failure.batch], failure.whole.bt[failure.batch]
    rest = failure.scaling
    return [
        ("a", a, failure.row, b[failure.column].double() * rest),
        ("b", b, failure.column, a[failure.row].double() * rest),
    ]


def _operand_tiles(failure: Failure) -> Iterator[Cause]:
    """Yield operands with transposed square tiles: all tiles transposed, or only one tile along K."""
    depth = failure.whole.depth
    k = torch.arange(depth)
    for (name, x, index, partner), tile in itertools.product(_operands(failure), _TILES):
        if tile > min(x.shape):
            continue
        at = (index - index % tile)[:, None] + k % tile, k - k % tile + (index % tile)[:, None]
        terms = _at(x.double(), *at).nan_to_num(0, 0, 0) * partner
        what = f"tile of {tile} x {tile} elements of {name} is transposed"
        yield failure.of_values(f"each {what}", terms.sum(1))
        change = (
            torch.nn.functional.pad(terms - failure.terms, (0, -depth % tile))
            .unflatten(1, (-1, tile))
            .sum(-1)
        )
        texts = [f"a {what}: terms {i} to {i + tile - 1}" for i in range(0, depth, tile)]
        yield from failure.best_of(texts, failure.exact[:, None] + change)


def _at(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Return elements of a matrix, or NaN for positions outside the matrix."""
    inside = (row >= 0) & (row < x.shape[0]) & (column >= 0) & (column < x.shape[1])
    return torch.where(inside, x[row.clamp(0, x.shape[0] - 1), column.clamp(0, x.shape[1] - 1)], torch.nan)
