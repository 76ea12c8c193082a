"""Whether a kernel's result of a matrix product is legal: common orders first, then the bound."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from custom_fp.testing import orders
from custom_fp.testing.bounds import Bounds, bounds, bounds_of_parts
from custom_fp.testing.orders import Candidate
from custom_fp.testing.problem import Place, Problem

_PROBE = 256
"""Elements on which each order is tried before it is computed for all."""

_NOTHING = Bounds(*[torch.empty(0)] * len(Bounds._fields))


@dataclass(frozen=True)
class Check:
    """What was found out about a result."""

    order: Candidate | None
    """The order that gives every element, if one was found."""
    places: Place
    """Batch, row and column of the elements that no legal order gives."""
    bounds: Bounds
    """The intervals of these elements."""

    @property
    def passed(self) -> bool:
        return len(self.places[0]) == 0


def check(problem: Problem) -> Check:
    """Find an order that gives the result, or the elements that are outside of their interval."""
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
