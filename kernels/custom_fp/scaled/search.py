"""The tables by which compiled code finds the nearest value of a codebook (csrc/scaled/codebook.h)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from custom_fp.formats.elements import ValueTable

MOST_CELLS = 1 << 13  # the largest number of cells


@dataclass(frozen=True)
class Search:
    """The tensors for the members of the C++ struct `CodebookTables` (csrc/scaled/codebook.h), on one device."""

    cells: tuple[Tensor, ...]  # thresholds, values, codes
    sizes: tuple[int, int, int]  # shift, first, half
    ascending: tuple[Tensor, ...]  # thresholds, values, codes

    def addresses(self, number: Callable[[int], Any]) -> list[Any]:
        """Return the arguments for the compiled functions. `number` converts the sizes to the required type."""
        first, last = ([x.data_ptr() for x in tensors] for tensors in (self.cells, self.ascending))
        return [*first, *map(number, self.sizes), *last]


@cache
def search_of(table: ValueTable, device: str) -> Search:
    """Return the search tables of a codebook on a device."""
    known = torch.tensor(table.thresholds, dtype=torch.float32)
    sorted_values = torch.tensor([table.values[code] for code in table.sorted_codes], dtype=torch.float32)
    thresholds, ascending = _filled(known, math.inf), _filled(sorted_values, math.nan)
    codes = _filled(torch.tensor(table.sorted_codes, dtype=torch.int32), 0)
    counts_Cx2, sizes = _cells(known)
    lows_C, highs_C = counts_Cx2.unbind(1)
    at_most_one_C = torch.where(highs_C > lows_C, thresholds[lows_C], math.inf)
    cells = at_most_one_C, ascending[counts_Cx2], codes[counts_Cx2]
    there = [tuple(x.to(device) for x in part) for part in (cells, (thresholds, ascending, codes))]
    return Search(there[0], sizes, there[1])


def _filled(values: Tensor, rest: float) -> Tensor:
    """Return a tensor of 256 elements: the given values, then `rest` in all other places."""
    found = values.new_full((256,), rest)
    found[: len(values)] = values
    return found


def _cells(thresholds: Tensor) -> tuple[Tensor, tuple[int, int, int]]:
    """Divide the range into as few cells as possible, such that each contains at most one threshold.

    Returns:
        The number of thresholds below the start and below the end of each cell, of shape (cells, 2), and the sizes
        (shift, first, half) of csrc/scaled/codebook.h. If more than MOST_CELLS would be needed, the shape is
        (0, 2).
    """
    magnitudes = thresholds.abs()
    smallest = _bits(magnitudes[magnitudes > 0].min())
    one = _bits(torch.ones(()))
    for shift in range(23, 0, -1):
        first = smallest >> shift
        half = (one >> shift) - first + 1
        if 2 * half > MOST_CELLS:
            break
        starts = torch.arange(first, first + half) << shift
        starts[0] = 0
        ends = (torch.arange(first, first + half) + 1 << shift) - 1
        positive = torch.stack([starts, ends], 1).to(torch.int32).view(torch.float32)
        ends_Cx2 = torch.cat([positive, -positive.flip(1)]).clamp(-1.0, 1.0)
        counts_Cx2 = torch.bucketize(ends_Cx2, thresholds)
        if (counts_Cx2[:, 1] - counts_Cx2[:, 0]).max() <= 1:
            return counts_Cx2, (shift, first, half)
    return torch.zeros(0, 2, dtype=torch.int64), (0, 0, 0)


def _bits(x: Tensor) -> int:
    return int(x.view(torch.int32))
