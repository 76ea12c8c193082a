"""What would explain a wrong matrix product: each cause is recomputed and compared with the kernel's result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

import custom_fp
from custom_fp.accumulator import EXACT, Accumulator
from custom_fp.formats.scalar import Format
from custom_fp.testing import layouts, orders
from custom_fp.testing.failure import Cause, Failure
from custom_fp.testing.problem import equal_parts

_ENOUGH = 0.9
"""A cause that reproduces so large a share ends the search."""
_LEAST = 0.5
"""A cause that reproduces less is not reported."""


def explain(failure: Failure) -> Cause | None:
    """Return the cause that reproduces the most wrong elements, or None."""
    best = None
    for family in _FAMILIES:
        for cause in family(failure):
            if best is None or cause.share > best.share + 1e-9:
                best = cause
        if best is not None and best.share >= _ENOUGH:
            break
    return best if best is not None and best.share >= _LEAST else None


def special_values(failure: Failure) -> Iterator[Cause]:
    """Yield lost or unexpected NaN and infinity."""
    bounds, got = failure.bounds, failure.got
    special, finite = bounds.special, got.isfinite()
    if special.any():
        share = (special & finite).double().mean().item()
        replaced = failure.matches(failure.exact) & special
        if replaced.double().mean().item() >= _LEAST:
            yield Cause("NaN or infinity in the operands was replaced by 0", replaced.double().mean().item())
        else:
            yield Cause("NaN or infinity in the operands does not reach the result", share)
    missing = ~special & got.isnan()
    yield Cause(
        "the result is NaN although no operand is (memory that was not written?)",
        missing.double().mean().item(),
    )
    largest = failure.whole.output.max
    saturated = (got.abs() == largest) & ((bounds.low.abs() > largest) | (bounds.high.abs() > largest))
    yield Cause("the largest finite value was returned instead of infinity", saturated.double().mean().item())


def roundings(failure: Failure) -> Iterator[Cause]:
    """Yield other roundings of the result."""
    output = failure.whole.output

    def flushed(x: Tensor) -> Tensor:
        x = failure.round_to_output(x)
        return torch.where(x.abs() < 2.0**output.emin, 0.0, x)

    yield failure.of_ends("subnormal results were flushed to zero", flushed)
    names = {
        "toward_zero": "the result was rounded toward zero (truncated) instead of to nearest even",
        "nearest_away": "ties were rounded away from zero instead of to even",
        "toward_positive": "the result was rounded up instead of to nearest even",
        "toward_negative": "the result was rounded down instead of to nearest even",
    }
    for rounding, text in names.items():
        yield failure.of_ends(text, partial(failure.round_to_output, rounding=rounding))
    for name in ("bf16", "fp16", "tf32", "e4m3fn", "e5m2"):
        fmt = Format.parse(name)
        if fmt != output:
            text = f"the result was rounded to {name} before it was rounded to {output} (double rounding)"
            text = f"the result was rounded to {name}" if _is_part(fmt, output) else text
            yield failure.of_ends(text, partial(_rounded_twice, failure, fmt))


def _rounded_twice(failure: Failure, fmt: Format, x: Tensor) -> Tensor:
    return failure.round_to_output(custom_fp.quantize(x, fmt))


def scales(failure: Failure) -> Iterator[Cause]:
    """Yield multiples of the result, and scales that were not applied as they should be."""
    problem, exact, got = failure.whole, failure.exact, failure.got
    yield Cause("the result is 0 (not written, or masked out)", (got == 0).double().mean().item())
    yield failure.of_values("the sign of the result is wrong", -exact)
    factors = [f.expand(problem.got.shape)[failure.place].double() for f in problem.factors]
    for name, factor in zip(problem.names, factors, strict=True):
        yield failure.of_values(f"{name} was not applied", exact / factor)
        yield failure.of_values(f"{name} was applied twice", exact * factor)
        yield failure.of_values(f"the result was divided by {name} instead of multiplied", exact / factor**2)
    if problem.names == ("scale_a", "scale_b"):
        yield failure.of_values("neither scale_a nor scale_b was applied", exact / factors[0] / factors[1])
        yield from _exchanged_scales(failure, factors)
    powers = [j for j in range(-32, 33) if j]
    yield from failure.best_of(
        [f"the scale is wrong: the result is 2^{j} times the expected one" for j in powers],
        exact[:, None] * torch.tensor([2.0**j for j in powers], dtype=torch.float64),
    )
    usable = exact.isfinite() & got.isfinite()
    ratio = ((got * exact)[usable].sum() / (exact**2)[usable].sum()).item()  # by least squares
    yield failure.of_values(
        f"the scale is wrong: the result is {ratio:.4g} times the expected one", exact * ratio
    )


def terms(failure: Failure) -> Iterator[Cause]:
    """Yield terms that are missing, added twice, or under another scale."""
    p, exact, depth = failure.terms, failure.exact, failure.whole.depth
    block = failure.whole.how.block
    sums = torch.nn.functional.pad(p.cumsum(1), (1, 0))
    cuts = range(1, depth)
    yield from failure.best_of(
        [f"only the first {k} of {depth} terms were added" for k in cuts], sums[:, 1:depth]
    )
    yield from failure.best_of(
        [f"the first {k} of {depth} terms are missing" for k in cuts], exact[:, None] - sums[:, 1:depth]
    )
    sizes = {1, block, failure.whole.unit, 16, 32, 64, 128, 256}
    for size in sorted(size for size in sizes if size < depth):
        starts = torch.arange(0, depth, size)
        ends = (starts + size).clamp(max=depth)
        parts = sums[:, ends] - sums[:, starts]

        names = [f"the block of K with terms {i} to {j - 1}" for i, j in zip(starts, ends, strict=True)]
        names = [f"term {i} of K" for i in range(depth)] if size == 1 else names
        yield from failure.best_of([f"{name} is missing" for name in names], exact[:, None] - parts)
        for power in (1, -1, 2, -2, 3, -3, 4, -4) if size > 1 else (1,):
            what = f"has a scale that is wrong by 2^{power}"
            if power == 1:
                what = f"{what}, or was added twice" if failure.has_scales else "was added twice"
            values = exact[:, None] + parts * (2.0**power - 1)
            yield from failure.best_of([f"{name} {what}" for name in names], values)


def block_scales(failure: Failure) -> Iterator[Cause]:
    """Yield scales of blocks that were read from another place."""
    problem = failure.whole
    z, row, column = failure.place
    for name, exponents, index, which in (
        ("a", problem.a_exponents, row, 0),
        ("b", problem.b_exponents, column, 1),
    ):
        if exponents is not None:
            per_scale = torch.exp2(exponents[z].double())
            size = problem.how.scales
        elif problem.group_scales is not None:
            per_scale = problem.group_scales[which][z].double()
            size = problem.unit
        else:
            continue
        parts = (
            torch.nn.functional.pad(failure.terms, (0, -problem.depth % size))
            .unflatten(1, (-1, size))
            .sum(-1)
        )
        every = torch.arange(len(z))
        own = per_scale[every, index]
        for shift, text in ((1, "the previous block"), (-1, "the next block")):
            yield failure.of_values(
                f"the scales of {name} were taken from {text} along K",
                (parts * own.roll(shift, 1) / own).sum(1),
            )
        yield failure.of_values(
            f"the scale of {name}'s first block was used for all blocks of K",
            (parts * own[:, :1] / own).sum(1),
        )
        for shift in (-1, 1):
            other = per_scale[every, (index + shift).clamp(0, per_scale.shape[1] - 1)]
            what = f"{'row' if name == 'a' else 'column'} {'before' if shift < 0 else 'after'} it"
            yield failure.of_values(
                f"the scales of {name} were taken from the {what}", (parts * other / own).sum(1)
            )
        yield failure.of_values(f"the scales of {name} were not applied", (parts / own).sum(1))


def operands(failure: Failure) -> Iterator[Cause]:
    """Yield operands and products that were rounded or flushed first."""
    problem = failure.whole
    z, row, column = failure.place
    a, b = problem.a[z, row], problem.bt[z, column]
    rest = failure.scaling
    for name in dict.fromkeys([problem.output.name, "bf16", "fp16", "tf32", "e4m3fn", "e5m2"]):
        for rounding, how in (("nearest_even", ""), ("toward_zero", " toward zero")):
            x, y = (custom_fp.quantize(v, name, rounding=rounding).double() for v in (a, b))
            for text, p in (
                ("the operands were", x * y),
                ("a was", x * b.double()),
                ("b was", a.double() * y),
            ):
                values = (p * rest).nan_to_num(0, 0, 0).sum(1)
                yield failure.of_values(f"{text} rounded to {name}{how} before they were multiplied", values)
    for name in ("fp16", "bf16"):
        smallest = 2.0 ** Format.parse(name).emin
        x, y = (torch.where(v.abs() < smallest, 0.0, v).double() for v in (a, b))
        p = a.double() * b.double()
        text = f"subnormal operands (below {smallest:.3g}, of {name}) were flushed to zero"
        yield failure.of_values(text, (x * y * rest).sum(1))
        text = f"subnormal products (below {smallest:.3g}, of {name}) were flushed to zero"
        yield failure.of_values(text, (torch.where(p.abs() < smallest, 0.0, p) * rest).sum(1))
    for fmt in dict.fromkeys(problem.how.elements):
        smallest = 2.0**fmt.emin
        x, y = (torch.where(v.abs() < smallest, 0.0, v).double() for v in (a, b))
        text = f"subnormal operands (below {smallest:.3g}, of {fmt}) were flushed to zero"
        yield failure.of_values(text, (x * y * rest).sum(1))


def sums(failure: Failure) -> Iterator[Cause]:
    """Yield sums in other formats."""
    window, how = failure.window, failure.whole.how
    if how.is_stochastic or window.group_scales is not None:
        return
    output = failure.whole.output
    for name in dict.fromkeys([output.name, "bf16", "fp16"]):
        for block in dict.fromkeys([1, how.block]):
            for product in dict.fromkeys([EXACT, name] if block == 1 else [EXACT]):
                other = Accumulator(name, product=product, block=block)
                if other == how:
                    continue
                try:
                    total = window.chain(
                        0, window.depth, replace(other, chunk=how.chunk) if how.chunk else other
                    )
                except ValueError:
                    continue
                yield failure.of_result(
                    f"partial sums were rounded to {name}",
                    failure.window_result(orders.epilogues(window, total)[0]),
                )
    for count in (2, 4, 8):
        parts = orders.part_sums(window, equal_parts(count, window.depth, window.unit))
        total = torch.zeros(window.got.shape)
        for part in parts:
            total = custom_fp.quantize(total + custom_fp.quantize(part, output), output)
        yield failure.of_result(
            f"the sums of {len(parts)} parts of K were rounded to {output} before they were added",
            failure.window_result(orders.epilogues(window, total)[0]),
        )


def _exchanged_scales(failure: Failure, factors: list[Tensor]) -> Iterator[Cause]:
    problem = failure.whole
    shape = problem.got.shape
    if shape[1] != shape[2]:
        return
    z, row, column = failure.place
    swapped = [f.expand(shape)[z, column, row].double() for f in problem.factors]
    values = failure.exact / factors[0] / factors[1] * swapped[0] * swapped[1]
    yield failure.of_values("the scales of rows and of columns were exchanged", values)


def _is_part(fmt: Format, output: Format) -> bool:
    return fmt.mantissa_bits <= output.mantissa_bits and fmt.emin >= output.emin and fmt.emax <= output.emax


_FAMILIES = (special_values, roundings, scales, block_scales, terms, layouts.layouts, operands, sums)
