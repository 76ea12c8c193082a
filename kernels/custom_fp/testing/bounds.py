"""Compute an interval that contains every legal result of an element of a matrix product.

A legal result adds the blocks of K in any order. Each block either continues a partial sum, with the machine's own
addition, or begins a new partial sum. Partial sums are added in float32. The bound is a sum over blocks of the largest
error that each addition can have. For one element with the exact products p, it is derived as follows:

- Let A+ and A- bound the partial sums from above and below. A+ is the sum of the positive block sums plus all errors,
  and A- is the sum of the negative block sums minus all errors. No order has partial sums beyond A+ and A-. Since the
  errors depend on A+ and A-, both are found by iteration.
- Rounding a sum toward zero has an error of at most the spacing of the format at A: downwards at A+, upwards at A-.
  Rounding to nearest has an error of at most half the spacing.
- Aligning a block at 2**E cuts |p| mod 2**(E - width) off each product. E is at most the larger of the exponent of A
  and the largest exponent in the block, and the loss grows with E. The loss at the largest E is therefore an exact
  bound: a product whose digits all lie above the cut loses nothing. Positive products lose downwards, negative
  products upwards.
- If all terms are multiples of a power of two, g, then a sum is rounded without error as long as the spacing at A is at
  most g. Sums of sufficiently small integers are therefore the same in every order.
- A block that begins a partial sum has instead an error of the spacing at its own magnitude. Adding that partial sum to
  the others has an error of half the spacing of float32 at A.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

import custom_fp
from custom_fp.accumulator import EXACT, FP32, Order
from custom_fp.accumulators.reference import ZERO, digits, flushed
from custom_fp.formats.scalar import Format
from custom_fp.reference import power_of_two
from custom_fp.rounding import Rounding
from custom_fp.testing import orders
from custom_fp.testing.problem import Place, Problem

_TERMS_TOGETHER = 1 << 17  # number of terms that are processed together, chosen to fit in the cache
_NEAREST = (Rounding.NEAREST_EVEN, Rounding.NEAREST_AWAY)
_KAHAN_ROUNDINGS = 6  # the most roundings that Kahan summation performs for each term
_MOST_ITERATIONS = 12  # the most iterations when the bounds of the partial sums are computed


class Bounds(NamedTuple):
    """Intervals of E elements."""

    low: Tensor
    """(E,) float64: the smallest legal value before rounding to the output's dtype."""
    high: Tensor
    """(E,) float64: the largest legal value before rounding to the output's dtype."""
    special: Tensor
    """(E,) bool: whether a product is NaN or infinity. `low` and `high` are then the only legal result."""
    free: Tensor
    """(E,) bool: whether the sum can overflow in a legal order. Any result is then legal."""

    def rounded(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """Return the smallest and largest legal results, rounded to the output's dtype, as float64."""
        low, high = (custom_fp.quantize(x, problem.output).double() for x in (self.low, self.high))
        return low, high

    def contains(self, got: Tensor, problem: Problem) -> Tensor:
        low, high = self.rounded(problem)
        x = got.double()
        return (x >= low) & (x <= high) | self.special & low.isnan() & x.isnan() | self.free

    def at(self, index: Tensor) -> Bounds:
        """Return the intervals of the elements that a mask or a tensor of indices selects."""
        return Bounds(*(x[index] for x in self))


def bounds(problem: Problem, z: Tensor, row: Tensor, column: Tensor) -> Bounds:
    """Return the intervals of E elements, which are given by their batch index z, row and column, of shape (E,)."""
    step = max(1, _TERMS_TOGETHER // max(problem.depth, problem.how.block))
    exponents = _exponents(problem)
    grids = _grid(problem.a), _grid(problem.bt)
    parts = []
    for at in range(0, len(z), step):
        place = z[at : at + step], row[at : at + step], column[at : at + step]
        parts.append(_Elements(problem, place, exponents, grids).bounds())
    return Bounds(*(torch.cat(x) for x in zip(*parts, strict=True)))


def _exponents(problem: Problem) -> tuple[Tensor, Tensor] | None:
    """Return the exponents by which the machine aligns the factors, as (Z, M, K) and (Z, N, K), or None."""
    how = problem.how
    if how.width is None:
        return None
    found = []
    for x, fmt, scale in zip(
        (problem.a, problem.bt), how.elements, (problem.a_exponents, problem.b_exponents), strict=True
    ):
        of_scale: Any = 0
        if scale is not None:
            of_scale = scale.long().repeat_interleave(how.scales, -1)[..., : x.shape[-1]]
        found.append((of_scale if how.group > 1 else digits(x, fmt.emin, of_scale)[2]).to(torch.int16))
    return found[0], found[1]


def _grid(x: Tensor) -> Tensor:
    """Return, for each row, the exponent of the largest power of two that divides all values of the row."""
    mantissa, exponent = torch.frexp(x.nan_to_num(0, 0, 0).double())
    significand = (mantissa * 2.0**24).long()
    lowest = torch.frexp((significand & -significand).double()).exponent.long() - 25 + exponent
    return torch.where(x == 0, 400, lowest).amin(-1)


class _Elements:
    """Compute the bounds of E elements at once.

    Shapes use these sizes: E elements, G segments of K, B blocks of a segment, T terms of a block.
    """

    def __init__(self, problem: Problem, place: Place, exponents: tuple | None, grids: tuple):
        self.problem, self.place = problem, place
        how: Any = problem.how  # typed as Any, because the Accumulator has replaced the names with formats
        self.how, depth = how, problem.depth
        z, row, column = place
        a, b = problem.a[z, row].double(), problem.bt[z, column].double()
        if how.flush:
            a, b = (flushed(x, fmt) for x, fmt in zip((a, b), how.elements, strict=True))
        p = a * b
        self.plain = p.sum(1)  # cannot overflow if all products are finite
        self.special = ~self.plain.isfinite()
        if self.special.any():
            p = p.nan_to_num(0, 0, 0)
        self.overflows = (p.abs() >= 2.0**128).any(1) if how.join else torch.zeros_like(self.special)
        product_error = None
        if how.product != EXACT and how.is_stochastic:
            product_error = _spacing(p.abs(), how.product)
        elif how.product != EXACT:
            self.overflows |= (p.abs() > how.product.max).any(1) & (how.overflow != "saturate")
            p = custom_fp.quantize(p, how.product, rounding=how.rounding, overflow=how.overflow).double()
            p = flushed(p, how.product) if how.flush else p
            self.overflows |= ~p.isfinite().all(1)
            p = p.nan_to_num(0, 0, 0)
        self.grid = power_of_two(grids[0][z, row] + grids[1][z, column])
        self.grid *= all(
            isinstance(fmt, Format) for fmt in how.roundings
        )  # values of a table have no common power of two
        block = depth if how.order is Order.EXACT else how.block
        segment = problem.unit if problem.group_scales is not None or how.chunk else depth
        self.is_split = block < segment == depth and problem.group_scales is None and how.chunk is None
        self.p = _blocked(p, segment, block)
        self.sums, self.magnitudes = self.p.sum(-1), self.p.abs().sum(-1)
        self.slack = self.magnitudes.sum(-1) * depth * 2.0**-52  # bounds the rounding of our own float64 sums
        self.product_error = 0.0 if product_error is None else _blocked(product_error, segment, block).sum(-1)
        if exponents is not None:
            e = exponents[0][z, row] + exponents[1][z, column]
            self.exponents = _blocked(e, segment, block, 2 * ZERO).amax(-1)

    def bounds(self) -> Bounds:
        neg, pos, over = self.machine_errors()
        exact = self.sums.sum(-1)
        ends = exact - neg - self.slack, exact + pos + self.slack
        if self.problem.group_scales is not None:
            z, row, column = self.place
            a_scale, b_scale = (
                x[z, i].double() for x, i in zip(self.problem.group_scales, (row, column), strict=True)
            )
            largest = torch.maximum(ends[0].abs(), ends[1].abs())
            rounding = (largest * a_scale * b_scale).abs() * 2.0**-22  # of two multiplications, in any order
            rounding += (1 + largest + a_scale.abs() + b_scale.abs()) * 2.0**-149  # if a product is subnormal
            rounding = torch.where(largest * a_scale * b_scale == 0, 0.0, rounding)
            scaled = torch.stack([x * a_scale * b_scale for x in ends])
            ends = scaled.amin(0) - rounding, scaled.amax(0) + rounding
        low, high, over_total = self.total(*ends)
        over = self.overflows | over.any(-1) | over_total
        plain = custom_fp.quantize(self.plain, self.how.sum, overflow=self.how.overflow)
        return _with_factors(self.problem, self.place, low, high, self.special, over, plain)

    def machine_errors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return how far the machine's sum of each segment can be below and above the exact sum, of shape (E, G)."""
        how, count = self.how, self.sums.shape[-1]
        above, below = (self.sums.clamp(min=0).sum(-1), (-self.sums).clamp(min=0).sum(-1))
        most = self.magnitudes.sum(-1)
        largest = (most + count * _spacing(torch.zeros_like(most), how.sum)) * _growth(how, count * how.block)
        largest = largest * 1.01
        errors = _rounding_errors(how, above, below, self.grid[:, None])
        guess = count * (
            sum(errors)
            + _spacing_unless_exact(_spacing(torch.maximum(above, below), FP32), self.grid[:, None])
        )
        top, bottom = (torch.where(x > 0, x + guess, x) for x in (above, below))
        for step in range(_MOST_ITERATIONS):
            neg, pos = self.errors_within(top, bottom)
            is_bound = (above + pos <= top) & (below + neg <= bottom) | (
                torch.minimum(top, bottom) >= largest
            )
            if is_bound.all():
                break
            if step == _MOST_ITERATIONS - 2:
                top, bottom = (torch.where(is_bound, x, largest) for x in (top, bottom))
                continue
            grow = 1 + 2.0**-20 if step < 4 else 1.125
            top, bottom = (
                torch.where(is_bound, old, torch.maximum(old, torch.minimum(new * grow, largest)))
                for old, new in ((top, above + pos), (bottom, below + neg))
            )
        over = torch.maximum(top, bottom) > how.sum.max
        return neg, pos, over

    def errors_within(self, top: Tensor, bottom: Tensor) -> tuple[Tensor, Tensor]:
        """Return the errors downwards and upwards, (E, G) each, for partial sums between -bottom and top."""
        how = self.how
        largest = torch.maximum(top, bottom)
        grid = self.grid[:, None, None]
        neg, pos = _rounding_errors(how, top[..., None], bottom[..., None], grid)
        own = self.magnitudes * _growth(how, how.block) + self.product_error
        first_neg, first_pos = _rounding_errors(how, own, own, grid)
        if self.is_split:
            joined = _spacing_unless_exact(_spacing(largest[..., None], FP32), grid) / 2
            first_neg, first_pos = first_neg + joined, first_pos + joined
        neg, pos = torch.maximum(neg, first_neg), torch.maximum(pos, first_pos)
        cut_neg, cut_pos = self.cut_off(largest)
        inside = self.product_error
        if how.order is Order.PAIRWISE and how.block > 1:
            inside = inside + (how.block - 1) * _rounding_errors(how, own, own, grid)[0]
        if how.kahan:
            neg, pos = _KAHAN_ROUNDINGS * torch.maximum(neg, pos), _KAHAN_ROUNDINGS * torch.maximum(neg, pos)
        is_there = self.magnitudes > 0
        neg, pos = ((x + cut + inside) for x, cut in ((neg, cut_neg), (pos, cut_pos)))
        if how.width is None:  # adding zeros changes nothing
            neg, pos = neg * is_there, pos * is_there
        return neg.sum(-1), pos.sum(-1)

    def cut_off(self, largest: Tensor) -> tuple[Tensor | float, Tensor | float]:
        """Return how much aligning lowers and raises a block's products plus the partial sum, (E, G, B) each."""
        how = self.how
        if how.width is None:
            return 0.0, 0.0
        own, of_sum = self.exponents.long(), _exponent(largest, how.sum)[..., None]
        if how.join is not None:
            return self.cut_off_joined(own, of_sum)
        unit = torch.maximum(own, of_sum) - how.width
        terms = self.p
        if how.group > 1:
            terms = terms.unflatten(-1, (-1, how.group)).sum(-1)
        down, up = _truncation_loss(terms, unit)
        of_acc = power_of_two(own - how.width if how.width >= _mantissa(how.sum) else unit)
        of_acc = torch.minimum(_spacing_unless_exact(of_acc, self.grid[:, None, None]), largest[..., None])
        return down + of_acc, up + of_acc

    def cut_off_joined(self, own: Tensor, of_sum: Tensor) -> tuple[Tensor, Tensor]:
        how = self.how
        bits, bits_of_acc = how.join
        down, up = _truncation_loss(
            self.p, own - how.width
        )  # with how.split, parts are aligned at this exponent or below
        down = down + (how.split if how.split > 1 else 0) * power_of_two(own - how.width)
        largest = torch.maximum(own, of_sum)
        down = down + power_of_two(largest - bits)
        acc = power_of_two((own if bits_of_acc >= _mantissa(how.sum) else largest) - bits_of_acc)
        return down + acc, up + (acc if how.split > 1 else 0.0)

    def total(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the smallest and largest total of the segments in any order, (E,) each, and where it can overflow."""
        if low.shape[-1] == 1 and self.how.chunk is None:
            return low[..., 0], high[..., 0], torch.zeros_like(self.special)
        fmt, count = self.how.total, low.shape[-1]
        above, below = high.clamp(min=0).sum(-1), (-low).clamp(min=0).sum(-1)
        within = torch.maximum(above, below)
        relative = 2.0 ** -_mantissa(fmt)
        within = (within + count * _spacing(torch.zeros_like(within), fmt)) * (1 + relative) ** count
        grid = self.grid if self.problem.group_scales is None else torch.zeros_like(self.grid)
        error = count * _spacing_unless_exact(_spacing(within, fmt), grid) / 2
        error = (
            error * ((count - 1) / count)
            if fmt.is_fp32
            else error * 2 + count * _spacing_unless_exact(_spacing(within, FP32), grid)
        )
        over = within > fmt.max
        return low.sum(-1) - error, high.sum(-1) + error, over


def bounds_of_parts(problem: Problem, sums: list[Tensor], z: Tensor, row: Tensor, column: Tensor) -> Bounds:
    """Return the intervals of elements for which the float32 sums of parts are known and may be added in any order."""
    parts = torch.stack([x[z, row, column] for x in sums], -1).double()
    plain = parts.sum(-1)
    special = ~parts.isfinite().all(-1)
    parts = parts.nan_to_num(0, 0, 0)
    above, below = parts.clamp(min=0).sum(-1), (-parts).clamp(min=0).sum(-1)
    most = torch.maximum(above, below) * (1 + 2.0**-23) ** len(sums)
    error = (len(sums) - 1) * _spacing(most, FP32) / 2
    total = parts.sum(-1)
    ends = total - error, total + error
    return _with_factors(problem, (z, row, column), *ends, special, most > FP32.max, plain)


def _with_factors(
    problem: Problem, place: Place, low: Tensor, high: Tensor, special: Tensor, free: Tensor, plain: Tensor
) -> Bounds:
    """Apply the scales to the bounds, rounding each product to float32. `plain` has the results of special elements."""
    at = tuple(f.expand(problem.got.shape)[place] for f in problem.factors)
    low = custom_fp.quantize(low, "fp32", rounding="toward_positive", overflow="saturate")
    high = custom_fp.quantize(high, "fp32", rounding="toward_negative", overflow="saturate")
    low, high = (torch.where(special, plain.float(), x) for x in (low, high))
    ends = torch.stack([x for end in (low, high) for x in orders.scaled(at, end)])
    is_nan = ends.isnan().any(0)
    low, high = (torch.where(is_nan, torch.nan, x.double()) for x in (ends.amin(0), ends.amax(0)))
    return Bounds(low, high, special, free)


def _blocked(x: Tensor, segment: int, block: int, fill: float = 0) -> Tensor:
    """Cut (E, K) into (E, G, B, T) and fill up the last block of each segment with `fill`."""

    def cut(x: Tensor, size: int) -> Tensor:
        missing = -x.shape[-1] % size
        x = torch.nn.functional.pad(x, (0, missing), value=fill) if missing else x
        return x.unflatten(-1, (-1, size))

    return cut(cut(x, segment), block)


def _truncation_loss(terms: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
    """Return how much terms (..., T) lose downwards and upwards if digits below 2**unit (...) are cut off."""
    rest = terms * power_of_two(-unit)[..., None]
    rest -= rest.trunc()
    down, both = rest.clamp(min=0).sum(-1), rest.sum(-1)
    quantum = power_of_two(unit)
    return down * quantum, (down - both) * quantum


def _mantissa(fmt: Any) -> int:
    return fmt.mantissa_bits if isinstance(fmt, Format) else 0


def _growth(how: Any, count: int) -> float:
    """Return the largest factor by which roundings can increase a sum of `count` terms."""
    half = 1 if how.rounding in _NEAREST else 0
    growth = (1 + 2.0 ** -(_mantissa(how.sum) + half) + 2.0**-22) ** min(count, 1 << 20)
    return min(growth, 2.0**200)


def _exponent(x: Tensor, fmt: Any) -> Tensor:
    """Return the exponent of a partial sum with magnitude at most x."""
    exponent = torch.frexp(x).exponent.long() - 1
    return torch.where(x == 0, ZERO, exponent.clamp(min=fmt.emin, max=1000))


def _spacing(x: Tensor, fmt: Any) -> Tensor:
    """Return the largest distance between neighboring values of the format at magnitudes up to x."""
    if isinstance(fmt, Format):
        exponent = (torch.frexp(x.clamp(2.0**-300, 2.0**300)).exponent.long() - 1).clamp(min=fmt.emin)
        return power_of_two(exponent - fmt.mantissa_bits)
    values = torch.tensor(fmt.values(), dtype=torch.float64)
    values = values[values.isfinite() & (values >= 0)].unique()
    gaps = values.diff().cummax(0).values
    index = torch.searchsorted(values, x.double().contiguous(), right=True) - 1
    return gaps[index.clamp(0, len(gaps) - 1)]


def _spacing_unless_exact(spacing: Tensor, grid: Tensor) -> Tensor:
    """Return the spacing if it is wider than the grid of all terms, and 0 otherwise, since such sums are exact."""
    return torch.where(spacing <= grid, 0.0, spacing)


def _rounding_errors(how: Any, top: Tensor, bottom: Tensor, grid: Tensor) -> tuple[Tensor, Tensor]:
    """Return how far one rounding can lower and raise a sum between -bottom and top."""
    largest = torch.maximum(top, bottom)
    if how.rounding == Rounding.TOWARD_ZERO and isinstance(how.sum, Format):
        neg, pos = (
            torch.where(x > 0, _spacing_unless_exact(_spacing(x, how.sum), grid), 0.0) for x in (top, bottom)
        )
    else:
        spacing = _spacing_unless_exact(_spacing(largest, how.sum), grid)
        is_half = how.rounding in _NEAREST and isinstance(how.sum, Format)
        neg = pos = spacing / 2 if is_half else spacing
    if how.flush:
        lost = torch.where(grid >= how.sum.smallest_normal, 0.0, how.sum.smallest_normal)
        neg, pos = (torch.maximum(x, lost) for x in (neg, pos))
    return neg, pos
