"""The elements by which a failure is explained, and how an explanation is scored on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

import custom_fp
from custom_fp.testing.bounds import Bounds, bounds, products, scaling
from custom_fp.testing.check import Check
from custom_fp.testing.problem import Problem

_SIDE = 48
_MOST = 512
_FULL = 1 << 31


@dataclass(frozen=True)
class Cause:
    """An explanation and the share of the wrong elements that it reproduces."""

    text: str
    share: float


class Failure:
    """Wrong elements in a window of rows and columns. Shapes: E elements, K terms."""

    def __init__(self, problem: Problem, check: Check, worst: int):
        self.whole = problem
        z, row, column = check.places
        self.batch = int(z[worst])
        same = (z == self.batch).nonzero()[:, 0]
        mixed = same[torch.randperm(len(same), generator=torch.Generator().manual_seed(0))]
        picked = torch.cat([torch.tensor([worst]), mixed[:_MOST]])
        self.rows, self.columns = (_first_values(index[picked], _SIDE) for index in (row, column))
        is_in = torch.isin(row[mixed], self.rows) & torch.isin(column[mixed], self.columns)
        chosen = mixed[is_in][:_MOST]
        self.window = problem.select(torch.tensor([self.batch]), self.rows, self.columns)
        self.row, self.column = row[chosen], column[chosen]
        self.place = z[chosen], self.row, self.column
        self.in_window = (
            torch.zeros_like(self.row),
            torch.searchsorted(self.rows, self.row),
            torch.searchsorted(self.columns, self.column),
        )
        self.bounds = Bounds(*(getattr(check.bounds, n)[chosen] for n in Bounds.__dataclass_fields__))
        self.got = problem.got[self.place].double()
        self.tolerance = self._tolerance()

    @property
    def has_scales(self) -> bool:
        """Whether blocks of the operands have scales."""
        return self.whole.a_exponents is not None or self.whole.group_scales is not None

    @cached_property
    def terms(self) -> Tensor:
        """(E, K) float64: the exact products times all scales; 0 where one is NaN or infinity."""
        return products(self.whole, *self.place).nan_to_num(0, 0, 0)

    @cached_property
    def scaling(self) -> Tensor:
        """(E, K) or (E, 1) float64: what each product is multiplied by."""
        return scaling(self.whole, *self.place)

    @cached_property
    def exact(self) -> Tensor:
        """(E,) float64: the sums of the terms."""
        return self.terms.sum(1)

    @cached_property
    def matrix(self) -> Tensor | None:
        """(M, N) float64: the exact product of the whole matrix, or None if it is too large."""
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
        """Return how far a value before rounding can be from `got` and still give it: error bound and half a unit."""
        wide = bounds(self.whole, *self.place)
        exact = wide.exact.nan_to_num(0, 0, 0)
        error = torch.maximum(wide.high - exact, exact - wide.low).nan_to_num(0, 0, 0)
        size = torch.maximum(self.got.abs().nan_to_num(0, 0, 0), exact.abs())
        output = self.whole.output
        exponent = (torch.frexp(size).exponent.double() - 1).clamp(min=output.emin)
        return error + 0.51 * torch.exp2(exponent - output.mantissa_bits)

    def matches(self, values: Tensor) -> Tensor:
        """Return where a value, before rounding, gives `got`: (E,) or (E, candidates)."""
        extra = (1,) * (values.dim() - 1)
        return (values - self.got.view(-1, *extra)).abs() <= self.tolerance.view(-1, *extra)

    def of_values(self, text: str, values: Tensor) -> Cause:
        return Cause(text, self.matches(values).double().mean().item())

    def of_result(self, text: str, result: Tensor) -> Cause:
        """Score a result (E,) by equality."""
        x = result.double()
        same = (x == self.got) | (x.isnan() & self.got.isnan())
        return Cause(text, same.double().mean().item())

    def of_ends(self, text: str, rounding: Callable[[Tensor], Tensor]) -> Cause:
        """Score another rounding of the values between both bounds. It must be monotone."""
        low, high = rounding(self.bounds.low).double(), rounding(self.bounds.high).double()
        inside = (self.got >= low) & (self.got <= high)
        return Cause(text, inside.double().mean().item())

    def best_of(self, texts: list[str], values: Tensor) -> Iterable[Cause]:
        """Score many values of each element, (E, candidates). Only one that stands out counts."""
        shares = self.matches(values).double().mean(0)
        if len(shares) == 0:
            return
        best = int(shares.argmax())
        rivals = (shares >= 0.8 * shares[best]).sum()
        if rivals == 1:
            yield Cause(texts[best], shares[best].item())

    def window_result(self, result: Tensor) -> Tensor:
        """Take the wrong elements of a result of the window."""
        return result[self.in_window]

    def round_to_output(self, x: Tensor, rounding: str = "nearest_even") -> Tensor:
        return custom_fp.quantize(x, self.whole.output, rounding=rounding)


def _first_values(index: Tensor, count: int) -> Tensor:
    """Return the first `count` different values, sorted."""
    return torch.tensor(sorted(list(dict.fromkeys(index.tolist()))[:count]))
