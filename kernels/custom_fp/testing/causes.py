"""Explain why a matrix product is wrong: recompute it for each possible cause and compare with the kernel's result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

import custom_fp
from custom_fp.accumulator import EXACT, Accumulator
from custom_fp.formats.scalar import Format
from custom_fp.testing import layouts, orders
from custom_fp.testing.check import Check
from custom_fp.testing.failure import Cause, Failure, cause_lines
from custom_fp.testing.problem import Problem, equal_parts

_INTEGERS = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}
_ENOUGH_SHARE = 0.9
"""The search ends at a cause that reproduces at least this share of the wrong elements."""
_LEAST_SHARE = 0.5
"""A cause is reported only if it reproduces at least this share of the wrong elements."""


def explain(failure: Failure) -> Cause | None:
    """Return the cause that reproduces the most wrong elements, or None if none reproduces enough."""
    best = None
    for family in _FAMILIES:
        for cause in family(failure):
            if best is None or cause.share > best.share + 1e-9:
                best = cause
        if best is not None and best.share >= _ENOUGH_SHARE:
            break
    return best if best is not None and best.share >= _LEAST_SHARE else None


def special_values(failure: Failure) -> Iterator[Cause]:
    """Yield possible causes of NaN and infinity that are lost or appear unexpectedly."""
    low, high, special, _ = failure.bounds
    got, largest = failure.got, failure.whole.output.max
    replaced = special & failure.matches(failure.exact)
    yield failure.of_mask("NaN or infinity in the operands was replaced by 0", replaced)
    yield failure.of_mask(
        "NaN or infinity in the operands does not reach the result", special & got.isfinite()
    )
    text = "the result is NaN although no operand is NaN (was the memory not written?)"
    yield failure.of_mask(text, ~special & got.isnan())
    saturated = (got.abs() == largest) & ((low.abs() > largest) | (high.abs() > largest))
    yield failure.of_mask("the largest finite value was returned instead of infinity", saturated)


def roundings(failure: Failure) -> Iterator[Cause]:
    """Yield other ways to round the result."""
    output = failure.whole.output

    def round_to_output(x: Tensor, rounding: str = "nearest_even") -> Tensor:
        return custom_fp.quantize(x, output, rounding=rounding)

    def rounded_twice(x: Tensor, fmt: Format) -> Tensor:
        return round_to_output(custom_fp.quantize(x, fmt))

    def flushed(x: Tensor) -> Tensor:
        x = round_to_output(x)
        return torch.where(x.abs() < 2.0**output.emin, 0.0, x)

    yield failure.of_ends("subnormal results were flushed to zero", flushed)
    for rounding, text in {
        "toward_zero": "the result was rounded toward zero (truncated)",
        "nearest_away": "ties were rounded away from zero",
        "toward_positive": "the result was rounded up",
        "toward_negative": "the result was rounded down",
    }.items():
        yield failure.of_ends(
            f"{text} instead of to nearest even", partial(round_to_output, rounding=rounding)
        )
    for name in ("bf16", "fp16", "tf32", "e4m3fn", "e5m2"):
        fmt = Format.parse(name)
        if fmt != output:
            text = f"the result was rounded to {name}"
            if not _is_subformat(fmt, output):
                text = f"{text} before it was rounded to {output} (double rounding)"
            yield failure.of_ends(text, partial(rounded_twice, fmt=fmt))


def scales(failure: Failure) -> Iterator[Cause]:
    """Yield causes that multiply the result by a factor, such as scales that were applied twice or not at all."""
    problem, exact, got = failure.whole, failure.exact, failure.got
    yield failure.of_mask("the result is 0 (not written, or masked out)", got == 0)
    yield failure.of_values("the sign of the result is wrong", -exact)
    for name, factor in zip(problem.names, failure.factors, strict=True):
        yield failure.of_values(f"{name} was not applied", exact / factor)
        yield failure.of_values(f"{name} was applied twice", exact * factor)
        yield failure.of_values(f"the result was divided by {name} instead of multiplied", exact / factor**2)
    if problem.names == ("scale_a", "scale_b"):
        without = exact / failure.factors[0] / failure.factors[1]
        yield failure.of_values("neither scale_a nor scale_b was applied", without)
        if problem.got.shape[1] == problem.got.shape[2]:
            a, b = (f.expand(problem.got.shape)[failure.batch].mT for f in problem.factors)
            at = failure.row, failure.column
            swapped = without * a[at].double() * b[at].double()
            yield failure.of_values("the scales of rows and of columns were exchanged", swapped)
    powers = [j for j in range(-32, 33) if j]
    texts = [f"the scale is wrong: the result is 2^{j} times the expected one" for j in powers]
    yield from failure.best_of(texts, exact[:, None] * torch.tensor([2.0**j for j in powers]).double())
    usable = exact.isfinite() & got.isfinite()
    ratio = ((got * exact)[usable].sum() / (exact**2)[usable].sum()).item()  # by least squares
    text = f"the scale is wrong: the result is {ratio:.4g} times the expected one"
    yield failure.of_values(text, exact * ratio)


def terms(failure: Failure) -> Iterator[Cause]:
    """Yield terms that are missing, were added twice, or were multiplied by a wrong scale."""
    problem, exact, depth = failure.whole, failure.exact[:, None], failure.whole.depth
    has_scales = problem.a_exponents is not None or problem.group_scales is not None
    sums = torch.nn.functional.pad(failure.terms.cumsum(1), (1, 0))
    first, cuts = sums[:, 1:depth], range(1, depth)
    yield from failure.best_of([f"only the first {k} of {depth} terms were added" for k in cuts], first)
    yield from failure.best_of([f"the first {k} of {depth} terms are missing" for k in cuts], exact - first)
    sizes = {1, problem.how.block, problem.unit, 16, 32, 64, 128, 256}
    for size in sorted(size for size in sizes if size < depth):
        starts = torch.arange(0, depth, size)
        ends = (starts + size).clamp(max=depth)
        parts = sums[:, ends] - sums[:, starts]
        names = [f"the block of K with terms {i} to {j - 1}" for i, j in zip(starts, ends, strict=True)]
        names = [f"term {i} of K" for i in range(depth)] if size == 1 else names
        yield from failure.best_of([f"{name} is missing" for name in names], exact - parts)
        for power in (1, -1, 2, -2, 3, -3, 4, -4) if size > 1 else (1,):
            what = f"has a scale that is wrong by 2^{power}"
            if power == 1:
                what = f"{what}, or was added twice" if has_scales else "was added twice"
            yield from failure.best_of([f"{name} {what}" for name in names], exact + parts * (2.0**power - 1))


def block_scales(failure: Failure) -> Iterator[Cause]:
    """Yield block scales that were read from a wrong position."""
    problem = failure.whole
    if problem.group_scales is not None:
        size, (of_a, of_b) = problem.unit, problem.group_scales
    elif problem.a_exponents is not None and problem.b_exponents is not None:
        size, of_a, of_b = (
            problem.how.scales,
            problem.a_exponents.double().exp2(),
            problem.b_exponents.double().exp2(),
        )
    else:
        return
    parts = (
        torch.nn.functional.pad(failure.terms, (0, -problem.depth % size)).unflatten(1, (-1, size)).sum(-1)
    )
    for name, scale, line, index in (("a", of_a, "row", failure.row), ("b", of_b, "column", failure.column)):
        scale = scale[failure.batch].double()
        own = scale[index]
        before, after = (scale[(index + step).clamp(0, len(scale) - 1)] for step in (-1, 1))
        for text, other in (
            (f"the scales of {name} were taken from the previous block along K", own.roll(1, 1)),
            (f"the scales of {name} were taken from the next block along K", own.roll(-1, 1)),
            (f"the scale of {name}'s first block was used for all blocks of K", own[:, :1]),
            (f"the scales of {name} were taken from the {line} before it", before),
            (f"the scales of {name} were taken from the {line} after it", after),
            (f"the scales of {name} were not applied", torch.ones_like(own)),
        ):
            yield failure.of_values(text, (parts * other / own).sum(1))


def operands(failure: Failure) -> Iterator[Cause]:
    """Yield operands that were rounded, or flushed to zero, before they were multiplied."""
    problem = failure.whole
    a, b = problem.a[failure.batch, failure.row], problem.bt[failure.batch, failure.column]

    def flushed(x: Tensor, smallest: float) -> Tensor:
        return torch.where(x.abs() < smallest, 0.0, x)

    def product(text: str, change: Callable[[Tensor], Tensor]) -> Cause:
        terms = change(a).double() * change(b).double() * failure.scaling
        return failure.of_values(text, terms.nan_to_num(0, 0, 0).sum(1))

    for name in dict.fromkeys([problem.output.name, "bf16", "fp16", "tf32", "e4m3fn", "e5m2"]):
        for rounding, how in (("nearest_even", ""), ("toward_zero", " toward zero")):
            text = f"the operands were rounded to {name}{how} before they were multiplied"
            yield product(text, partial(custom_fp.quantize, fmt=name, rounding=rounding))
    for fmt in dict.fromkeys([*map(Format.parse, ("fp16", "bf16")), *problem.how.elements]):
        smallest = 2.0**fmt.emin
        text = f"subnormal operands (below {smallest:.3g}, of {fmt}) were flushed to zero"
        yield product(text, partial(flushed, smallest=smallest))


def sums(failure: Failure) -> Iterator[Cause]:
    """Yield sums that were computed in other formats."""
    window, how, output = failure.window, failure.whole.how, failure.whole.output
    if how.is_stochastic or window.group_scales is not None:
        return
    for name in dict.fromkeys([output.name, "bf16", "fp16"]):
        for block, product in dict.fromkeys([(1, EXACT), (1, name), (how.block, EXACT)]):
            other = Accumulator(name, product=product, block=block, chunk=how.chunk)
            if other != how:
                result = orders.epilogues(window, window.chain(0, window.depth, other))[0]
                yield failure.of_window(f"partial sums were rounded to {name}", result)
    for count in (2, 4, 8):
        parts = orders.part_sums(window, equal_parts(count, window.depth, window.unit))
        total = torch.zeros(window.got.shape)
        for part in parts:
            total = custom_fp.quantize(total + custom_fp.quantize(part, output), output)
        text = f"the sums of {len(parts)} parts of K were rounded to {output} before they were added"
        yield failure.of_window(text, orders.epilogues(window, total)[0])


def _is_subformat(fmt: Format, output: Format) -> bool:
    return fmt.mantissa_bits <= output.mantissa_bits and fmt.emin >= output.emin and fmt.emax <= output.emax


_FAMILIES = (special_values, roundings, scales, block_scales, terms, layouts.layouts, operands, sums)


# ---- the message


def failure_message(problem: Problem, check: Check, sampled: bool) -> str:
    """Return a message of about ten lines that says what is wrong with a result."""
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
        + _location(problem, check),
        f"Worst element: {got[worst].item():.9g} at index {place}, {_units(distance[worst].item(), problem.dtype)}",
        f"Expected there: {_interval(low[worst].item(), high[worst].item())}",
    ]
    lines += cause_lines(explain(Failure(problem, check, worst)), " that were examined")
    lines.append(f"Compared with: {tried}, ...; and then with the bound over all orders")
    return "\n".join(lines)


def units_outside(got: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return how many values of the dtype lie between `got` and its interval. If either is NaN, return infinity."""
    x, a, b = (_ordinal(t) for t in (got, low, high))
    units = torch.maximum(a - x, x - b).clamp(min=0).double()
    return torch.where(got.isnan() | low.isnan(), torch.inf, units)


def _ordinal(x: Tensor) -> Tensor:
    """Return integers that have the same order as the values, so that neighboring values differ by 1."""
    bits = x.contiguous().view(_INTEGERS[x.dtype]).long()
    return torch.where(bits < 0, -(bits & (2 ** (8 * x.element_size() - 1) - 1)), bits)


def _units(distance: float, dtype: torch.dtype) -> str:
    if distance == float("inf"):
        return "which is off by NaN"
    name = str(dtype).removeprefix("torch.")
    return f"off by {int(distance)} unit{'s' * (distance != 1)} in the last place of {name}"


def _interval(low: float, high: float) -> str:
    return f"{low:.9g}" if low == high or low != low else f"{low:.9g} to {high:.9g}"


def _location(problem: Problem, check: Check) -> str:
    """Return text that names the rows and columns of the mismatches, or "" if they span the whole matrix."""
    parts = []
    for name, index, places in zip(("rows", "columns"), check.places[1:], problem.places[1:], strict=True):
        first, last = int(places[index.min()]), int(places[index.max()])
        if first > places[0] or last < places[-1]:
            parts.append(f"{name} {first} to {last}" if first < last else f"{name[:-1]} {first}")
    return f", all in {' and '.join(parts)}" if parts else ""
