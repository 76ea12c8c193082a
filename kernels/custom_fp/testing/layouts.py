"""Recompute products of kernels that read or write elements in the wrong position."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from custom_fp.testing.failure import Cause, Failure

_TILES = (8, 16, 32, 64, 128, 256)


def layouts(failure: Failure) -> Iterator[Cause]:
    """Yield wrong results: a tile is transposed, in the wrong position, or added to another one."""
    yield from _operand_tiles(failure, "a")
    yield from _operand_tiles(failure, "b")
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
    yield from _whole_operands(failure)


def _whole_operands(failure: Failure) -> Iterator[Cause]:
    problem = failure.whole
    a, b = problem.a[failure.batch].double(), problem.bt[failure.batch].double().mT
    if problem.factors or problem.group_scales is not None or problem.a_exponents is not None:
        return
    at = failure.row, failure.column
    if a.shape[0] == a.shape[1]:
        yield failure.of_values("a is transposed", (a.mT @ b)[at])
    if b.shape[0] == b.shape[1]:
        yield failure.of_values("b is transposed", (a @ b.mT)[at])
    if a.shape == b.shape and a.shape[0] == a.shape[1]:
        yield failure.of_values("the operands are exchanged: the result is b @ a", (b @ a)[at])


def _operand_tiles(failure: Failure, name: str) -> Iterator[Cause]:
    """Yield square tiles of an operand that are transposed: all of them, or one along K."""
    problem = failure.whole
    x = (problem.a if name == "a" else problem.bt)[failure.batch].double()
    index = failure.row if name == "a" else failure.column
    k = torch.arange(problem.depth)
    z, row, column = failure.place
    partner = problem.bt[z, column] if name == "a" else problem.a[z, row]
    rest = partner.double() * failure.scaling
    for tile in _TILES:
        if tile > x.shape[0] or tile > problem.depth:
            break
        at = (index - index % tile)[:, None] + k % tile, k - k % tile + (index % tile)[:, None]
        terms = _at(x, *at).nan_to_num(0, 0, 0) * rest
        yield failure.of_values(
            f"each tile of {tile} x {tile} elements of {name} is transposed", terms.sum(1)
        )
        missing = -problem.depth % tile
        before, after = (
            torch.nn.functional.pad(p, (0, missing)).unflatten(1, (-1, tile)).sum(-1)
            for p in (failure.terms, terms)
        )

        what = f"a tile of {tile} x {tile} elements of {name} is transposed"
        texts = [f"{what}: terms {i} to {i + tile - 1}" for i in range(0, problem.depth, tile)]
        yield from failure.best_of(texts, failure.exact[:, None] - before + after)


def _at(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Return elements of a matrix; NaN outside of it."""
    inside = (row >= 0) & (row < x.shape[0]) & (column >= 0) & (column < x.shape[1])
    return torch.where(inside, x[row.clamp(0, x.shape[0] - 1), column.clamp(0, x.shape[1] - 1)], torch.nan)
