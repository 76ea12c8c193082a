"""The text of a failure."""

from __future__ import annotations

import torch
from torch import Tensor

from custom_fp.testing import orders
from custom_fp.testing.causes import explain
from custom_fp.testing.check import Check
from custom_fp.testing.failure import Failure
from custom_fp.testing.problem import Problem

_INTEGERS = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}


def failure_message(problem: Problem, check: Check, sampled: bool) -> str:
    """Return what is wrong with a result, in about ten lines."""
    low, high = (x.to(problem.dtype) for x in check.bounds.rounded(problem))
    got = problem.got[check.places]
    distance = units_outside(got, low, high)
    worst = int(distance.argmax())
    wrong, total = len(got), problem.got.numel()
    of = f"{problem.how}" if problem.parts is None else f"{problem.how} with K in {len(problem.parts)} parts"
    tried = ", ".join(str(c) for c in list(orders.candidates(problem))[:3])
    place = problem.index(*(int(index[worst]) for index in check.places))
    lines = [
        f"The matrix product is not a result of {of} in any order of summation!",
        "",
        f"Mismatched elements: {wrong} / {total} ({100 * wrong / total:.1f}%)"
        + (" of the sampled elements" if sampled else "")
        + _where(problem, check),
        f"Worst element: {got[worst].item():.9g} at index {place}, {_units(distance[worst].item(), problem.dtype)}",
        f"Expected there: {_interval(low[worst].item(), high[worst].item())}",
    ]
    cause = explain(Failure(problem, check, worst))
    if cause is None:
        lines.append("Likely cause: unknown; no single hypothesis reproduces most of the mismatched elements")
    else:
        lines.append(f"Likely cause: {cause.text}")
        lines.append(
            f"              (this reproduces {100 * cause.share:.0f}% of the mismatched elements that were examined)"
        )
    lines.append(f"Compared with: {tried}, ...; and then with the bound over all orders")
    return "\n".join(lines)


def units_outside(got: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return how many values of the dtype lie between `got` and the interval; infinity where one is NaN."""
    x, a, b = (_ordinal(t) for t in (got, low, high))
    units = torch.maximum(a - x, x - b).clamp(min=0).double()
    return torch.where(got.isnan() | low.isnan(), torch.inf, units)


def _ordinal(x: Tensor) -> Tensor:
    """Return integers in the order of the values, without gaps."""
    bits = x.contiguous().view(_INTEGERS[x.dtype]).long()
    return torch.where(bits < 0, -(bits & (2 ** (8 * x.element_size() - 1) - 1)), bits)


def _units(distance: float, dtype: torch.dtype) -> str:
    if distance == float("inf"):
        return "which is off by NaN"
    name = str(dtype).removeprefix("torch.")
    return f"off by {int(distance)} unit{'s' * (distance != 1)} in the last place of {name}"


def _interval(low: float, high: float) -> str:
    return f"{low:.9g}" if low == high or low != low else f"{low:.9g} to {high:.9g}"


def _where(problem: Problem, check: Check) -> str:
    """Return the rows and columns that contain all mismatched elements, if they are not the whole matrix."""
    parts = []
    for name, index, places in zip(("rows", "columns"), check.places[1:], problem.places[1:], strict=True):
        first, last = int(places[index.min()]), int(places[index.max()])
        if first > places[0] or last < places[-1]:
            parts.append(f"{name} {first} to {last}" if first < last else f"{name[:-1]} {first}")
    return f", all in {' and '.join(parts)}" if parts else ""
