"""Compute a matrix product in common orders of summation: one chain, or equal parts of K that are added in float32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

import torch
from torch import Tensor

import custom_fp
from custom_fp.accumulator import Order
from custom_fp.testing.problem import Problem, equal_parts

MOST_PARTS = 32
IN_ORDER, PAIRWISE = "in order", "pairwise"


@dataclass(frozen=True)
class Candidate:
    """An order of summation."""

    parts: tuple[int, ...]
    """The number of terms of each part of K."""
    added: str = IN_ORDER
    """How the sums of the parts are added: one after another, or pairwise."""

    def __str__(self) -> str:
        if len(self.parts) == 1:
            return "one chain"
        rest = "" if len(self.parts) == 2 else f", added {self.added}"
        return f"K in {len(self.parts)} parts of {self.parts[0]} terms{rest}"


def candidates(problem: Problem) -> Iterator[Candidate]:
    """Yield the orders to try, the most common ones first."""
    if problem.how.is_stochastic:
        return
    splits = [problem.parts] if problem.parts else []
    if problem.parts is None:
        splits.append((problem.depth,))
        count = 2
        while count <= MOST_PARTS and problem.how.order is not Order.EXACT:
            splits.append(equal_parts(count, problem.depth, problem.unit))
            count *= 2
    for parts in dict.fromkeys(splits):
        yield Candidate(parts)
        if len(parts) > 2:
            yield Candidate(parts, PAIRWISE)


def results(problem: Problem, candidate: Candidate) -> list[Tensor]:
    """Return the legal results of this order, one for each order in which the scales may be multiplied."""
    return epilogues(problem, summed(part_sums(problem, candidate.parts), candidate.added))


def part_sums(problem: Problem, parts: tuple[int, ...]) -> list[Tensor]:
    """Return the float32 sum of each part of K."""
    starts = [sum(parts[:i]) for i in range(len(parts))]
    return [_part(problem, start, start + length) for start, length in zip(starts, parts, strict=True)]


def summed(sums: list[Tensor], added: str = IN_ORDER) -> Tensor:
    """Return the float32 sum of the partial sums."""
    sums = list(sums)
    while len(sums) > 1:
        pairs = len(sums) // 2 if added == PAIRWISE else 1
        sums = [sums[2 * i] + sums[2 * i + 1] for i in range(pairs)] + sums[2 * pairs :]
    return sums[0]


def epilogues(problem: Problem, total: Tensor) -> list[Tensor]:
    """Return the float32 sum times the factors, rounded to the output's dtype, for each order of multiplication."""
    return [custom_fp.quantize(x, problem.output).to(problem.dtype) for x in scaled(problem.factors, total)]


def scaled(factors: tuple[Tensor, ...], total: Tensor) -> list[Tensor]:
    """Return the sum times the factors, each product rounded to float32, for each order of multiplication."""
    if not factors:
        return [total]
    found = []
    for order in permutations(factors):
        product = total
        for factor in order:
            product = product * factor
        found.append(product)
    if len(factors) > 1:
        together = factors[0]
        for factor in factors[1:]:
            together = together * factor
        found.append(total * together)
    return found


def equal(x: Tensor, y: Tensor) -> Tensor:
    """Compare two tensors, element by element. NaN equals NaN, and -0 equals 0."""
    return (x == y) | (x.isnan() & y.isnan())


def _part(problem: Problem, first: int, last: int) -> Tensor:
    if problem.group_scales is None:
        return problem.chain(first, last)
    a_scale, b_scale = problem.group_scales
    total = torch.zeros(problem.got.shape)
    for start in range(first, last, problem.unit):
        group = start // problem.unit
        scale = a_scale[..., group, None] * b_scale[:, None, :, group]
        total = total + problem.chain(start, min(last, start + problem.unit)) * scale
    return total
