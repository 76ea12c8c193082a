"""Dot products as the docstring of Accumulator describes them, one at a time, in exact arithmetic.

This code was written from that description alone. Only random words are those of custom_fp. Values are Python
floats, because float64 represents every product of two float32 values. Sums are Fractions, so nothing is
rounded unnoticed.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import count

from custom_fp.accumulator import Accumulator
from custom_fp.formats.scalar import Format
from custom_fp.formats.tabulated_format import Tabulated
from oracle import largest, overflowed, quantum_of


def dot(
    a: Sequence[float],
    b: Sequence[float],
    how: Accumulator,
    word: Callable[[int], int] = lambda _: 0,
    scales: tuple[Sequence[int], Sequence[int]] = ((), ()),
) -> float:
    """Return the dot product of a and b.

    `word` returns the random bits of a stream. `scales` has the exponents of the scales of each block of a
    and of b.
    """
    numbers = count()
    if how.flush:
        of = how.operands or (Format(8, 23), Format(8, 23))
        a, b = ([0.0 if abs(v) < 2.0**f.emin else v for v in x] for x, f in zip((a, b), of, strict=True))

    def product(k: int) -> float:
        exact = a[k] * b[k]
        return exact if how.product == "exact" else to(exact, how.product, how, word(2 * k))

    def rounded(x: Fraction | float) -> float:
        return to(x, how.sum, how, word(2 * next(numbers) + 1))

    if how.chunk is None:
        return segment(range(len(a)), a, b, how, product, rounded, scales)
    total = 0.0
    for start in range(0, len(a), how.chunk):
        part = segment(range(start, min(len(a), start + how.chunk)), a, b, how, product, rounded, scales)
        total = to(add(total, part), how.total, Accumulator("fp32"), 0)
    return total


def segment(terms, a, b, how, product, rounded, scales) -> float:
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
            of_terms = [[of[k // how.scales] if of else 0 for of in scales] for k in block]
            acc = rounded(aligned(acc, [(a[k], b[k]) for k in block], how, of_terms)) + 0.0  # never -0
        else:
            acc = rounded(add(acc, *map(product, block)))
    return acc


def add(*values: float) -> Fraction | float:
    """Return the exact sum. Zeros, infinities and NaN are floats, with the sign that IEEE 754 defines."""
    if not all(map(math.isfinite, values)):
        return sum(values)
    total = sum(map(Fraction, values))
    if total == 0:
        return -0.0 if len(values) == 2 and all(math.copysign(1, x) < 0 and x == 0 for x in values) else 0.0
    return total


def to(x: Fraction | float, fmt: Format | Tabulated, how: Accumulator, word: int) -> float:
    """Round x to a format with the rounding of the accumulator."""
    if isinstance(fmt, Tabulated):
        return to_table(x, fmt, how, word)
    y = to_number(x, fmt, how, word)
    if math.copysign(1.0, y) < 0 and not fmt.is_signed and y != 0:
        is_number = x not in (math.inf, -math.inf)
        stays = is_number and how.rounding in ("toward_zero", "toward_positive")
        return 0.0 if stays or how.overflow != "infinity" or not fmt.has_nan else math.nan
    if y == 0 and not fmt.has_negative_zero:
        return 0.0
    return math.copysign(0.0, y) if how.flush and abs(y) < 2.0**fmt.emin else y


def to_table(x: Fraction | float, fmt: Tabulated, how: Accumulator, word: int) -> float:
    """Round x with the list of values, and of the boundaries between them, that the format has."""
    if isinstance(x, float) and math.isnan(x):
        return math.nan if fmt.has_nan else math.inf if fmt.has_inf else fmt.max
    half = fmt.negative if math.copysign(1.0, x) < 0 else fmt.positive
    every, sign = half.magnitudes, half.sign
    largest = sign * every[-1] if len(every) > 1 else half.zero
    infinite = sign * math.inf if half.inf_code is not None else math.nan if fmt.has_nan else largest
    if x in (math.inf, -math.inf):
        stays = how.overflow == "saturate" or (how.overflow == "propagate" and half.inf_code is None)
        return largest if stays else infinite
    magnitude = abs(Fraction(x))
    at = bisect(every, magnitude) - 1
    above = every[at + 1] if at + 1 < len(every) else half.beyond
    if above is not None and magnitude >= above:
        at += 1
    elif above is not None and magnitude > every[at]:
        boundary, away = half.boundaries[at], "toward_positive" if sign > 0 else "toward_negative"
        distance = (magnitude - Fraction(every[at])) / (Fraction(above) - Fraction(every[at]))
        bits = how.rule.bits
        at += {
            "nearest_even": magnitude > boundary or (magnitude == boundary and half.ties_up[at]),
            "nearest_away": magnitude >= boundary,
            "toward_zero": False,
            "toward_positive": how.rounding == away,
            "toward_negative": how.rounding == away,
            "to_odd": fmt.is_even(half.codes[min(at, len(every) - 1)]),
        }.get(how.rounding, distance + Fraction(word >> 32 - bits, 2**bits) >= 1)
    if at < len(every):
        return sign * every[at] if at else half.zero
    towards = "toward_negative" if sign > 0 else "toward_positive"
    stays = how.overflow != "infinity" or how.rounding in ("toward_zero", towards)
    stays = stays or (how.rounding == "to_odd" and not fmt.is_even(half.codes[-1]))
    return largest if stays else infinite


def to_number(x: Fraction | float, fmt: Format, how: Accumulator, word: int) -> float:
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
    """Add in pairs. A subtree of 2**i terms is added once it is complete. Random words follow this order."""
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


def aligned(
    acc: float, factors: list[tuple[float, float]], how: Accumulator, scales: list[list[int]]
) -> Fraction | float:
    products = [x * y for x, y in factors]
    if not all(map(math.isfinite, (acc, *products))):
        return add(acc, *products)
    past = [math.copysign(math.inf, x) for x in products if how.join and abs(x) >= 2.0**128]
    if past:
        return add(*past)
    of_a, of_b = how.elements
    exponents = [
        exponent(x, of_a, i) + exponent(y, of_b, j) for (x, y), (i, j) in zip(factors, scales, strict=True)
    ]
    if how.group > 1:
        starts = range(0, len(products), how.group)
        exponents = [sum(scales[k]) for k in starts]
        products = [sum(map(Fraction, products[k : k + how.group])) for k in starts]
    of_acc = exponent(acc, how.sum)
    if how.join is None:
        lowest = Fraction(2) ** (max(of_acc, *exponents) - how.width)
        return Fraction(sum(math.trunc(Fraction(x) / lowest) for x in (acc, *products))) * lowest or 0.0
    top, total = max(exponents), Fraction(0)
    for part in range(min(how.split, len(products))):
        chosen = range(part, len(products), how.split)
        lowest = Fraction(2) ** (max(exponents[k] for k in chosen) - how.width)
        together = sum(math.trunc(Fraction(products[k]) / lowest) for k in chosen) * lowest
        total += down(together, top - how.width)
    largest = max(top, of_acc)
    kept = acc if how.split == 1 or of_acc >= largest - how.join[1] - 1 else 0.0
    return down(total, largest - how.join[0]) + down(Fraction(kept), largest - how.join[1]) or 0.0


def down(x: Fraction, unit: int) -> Fraction:
    return math.floor(x / Fraction(2) ** unit) * Fraction(2) ** unit


def exponent(x: float, fmt: Format, scale: int = 0) -> int:
    """Return the exponent by which a value is aligned: that of its code in `fmt` plus that of its scale."""
    return max(math.frexp(x)[1] - 1, fmt.emin + scale) if x else scale - 126
