"""Decide whether a kernel's matrix product is legal: try common orders of summation first, then the bound."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from custom_fp.testing import orders
from custom_fp.testing.bounds import Bounds, bounds, bounds_of_parts
from custom_fp.testing.orders import Candidate
from custom_fp.testing.problem import Place, Problem

_PROBE = 256
"""Number of elements on which an order is tried before it is computed for all elements."""

_NOTHING = Bounds(*[torch.empty(0)] * len(Bounds._fields))


@dataclass(frozen=True)
class Check:
    """The outcome of checking a result."""

    order: Candidate | None
    """The order that reproduces every element, if there is one."""
    places: Place
    """Batch, row and column of each element that no legal order produces."""
    bounds: Bounds
    """The intervals of these elements."""

    @property
    def passed(self) -> bool:
        return len(self.places[0]) == 0


def check(problem: Problem) -> Check:
    """Find an order that reproduces the result. If there is none, find the elements outside their intervals."""
    left = torch.ones(problem.got.shape, dtype=torch.bool)
    probe = problem.submatrix(_PROBE, torch.Generator().manual_seed(0))
    best, best_share = None, 0.5
    for candidate in orders.candidates(problem):
        for which, result in enumerate(orders.results(probe, candidate)):
            share = orders.equal(result, probe.got).double().mean().item()
            if share == 1:
                wrong = ~orders.equal(orders.results(problem, candidate)[which], problem.got)
                if not wrong.any():
                    return Check(candidate, _places(wrong), _NOTHING)
                left, best_share = left & wrong, 1.0
            elif share > best_share:
                best, best_share = (candidate, which), share
    if best is not None and best_share < 1:
        left = ~orders.equal(orders.results(problem, best[0])[best[1]], problem.got)
    places = _places(left)
    if not left.any():
        return Check(None, places, _NOTHING)
    if problem.parts and problem.group_scales is None and not problem.how.is_stochastic:
        found = bounds_of_parts(problem, orders.part_sums(problem, problem.parts), *places)
    else:
        found = bounds(problem, *places)
    outside = ~found.contains(problem.got[places], problem)
    z, row, column = (index[outside] for index in places)
    return Check(None, (z, row, column), found.at(outside))


def _places(mask: Tensor) -> Place:
    z, row, column = mask.nonzero().unbind(-1)
    return z, row, column
