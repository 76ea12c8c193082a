"""The interval that contains every legal result of an element of a matrix product.

A legal result adds the blocks of K in any order: a block is added to a partial sum as the machine adds it, or begins a
partial sum of its own, and partial sums are added in float32. The bound is a sum over blocks of the largest error that
each addition can have. It is derived as follows, for one element with the exact products p:

- Let A+ and A- bound the partial sums from above and below: the sum of the positive (negative) sums of blocks, plus
  all errors. No order has partial sums beyond them. They are found by iteration, since errors depend on them.
- Rounding a sum errs by at most the spacing of the format at A: toward zero, downwards at A+ and upwards at A-.
  Rounding to nearest errs by at most half of it.
- A block that is aligned at 2**E loses |p| mod 2**(E - width) of each product. E is at most the exponent of A or of the
  largest product of the block, and the loss grows with E. So the loss at the largest E bounds it exactly: products
  whose digits all lie above it lose nothing. Positive products lose downwards, negative ones upwards.
- A sum of multiples of a power of two, g, is rounded without an error if the spacing at A is at most g. So integers
  that are small enough have no freedom at all.
- A block that begins a partial sum errs by the spacing at its own magnitude instead, and adding that partial sum by
  half the spacing of float32 at A.
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

_TERMS = 1 << 17  # of the elements that are bounded together, so that they stay in the cache
_NEAREST = (Rounding.NEAREST_EVEN, Rounding.NEAREST_AWAY)
_KAHAN = 6  # roundings for each term, at most
_STEPS = 12


class Bounds(NamedTuple):
    """Intervals of E elements."""

    low: Tensor
    """(E,) float64: the smallest legal value before it is rounded to the output's dtype."""
    high: Tensor
    special: Tensor
    """(E,) bool: whether a product is NaN or infinity. `low` and `high` are then the only legal result."""
    free: Tensor
    """(E,) bool: whether a legal order can overflow. Any result is then legal."""

    def rounded(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """Return the smallest and largest legal result as float64."""
        low, high = (custom_fp.quantize(x, problem.output).double() for x in (self.low, self.high))
        return low, high

    def contains(self, got: Tensor, problem: Problem) -> Tensor:
        low, high = self.rounded(problem)
        x = got.double()
        return (x >= low) & (x <= high) | self.special & low.isnan() & x.isnan() | self.free

    def at(self, index: Tensor) -> Bounds:
        """Return the intervals of some elements, by a mask or by indices."""
        return Bounds(*(x[index] for x in self))


def bounds(problem: Problem, z: Tensor, row: Tensor, column: Tensor) -> Bounds:
    """Return the interval of each of E elements."""
    step = max(1, _TERMS // max(problem.depth, problem.how.block))
    exponents = _exponents(problem)
    grids = _grid(problem.a), _grid(problem.bt)
    parts = []
    for at in range(0, len(z), step):
        place = z[at : at + step], row[at : at + step], column[at : at + step]
        parts.append(_Elements(problem, place, exponents, grids).bounds())
    return Bounds(*(torch.cat(x) for x in zip(*parts, strict=True)))


def _exponents(problem: Problem) -> tuple[Tensor, Tensor] | None:
    """Return the exponents of all factors, as the machine aligns by them: (Z, M, K) and (Z, N, K)."""
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
    """Return the exponent of the largest power of two of which all values of a row are multiples."""
    mantissa, exponent = torch.frexp(x.nan_to_num(0, 0, 0).double())
    significand = (mantissa * 2.0**24).long()
    lowest = torch.frexp((significand & -significand).double()).exponent.long() - 25 + exponent
    return torch.where(x == 0, 400, lowest).amin(-1)


class _Elements:
    """Some elements, bounded together. Shapes: E elements, G segments, B blocks, T terms."""

    def __init__(self, problem: Problem, place: Place, exponents: tuple | None, grids: tuple):
        self.problem, self.place = problem, place
        how: Any = problem.how  # its attributes have the types that its constructor accepts
        self.how, depth = how, problem.depth
        z, row, column = place
        a, b = problem.a[z, row].double(), problem.bt[z, column].double()
        if how.flush:
            a, b = (flushed(x, fmt) for x, fmt in zip((a, b), how.elements, strict=True))
        p = a * b
        self.plain = p.sum(1)  # finite products do not overflow
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
        )  # values of tables are no multiples
        block = depth if how.order is Order.EXACT else how.block
        segment = problem.unit if problem.group_scales is not None or how.chunk else depth
        self.is_split = block < segment == depth and problem.group_scales is None and how.chunk is None
        self.p = _blocked(p, segment, block)
        self.sums, self.magnitudes = self.p.sum(-1), self.p.abs().sum(-1)
        self.slack = self.magnitudes.sum(-1) * depth * 2.0**-52  # of sums in float64
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
            rounding = (largest * a_scale * b_scale).abs() * 2.0**-22  # of two products, in any order
            rounding += (1 + largest + a_scale.abs() + b_scale.abs()) * 2.0**-149  # where one is subnormal
            rounding = torch.where(largest * a_scale * b_scale == 0, 0.0, rounding)
            scaled = torch.stack([x * a_scale * b_scale for x in ends])
            ends = scaled.amin(0) - rounding, scaled.amax(0) + rounding
        low, high, over_total = self.total(*ends)
        over = self.overflows | over.any(-1) | over_total
        plain = custom_fp.quantize(self.plain, self.how.sum, overflow=self.how.overflow)
        return _with_factors(self.problem, self.place, low, high, self.special, over, plain)

    def machine_errors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return how far the machine's sum of each segment can be below and above the exact one, (E, G) each."""
        how, count = self.how, self.sums.shape[-1]
        above, below = (self.sums.clamp(min=0).sum(-1), (-self.sums).clamp(min=0).sum(-1))
        most = self.magnitudes.sum(-1)
        largest = (most + count * _spacing(torch.zeros_like(most), how.sum)) * _growth(how, count * how.block)
        largest = largest * 1.01
        errors = _rounding_errors(how, above, below, self.grid[:, None])
        guess = count * (
            sum(errors) + _above(_spacing(torch.maximum(above, below), FP32), self.grid[:, None])
        )
        top, bottom = (torch.where(x > 0, x + guess, x) for x in (above, below))
        for step in range(_STEPS):
            neg, pos = self.errors_within(top, bottom)
            is_bound = (above + pos <= top) & (below + neg <= bottom) | (
                torch.minimum(top, bottom) >= largest
            )
            if is_bound.all():
                break
            if step == _STEPS - 2:
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
        """Return the errors below and above if partial sums lie between -bottom and top, (E, G) each."""
        how = self.how
        largest = torch.maximum(top, bottom)
        grid = self.grid[:, None, None]
        neg, pos = _rounding_errors(how, top[..., None], bottom[..., None], grid)
        own = self.magnitudes * _growth(how, how.block) + self.product_error
        first_neg, first_pos = _rounding_errors(how, own, own, grid)
        if self.is_split:
            joined = _above(_spacing(largest[..., None], FP32), grid) / 2
            first_neg, first_pos = first_neg + joined, first_pos + joined
        neg, pos = torch.maximum(neg, first_neg), torch.maximum(pos, first_pos)
        cut_neg, cut_pos = self.cut_off(largest)
        inside = self.product_error
        if how.order is Order.PAIRWISE and how.block > 1:
            inside = inside + (how.block - 1) * _rounding_errors(how, own, own, grid)[0]
        if how.kahan:
            neg, pos = _KAHAN * torch.maximum(neg, pos), _KAHAN * torch.maximum(neg, pos)
        is_there = self.magnitudes > 0
        neg, pos = ((x + cut + inside) for x, cut in ((neg, cut_neg), (pos, cut_pos)))
        if how.width is None:  # adding zeros changes nothing
            neg, pos = neg * is_there, pos * is_there
        return neg.sum(-1), pos.sum(-1)

    def cut_off(self, largest: Tensor) -> tuple[Tensor | float, Tensor | float]:
        """Return what aligning takes from the products of each block and from the partial sum, (E, G, B) each."""
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
        down, up = _lost(terms, unit)
        of_acc = power_of_two(own - how.width if how.width >= _mantissa(how.sum) else unit)
        of_acc = torch.minimum(_above(of_acc, self.grid[:, None, None]), largest[..., None])
        return down + of_acc, up + of_acc

    def cut_off_joined(self, own: Tensor, of_sum: Tensor) -> tuple[Tensor, Tensor]:
        how = self.how
        bits, bits_of_acc = how.join
        down, up = _lost(self.p, own - how.width)  # parts (split) are aligned to an exponent of at most this
        down = down + (how.split if how.split > 1 else 0) * power_of_two(own - how.width)
        largest = torch.maximum(own, of_sum)
        down = down + power_of_two(largest - bits)
        acc = power_of_two((own if bits_of_acc >= _mantissa(how.sum) else largest) - bits_of_acc)
        return down + acc, up + (acc if how.split > 1 else 0.0)

    def total(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Add the segments, in any order, and return the interval of the total, (E,) each."""
        if low.shape[-1] == 1 and self.how.chunk is None:
            return low[..., 0], high[..., 0], torch.zeros_like(self.special)
        fmt, count = self.how.total, low.shape[-1]
        above, below = high.clamp(min=0).sum(-1), (-low).clamp(min=0).sum(-1)
        within = torch.maximum(above, below)
        relative = 2.0 ** -_mantissa(fmt)
        within = (within + count * _spacing(torch.zeros_like(within), fmt)) * (1 + relative) ** count
        grid = self.grid if self.problem.group_scales is None else torch.zeros_like(self.grid)
        error = count * _above(_spacing(within, fmt), grid) / 2
        error = (
            error * ((count - 1) / count)
            if fmt.is_fp32
            else error * 2 + count * _above(_spacing(within, FP32), grid)
        )
        over = within > fmt.max
        return low.sum(-1) - error, high.sum(-1) + error, over


def bounds_of_parts(problem: Problem, sums: list[Tensor], z: Tensor, row: Tensor, column: Tensor) -> Bounds:
    """Return the intervals if the float32 sum of each part of K is known and only the order of adding them is open."""
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
    """Apply the scales of the result, each product rounded to float32. plain: the results of special elements."""
    at = tuple(f.expand(problem.got.shape)[place] for f in problem.factors)
    low = custom_fp.quantize(low, "fp32", rounding="toward_positive", overflow="saturate")
    high = custom_fp.quantize(high, "fp32", rounding="toward_negative", overflow="saturate")
    low, high = (torch.where(special, plain.float(), x) for x in (low, high))
    ends = torch.stack([x for end in (low, high) for x in orders.scaled(at, end)])
    is_nan = ends.isnan().any(0)
    low, high = (torch.where(is_nan, torch.nan, x.double()) for x in (ends.amin(0), ends.amax(0)))
    return Bounds(low, high, special, free)


def _blocked(x: Tensor, segment: int, block: int, fill: float = 0) -> Tensor:
    """Cut (E, K) into (E, G, B, T), filled up at the end of each segment."""

    def cut(x: Tensor, size: int) -> Tensor:
        missing = -x.shape[-1] % size
        x = torch.nn.functional.pad(x, (0, missing), value=fill) if missing else x
        return x.unflatten(-1, (-1, size))

    return cut(cut(x, segment), block)


def _lost(terms: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
    """Return what terms (..., T) lose downwards and upwards if they are cut off below 2**unit (...)."""
    rest = terms * power_of_two(-unit)[..., None]
    rest -= rest.trunc()
    down, both = rest.clamp(min=0).sum(-1), rest.sum(-1)
    quantum = power_of_two(unit)
    return down * quantum, (down - both) * quantum


def _mantissa(fmt: Any) -> int:
    return fmt.mantissa_bits if isinstance(fmt, Format) else 0


def _growth(how: Any, count: int) -> float:
    """Return by how much roundings can make a sum of `count` terms larger."""
    half = 1 if how.rounding in _NEAREST else 0
    growth = (1 + 2.0 ** -(_mantissa(how.sum) + half) + 2.0**-22) ** min(count, 1 << 20)
    return min(growth, 2.0**200)


def _exponent(x: Tensor, fmt: Any) -> Tensor:
    """Return the exponent of a partial sum of at most x."""
    exponent = torch.frexp(x).exponent.long() - 1
    return torch.where(x == 0, ZERO, exponent.clamp(min=fmt.emin, max=1000))


def _spacing(x: Tensor, fmt: Any) -> Tensor:
    """Return the largest distance between neighboring values of the format up to the magnitude x."""
    if isinstance(fmt, Format):
        exponent = (torch.frexp(x.clamp(2.0**-300, 2.0**300)).exponent.long() - 1).clamp(min=fmt.emin)
        return power_of_two(exponent - fmt.mantissa_bits)
    values = torch.tensor(fmt.values(), dtype=torch.float64)
    values = values[values.isfinite() & (values >= 0)].unique()
    gaps = values.diff().cummax(0).values
    index = torch.searchsorted(values, x.double().contiguous(), right=True) - 1
    return gaps[index.clamp(0, len(gaps) - 1)]


def _above(spacing: Tensor, grid: Tensor) -> Tensor:
    """Return the spacing where it is wider than the grid of all terms, and 0 where sums of the terms are exact."""
    return torch.where(spacing <= grid, 0.0, spacing)


def _rounding_errors(how: Any, top: Tensor, bottom: Tensor, grid: Tensor) -> tuple[Tensor, Tensor]:
    """Return how far one rounding of a sum between -bottom and top goes down, and up."""
    largest = torch.maximum(top, bottom)
    if how.rounding == Rounding.TOWARD_ZERO and isinstance(how.sum, Format):
        neg, pos = (torch.where(x > 0, _above(_spacing(x, how.sum), grid), 0.0) for x in (top, bottom))
    else:
        spacing = _above(_spacing(largest, how.sum), grid)
        is_half = how.rounding in _NEAREST and isinstance(how.sum, Format)
        neg = pos = spacing / 2 if is_half else spacing
    if how.flush:
        lost = torch.where(grid >= how.sum.smallest_normal, 0.0, how.sum.smallest_normal)
        neg, pos = (torch.maximum(x, lost) for x in (neg, pos))
    return neg, pos
