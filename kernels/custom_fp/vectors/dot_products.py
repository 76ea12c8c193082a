"""The dot products with which accumulators are tested, and the results, computed by accumulators/reference.py.

A row contains the codes of both vectors, in the order in which their products are summed, and the code of the result.
The result has the format of the sums, or of the total if there are chunks. The vectors are long enough for two blocks
and a part of a third one, or have a fixed number of terms if there are no blocks. Their values are values of the
factors' formats. For formats with scales, a row also contains the codes of the blocks' scales, but no scale of the
whole tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from custom_fp.accumulator import Accumulator
from custom_fp.accumulators import block_scales, reference
from custom_fp.accumulators.encodings import Operands
from custom_fp.backends import function
from custom_fp.formats.protocol import NumberFormat
from custom_fp.formats.scalar import Format
from custom_fp.reference import random_words
from custom_fp.vectors import scales

INPUTS = 0xFFFFFFFD  # the random stream of the first vector; the second vector uses the stream before it
UNBLOCKED_TERMS = 16  # the number of terms of a vector if there are no blocks
Row = dict[str, object]
Case = tuple[str, list[float], list[float]]


def result_format(how: Accumulator) -> Any:
    """Return the format of an accumulator's result."""
    return how.sum if how.chunk is None else how.total


def depth_of(how: Accumulator) -> int:
    """Return the number of terms of a vector: two blocks (or chunks) and a part of a third one.

    Without blocks and chunks, the number is `UNBLOCKED_TERMS`.
    """
    block = how.chunk or how.block
    return UNBLOCKED_TERMS if block == 1 else 2 * block + max(1, block // 2)


def rows(how: Accumulator, operands: Sequence[Any], count: int, seed: int) -> Iterator[Row]:
    """Yield the test vectors of an accumulator, one row for each dot product.

    Args:
        how: The accumulator.
        operands: The formats of both vectors.
        count: The number of random dot products.
        seed: The seed of the random dot products.
    """
    depth, elements = depth_of(how), [block_scales.elements_of(fmt) for fmt in operands]
    cases = [*_zeros(depth), *_single_terms(elements, depth), *_far_apart(how, elements, depth)]
    cases += [*_extremes(elements, depth), *_not_finite(elements, depth)]
    scale_codes: list[Tensor] = []
    if how.scales:
        blocks = -(-depth // how.scales)
        more = list(scales.cases(how, operands, depth))
        block_scales_of_cases = [([1.0] * blocks,) * 2] * len(cases) + [values for _, values in more]
        cases += [case for case, _ in more]
        random_scales = scales.random_codes(operands, count, blocks, seed)
        scale_codes = [
            torch.cat([scales.codes([each[i] for each in block_scales_of_cases], fmt), random])
            for i, (fmt, random) in enumerate(zip(operands, random_scales, strict=True))
        ]
    names = [name for name, _, _ in cases]
    codes = [
        torch.cat([_codes(torch.tensor([case[1:][i] for case in cases]), fmt), random])
        for i, (fmt, random) in enumerate(zip(elements, _random(elements, depth, count, seed), strict=True))
    ]
    values = [_values(code, fmt) for code, fmt in zip(codes, elements, strict=True)]
    if how.scales:
        vectors = scales.scaled_operands(values, scale_codes, operands, how.scales)
    else:
        vectors = Operands(values[0][:, None, :], values[1][:, :, None])
    out = torch.empty(len(codes[0]), 1, 1)
    reference.product(vectors, how, how.rule, out)
    results = _codes(out[:, 0], result_format(how))
    columns = list(zip("ab", codes, (fmt.code_bits for fmt in elements), strict=True))
    if how.scales:
        columns += zip(("a_scales", "b_scales"), scale_codes, (8, 8), strict=True)
    for i, case_name in enumerate([*names, *["random"] * count]):
        row: Row = {"case": case_name} | {name: _hexes(code[i], bits) for name, code, bits in columns}
        yield row | {"result": _hexes(results[i], result_format(how).code_bits)[0]}


# ---- cases


def _zeros(depth: int) -> Iterator[Case]:
    """Yield vectors of zeros with both signs."""
    for x, y in ((0.0, 0.0), (-0.0, 0.0), (-0.0, -0.0)):
        yield "zeros", [x] * depth, [y] * depth


def _single_terms(operands: Sequence[NumberFormat], depth: int) -> Iterator[Case]:
    """Yield vectors with a single nonzero product, at each position, and vectors of ones up to each position."""
    for k in range(depth):
        ones = [1.0] * (k + 1) + [0.0] * (depth - k - 1)
        yield "one term", [0.0] * k + [-1.0] + [0.0] * (depth - k - 1), [1.0] * depth
        yield "sums of ones", ones, [1.0] * depth


def _far_apart(how: Accumulator, operands: Sequence[NumberFormat], depth: int) -> Iterator[Case]:
    """Yield a large product among small ones, at every distance of exponents that the formats allow.

    The large product has either sign. It is in the same block as the small ones or in another block, and in some cases
    its negative cancels it.
    """
    (low_a, high_a), (low_b, high_b) = map(_exponents, operands)
    high, low = high_a + high_b, low_a + low_b
    digits = result_digits(how)
    places = sorted({0, min(how.block, depth - 1), depth - 1})
    for distance in range(min(high - low, digits + (how.width or 0) + 4) + 1):
        small = _factors(high - distance, operands)
        for place in places:
            for sign in (1.0, -1.0):
                a, b = [sign * small[0]] * depth, [small[1]] * depth
                a[place], b[place] = _factors(high, operands)
                yield "far apart", a, b
                other = next((k for k in reversed(range(depth)) if k != place), None)
                if other is not None:
                    a, b = [*a], [*b]
                    a[other], b[other] = -a[place], b[place]
                    yield "cancelled", a, b


def _extremes(operands: Sequence[NumberFormat], depth: int) -> Iterator[Case]:
    """Yield vectors of the smallest values, the largest values and subnormals, in all combinations."""
    ends = [_extreme_values(fmt) for fmt in operands]
    for x in ends[0]:
        for y in ends[1]:
            yield "ends of the range", [x] * depth, [y] * depth
            yield "ends of the range", [x, -x] * (depth // 2) + [x] * (depth % 2), [y] * depth
            yield "ends of the range", [x] + [ends[0][0]] * (depth - 1), [y] + [-ends[1][0]] * (depth - 1)


def _not_finite(operands: Sequence[NumberFormat], depth: int) -> Iterator[Case]:
    """Yield vectors that contain infinity and NaN, if the formats have them."""
    a, b = operands
    factors = [(math.inf, 1.0)] * a.has_inf + [(1.0, -math.inf)] * b.has_inf + [(math.inf, 0.0)] * a.has_inf
    factors += [(math.nan, 1.0)] * a.has_nan + [(0.0, math.nan)] * b.has_nan
    for x, y in factors:
        for place in (0, depth - 1):
            first, second = [1.0] * depth, [1.0] * depth
            first[place], second[place] = x, y
            yield "not finite", first, second
    if a.has_inf:
        yield "not finite", [math.inf] + [1.0] * (depth - 2) + [-math.inf], [1.0] * depth


def _random(operands: Sequence[NumberFormat], depth: int, count: int, seed: int) -> list[Tensor]:
    """Return random codes for both vectors.

    Rows of two kinds alternate. The first kind has arbitrary codes. The second kind has finite values, and the second
    half of the first vector has the negatives of the first half, in reverse order.
    """
    found = []
    for i, fmt in enumerate(operands):
        words = random_words(count * depth, INPUTS - i, seed, torch.device("cpu")).view(count, depth)
        codes = words % (1 << fmt.code_bits)
        finite = _values(codes, fmt).nan_to_num(1.0, 1.0, -1.0)
        half = depth // 2
        if i == 0:
            finite[:, depth - half :] = -finite[:, :half].flip(1)
        codes[1::2] = _codes(finite[1::2], fmt)
        found.append(codes)
    return found


# ---- numbers


def result_digits(how: Accumulator) -> int:
    """Return the number of mantissa bits of an accumulator's result, or 8 if its format is a table of values."""
    return getattr(result_format(how), "mantissa_bits", 8)


def _smallest(fmt: Any) -> float:
    if isinstance(fmt, Format):
        return fmt.smallest_subnormal or fmt.smallest_normal or 0.0
    return fmt.smallest


def _exponents(fmt: Any) -> tuple[int, int]:
    return math.frexp(_smallest(fmt))[1] - 1, math.frexp(fmt.max)[1] - 1


def _factors(exponent: int, operands: Sequence[Any]) -> tuple[float, float]:
    """Return two values whose product has about this exponent and, if possible, more than one significant bit."""
    (low_a, high_a), (low_b, high_b) = map(_exponents, operands)
    exponent_a = min(max(exponent - (low_b + high_b) // 2, low_a, exponent - high_b), high_a)
    exponent_b = min(max(exponent - exponent_a, low_b), high_b)
    return math.ldexp(1.0, exponent_a), min(math.ldexp(1.25, exponent_b), operands[1].max)


def _extreme_values(fmt: Any) -> list[float]:
    found = [_smallest(fmt), fmt.max]
    if isinstance(fmt, Format) and fmt.smallest_normal and fmt.smallest_subnormal:
        found += [fmt.smallest_normal, fmt.smallest_normal - fmt.smallest_subnormal]
    return found


# ---- codes


def _codes(x: Tensor, fmt: NumberFormat) -> Tensor:
    out = torch.empty(x.shape, dtype=torch.int64)
    function("encode", fmt.backends, "any")(x, fmt, out)
    return out


def _values(codes: Tensor, fmt: NumberFormat) -> Tensor:
    out = torch.empty(codes.shape, dtype=torch.float32)
    function("decode", fmt.backends, "any")(codes, fmt, out)
    return out


def _hexes(codes: Tensor, bits: int) -> list[str]:
    return [f"{code:0{-(-bits // 4)}x}" for code in codes.tolist()]
