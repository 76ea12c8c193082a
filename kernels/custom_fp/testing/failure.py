"""Select the wrong elements that are used to explain a failure, and score possible causes on these elements."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from custom_fp.testing.bounds import bounds
from custom_fp.testing.check import Check
from custom_fp.testing.problem import Problem

_WINDOW_SIDE = 48  # the most rows and columns of the window
_MOST_ELEMENTS = 512  # the maximum number of elements on which a cause is scored
_FULL = 1 << 31  # the maximum number of multiplications for which the product of the whole matrix is computed


class Cause(NamedTuple):
    """A possible cause and the share of the wrong elements that it reproduces."""

    text: str
    share: float


def cause_lines(cause: Cause | None, which: str = "") -> list[str]:
    """Return the lines of a message that name a cause. `which` qualifies the elements that the share refers to."""
    if cause is None:
        return ["Likely cause: unknown; no single hypothesis reproduces most of the mismatched elements"]
    share = f"this reproduces {100 * cause.share:.0f}% of the mismatched elements{which}"
    return [f"Likely cause: {cause.text}", f"              ({share})"]


class Failure:
    """Wrong elements in a window of rows and columns. Shapes: E elements, K terms, (M, N) the whole matrix."""

    def __init__(self, problem: Problem, check: Check, worst: int):
        self.whole = problem
        z, row, column = check.places
        self.batch = int(z[worst])
        same = (z == self.batch).nonzero()[:, 0]
        mixed = same[torch.randperm(len(same), generator=torch.Generator().manual_seed(0))]
        picked = torch.cat([torch.tensor([worst]), mixed[:_MOST_ELEMENTS]])
        rows, columns = (_first_values(index[picked], _WINDOW_SIDE) for index in (row, column))
        is_in = torch.isin(row[mixed], rows) & torch.isin(column[mixed], columns)
        chosen = mixed[is_in][:_MOST_ELEMENTS]
        self.window = problem.select(torch.tensor([self.batch]), rows, columns)
        self.row, self.column = row[chosen], column[chosen]
        self.place = z[chosen], self.row, self.column
        self.in_window = 0, torch.searchsorted(rows, self.row), torch.searchsorted(columns, self.column)
        self.bounds = check.bounds.at(chosen)
        self.got = problem.got[self.place].double()
        self.tolerance = self._tolerance()

    @cached_property
    def factors(self) -> list[Tensor]:
        """Return the factors of the result at each element, (E,) float64 each."""
        return [f.expand(self.whole.got.shape)[self.place].double() for f in self.whole.factors]

    @cached_property
    def scaling(self) -> Tensor:
        """Return the factor by which each product is multiplied, (E, K) or (E, 1) float64."""
        scale = torch.ones(len(self.row), 1, dtype=torch.float64)
        for factor in self.factors:
            scale = scale * factor[:, None]
        if self.whole.group_scales is None:
            return scale
        a_scale, b_scale = self.whole.group_scales
        of_groups = a_scale[self.batch, self.row].double() * b_scale[self.batch, self.column].double()
        return of_groups.repeat_interleave(self.whole.unit, 1)[:, : self.whole.depth] * scale

    @cached_property
    def terms(self) -> Tensor:
        """Return the exact products times all scales, (E, K) float64. NaN and infinite products become 0."""
        a, b = self.whole.a[self.batch, self.row].double(), self.whole.bt[self.batch, self.column].double()
        return (a * b * self.scaling).nan_to_num(0, 0, 0)

    @cached_property
    def exact(self) -> Tensor:
        """Return the sums of the terms, (E,) float64."""
        return self.terms.sum(1)

    @cached_property
    def matrix(self) -> Tensor | None:
        """Return the exact product of the whole matrix, (M, N) float64, or None if the matrix is too large."""
        problem = self.whole
        rows, columns = problem.got.shape[1:]
        if rows * columns * problem.depth > _FULL:
            return None
        a, b = problem.a[self.batch].double(), problem.bt[self.batch].double()
        if problem.group_scales is not None:
            a, b = (
                x * scale[self.batch].double().repeat_interleave(problem.unit, 1)[:, : problem.depth]
                for x, scale in zip((a, b), problem.group_scales, strict=True)
            )
        result = a @ b.mT
        for factor in problem.factors:
            result = result * factor[self.batch if len(factor) > 1 else 0].double()
        return result

    def _tolerance(self) -> Tensor:
        """Return how far a value may be from `got` before rounding: the error bound plus half a unit."""
        wide = bounds(self.whole, *self.place)
        error = torch.maximum(wide.high - self.exact, self.exact - wide.low).nan_to_num(0, 0, 0)
        size = torch.maximum(self.got.abs().nan_to_num(0, 0, 0), self.exact.abs())
        output = self.whole.output
        exponent = (torch.frexp(size).exponent.double() - 1).clamp(min=output.emin)
        return error + 0.51 * torch.exp2(exponent - output.mantissa_bits)

    def matches(self, values: Tensor) -> Tensor:
        """Return a boolean mask that is True where `got` may be the rounded value.

        `values` and the mask have the shape (E,) or (E, candidates).
        """
        extra = (1,) * (values.dim() - 1)
        return (values - self.got.view(-1, *extra)).abs() <= self.tolerance.view(-1, *extra)

    def of_mask(self, text: str, mask: Tensor) -> Cause:
        return Cause(text, mask.double().mean().item())

    def of_values(self, text: str, values: Tensor) -> Cause:
        """Score a cause by the values (E,) that it predicts before rounding, within the bound over all orders."""
        return self.of_mask(text, self.matches(values))

    def of_window(self, text: str, result: Tensor) -> Cause:
        """Score a cause by the result that it predicts for the whole window, (1, rows, columns), without tolerance."""
        x = result[self.in_window].double()
        return self.of_mask(text, (x == self.got) | (x.isnan() & self.got.isnan()))

    def of_ends(self, text: str, rounding: Callable[[Tensor], Tensor]) -> Cause:
        """Score another, monotone rounding by the elements that lie between the rounded bounds."""
        low, high = rounding(self.bounds.low).double(), rounding(self.bounds.high).double()
        return self.of_mask(text, (self.got >= low) & (self.got <= high))

    def best_of(self, texts: list[str], values: Tensor) -> Iterable[Cause]:
        """Score many predictions, (E, candidates), and yield the best one if it is clearly ahead of all others."""
        if not texts:
            return
        shares = self.matches(values).double().mean(0)
        best = int(shares.argmax())
        if (shares >= 0.8 * shares[best]).sum() == 1:
            yield Cause(texts[best], shares[best].item())


def _first_values(index: Tensor, count: int) -> Tensor:
    """Return the first `count` distinct values that occur, in ascending order."""
    return torch.tensor(sorted(list(dict.fromkeys(index.tolist()))[:count]))
