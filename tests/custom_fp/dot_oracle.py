"""Dot products as an Accumulator's docstring describes them, one result at a time: integers and rationals, written from
the words alone. Values are Python floats (float64 holds every product of two float32), sums are Fractions, so that
nothing can round unseen. Random words alone are custom_fp's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import count

from custom_fp.accumulator import Accumulator
from custom_fp.formats.scalar import Format
from oracle import largest, overflowed, quantum_of


def dot(
    a: Sequence[float], b: Sequence[float], how: Accumulator, word: Callable[[int], int] = lambda _: 0
) -> float:
    """word: the random bits of a stream."""
    numbers = count()

    def product(k: int) -> float:
        exact = a[k] * b[k]
        return exact if how.product == "exact" else to(exact, how.product, how, word(2 * k))

    def rounded(x: Fraction | float) -> float:
        return to(x, how.sum, how, word(2 * next(numbers) + 1))

    if how.chunk is None:
        return segment(range(len(a)), a, b, how, product, rounded)
    total = 0.0
    for start in range(0, len(a), how.chunk):
        part = segment(range(start, min(len(a), start + how.chunk)), a, b, how, product, rounded)
        total = to(add(total, part), how.total, Accumulator("fp32"), 0)
    return total


def segment(terms, a, b, how, product, rounded) -> float:
    if how.order == "exact":
        return rounded(add(*map(product, terms)))
    if how.order == "pairwise" and how.block == 1:
        return tree(list(map(product, terms)), rounded) if len(terms) else 0.0
    if how.kahan:
        return compensated(map(product, terms), rounded)
    acc = 0.0
    for first in terms[:: how.block]:
        block = range(first, min(terms.stop, first + how.block))
        if how.order == "pairwise":
            acc = rounded(add(acc, tree(list(map(product, block)), rounded)))
        elif how.width is not None:
            acc = rounded(aligned(acc, [(a[k], b[k]) for k in block], how)) + 0.0  # never -0
        else:
            acc = rounded(add(acc, *map(product, block)))
    return acc


def add(*values: float) -> Fraction | float:
    """Exact; a zero or what is not finite as a float, with the sign that IEEE 754 gives it."""
    if not all(map(math.isfinite, values)):
        return sum(values)
    total = sum(map(Fraction, values))
    if total == 0:
        return -0.0 if len(values) == 2 and all(math.copysign(1, x) < 0 and x == 0 for x in values) else 0.0
    return total


def to(x: Fraction | float, fmt: Format, how: Accumulator, word: int) -> float:
    """x by the accumulator's rounding to a format."""
    if isinstance(x, float) and math.isnan(x):
        return math.nan if fmt.has_nan else math.inf if fmt.has_inf else float(largest(fmt))
    sign = math.copysign(1.0, x)
    if x in (math.inf, -math.inf):
        kept = fmt.has_inf and how.overflow != "saturate"
        return sign * (
            math.inf if kept else overflowed(fmt, "saturate" if how.overflow == "propagate" else how.overflow)
        )
    magnitude = abs(Fraction(x))
    quantum, top = quantum_of(magnitude, fmt), largest(fmt)
    exact = magnitude / quantum
    below = math.floor(exact)
    up = {
        "nearest_even": round(exact) > below,
        "nearest_away": exact - below >= Fraction(1, 2),
        "toward_zero": False,
        "toward_positive": exact > below and sign > 0,
        "toward_negative": exact > below and sign < 0,
        "to_odd": exact > below and below % 2 == 0,
    }
    bits = how.rule.bits
    steps = (exact - below) * 2**bits
    reached = {"": math.floor(steps), "fast": math.floor(steps + Fraction(1, 2)), "even": round(steps)}
    carries = reached.get(how.rule.form, round(steps + 1) - 1) + (word >> 32 - bits) >= 2**bits
    result = (below + up.get(how.rounding, carries)) * quantum
    if result <= top:
        return sign * float(result)
    towards = "toward_negative" if sign > 0 else "toward_positive"
    stays = how.overflow == "propagate" or how.rounding == towards
    stays = stays or (how.rounding == "to_odd" and top / quantum_of(top, fmt) % 2 == 1)
    return sign * (float(top) if stays else overflowed(fmt, how.overflow))


def tree(values: list[float], rounded: Callable) -> float:
    """Subtrees of a power of two terms are formed as soon as they can be, which is the order of the random words."""
    if len(values) == 1:
        return rounded(values[0])

    def of(part: list[float]) -> float:
        if len(part) == 1:
            return part[0]
        half = 1 << (len(part) - 1).bit_length() - 1
        left = of(part[:half])
        return rounded(add(left, of(part[half:])))

    return of(values)


def compensated(values: Iterator[float], rounded: Callable) -> float:
    acc = c = 0.0
    for x in values:
        y = rounded(add(x, -c))
        t = rounded(add(acc, y))
        c = rounded(add(rounded(add(t, -acc)), -y))
        c = c if math.isfinite(t) else 0.0
        acc = t
    return acc


def aligned(acc: float, factors: list[tuple[float, float]], how: Accumulator) -> Fraction | float:
    products = [x * y for x, y in factors]
    if not all(map(math.isfinite, (acc, *products))):
        return add(acc, *products)
    of_a, of_b = how.operands or (Format(8, 23), Format(8, 23))
    exponents = [exponent(x, of_a) + exponent(y, of_b) for x, y in factors]
    lowest = Fraction(2) ** (max(exponent(acc, how.sum), *exponents) - how.width)
    return Fraction(sum(math.trunc(Fraction(x) / lowest) for x in (acc, *products))) * lowest or 0.0


def exponent(x: float, fmt: Format) -> int:
    return max(math.frexp(x)[1] - 1, fmt.emin) if x else -126
