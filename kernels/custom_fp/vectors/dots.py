"""Which dot products to ask an accumulator, and what its definition (accumulators/reference.py) makes of them.

A row has the codes of both vectors, in the order that they are summed in, and the code of the result in the format of
sums, of the total where there are chunks. Vectors are of two blocks and a part of one; of all terms where it has none.
Values are those that the factors' formats have; with scales, a row has the codes of those, too, and none of a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

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

INPUTS = 0xFFFFFFFD  # the stream of random inputs
SHORT = 16  # terms, where there are no blocks
Row = dict[str, object]
Case = tuple[str, list[float], list[float]]


def result_format(how: Accumulator) -> NumberFormat:
    return how.sum if how.chunk is None else how.total


def depth_of(how: Accumulator) -> int:
    """Terms of a vector: two blocks, or chunks, and a part of one."""
    block = how.chunk or how.block
    return SHORT if block == 1 else 2 * block + max(1, block // 2)


def rows(how: Accumulator, operands: Sequence[NumberFormat], count: int, seed: int) -> Iterator[Row]:
    """`count` of them at random."""
    depth, elements = depth_of(how), [block_scales.elements_of(fmt) for fmt in operands]
    cases = [*_zeros(depth), *_alone(elements, depth), *_far_apart(how, elements, depth)]
    cases += [*_ends(elements, depth), *_not_finite(elements, depth)]
    of_blocks: list[Tensor] = []
    if how.scales:
        blocks = -(-depth // how.scales)
        more = list(scales.cases(how, operands, depth))
        under = [([1.0] * blocks,) * 2] * len(cases) + [each for _, each in more]
        cases += [case for case, _ in more]
        drawn = scales.random_codes(operands, count, blocks, seed)
        of_blocks = [
            torch.cat([scales.codes([each[i] for each in under], fmt), random])
            for i, (fmt, random) in enumerate(zip(operands, drawn, strict=True))
        ]
    whats = [what for what, _, _ in cases]
    codes = [
        torch.cat([_codes([case[1 + i] for case in cases], fmt), random])
        for i, (fmt, random) in enumerate(zip(elements, _random(elements, depth, count, seed), strict=True))
    ]
    values = [_values(code, fmt) for code, fmt in zip(codes, elements, strict=True)]
    if how.scales:
        vectors = scales.under(values, of_blocks, operands, how.scales)
    else:
        vectors = Operands(values[0][:, None, :], values[1][:, :, None])
    out = torch.empty(len(codes[0]), 1, 1)
    reference.product(vectors, how, how.rule, out)
    results = _codes(out[:, 0].tolist(), result_format(how))
    columns = list(zip("ab", codes, (fmt.code_bits for fmt in elements), strict=True))
    columns += zip(("a_scales", "b_scales")[: len(of_blocks)], of_blocks, (8,) * len(of_blocks), strict=True)
    for i, what in enumerate([*whats, *["random"] * count]):
        row: Row = {"case": what} | {name: _hexes(code[i], bits) for name, code, bits in columns}
        yield row | {"result": _hexes(results[i], result_format(how).code_bits)[0]}


# ---- cases


def _zeros(depth: int) -> Iterator[Case]:
    for x, y in ((0.0, 0.0), (-0.0, 0.0), (-0.0, -0.0)):
        yield "zeros", [x] * depth, [y] * depth


def _alone(operands: Sequence[NumberFormat], depth: int) -> Iterator[Case]:
    """One product that is not zero, in every place; and ones up to it, whose number tells what was added."""
    for k in range(depth):
        ones = [1.0] * (k + 1) + [0.0] * (depth - k - 1)
        yield "one term", [0.0] * k + [-1.0] + [0.0] * (depth - k - 1), [1.0] * depth
        yield "sums of ones", ones, [1.0] * depth


def _far_apart(how: Accumulator, operands: Sequence[NumberFormat], depth: int) -> Iterator[Case]:
    """A large product and small ones, at every distance of exponents that the formats have: in one block, in the next
    ones, with either sign, and with the large one taken away again."""
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
                back = next((k for k in reversed(range(depth)) if k != place), None)
                if back is not None:
                    a, b = [*a], [*b]
                    a[back], b[back] = -a[place], b[place]
                    yield "cancelled", a, b


def _ends(operands: Sequence[NumberFormat], depth: int) -> Iterator[Case]:
    """The smallest and the largest values, subnormals, alone and by each other."""
    ends = [_ends_of(fmt) for fmt in operands]
    for x in ends[0]:
        for y in ends[1]:
            yield "ends of the range", [x] * depth, [y] * depth
            yield "ends of the range", [x, -x] * (depth // 2) + [x] * (depth % 2), [y] * depth
            yield "ends of the range", [x] + [ends[0][0]] * (depth - 1), [y] + [-ends[1][0]] * (depth - 1)


def _not_finite(operands: Sequence[NumberFormat], depth: int) -> Iterator[Case]:
    a, b = operands
    asked = [(math.inf, 1.0)] * a.has_inf + [(1.0, -math.inf)] * b.has_inf + [(math.inf, 0.0)] * a.has_inf
    asked += [(math.nan, 1.0)] * a.has_nan + [(0.0, math.nan)] * b.has_nan
    for x, y in asked:
        for place in (0, depth - 1):
            first, second = [1.0] * depth, [1.0] * depth
            first[place], second[place] = x, y
            yield "not finite", first, second
    if a.has_inf:
        yield "not finite", [math.inf] + [1.0] * (depth - 2) + [-math.inf], [1.0] * depth


def _random(operands: Sequence[NumberFormat], depth: int, count: int, seed: int) -> list[Tensor]:
    """Codes: in turn any, and of finite values that are followed by their negatives, times others, in another order."""
    found = []
    for i, fmt in enumerate(operands):
        words = random_words(count * depth, INPUTS - i, seed, torch.device("cpu")).view(count, depth)
        codes = words % (1 << fmt.code_bits)
        finite = _values(codes, fmt).nan_to_num(1.0, 1.0, -1.0)
        half = depth // 2
        if i == 0:
            finite[:, depth - half :] = -finite[:, :half].flip(1)
        codes[1::2] = _codes(finite[1::2].tolist(), fmt)
        found.append(codes)
    return found


# ---- numbers


def result_digits(how: Accumulator) -> int:
    return getattr(result_format(how), "mantissa_bits", 8)


def _smallest(fmt: NumberFormat) -> float:
    if isinstance(fmt, Format):
        return fmt.smallest_subnormal or fmt.smallest_normal
    return fmt.smallest


def _exponents(fmt: NumberFormat) -> tuple[int, int]:
    return math.frexp(_smallest(fmt))[1] - 1, math.frexp(fmt.max)[1] - 1


def _factors(exponent: int, operands: Sequence[NumberFormat]) -> tuple[float, float]:
    """Two values whose product has about that exponent, and more than one digit where they have."""
    (low_a, high_a), (low_b, high_b) = map(_exponents, operands)
    of_a = min(max(exponent - (low_b + high_b) // 2, low_a, exponent - high_b), high_a)
    of_b = min(max(exponent - of_a, low_b), high_b)
    return math.ldexp(1.0, of_a), min(math.ldexp(1.25, of_b), operands[1].max)


def _ends_of(fmt: NumberFormat) -> list[float]:
    found = [_smallest(fmt), fmt.max]
    if isinstance(fmt, Format) and fmt.smallest_normal and fmt.smallest_subnormal:
        found += [fmt.smallest_normal, fmt.smallest_normal - fmt.smallest_subnormal]
    return found


# ---- codes


def _codes(values: Sequence[Sequence[float]], fmt: NumberFormat) -> Tensor:
    x = torch.tensor(values, dtype=torch.float32).view(len(values), -1)
    out = torch.empty(x.shape, dtype=torch.int64)
    function("encode", fmt.backends, "any")(x, fmt, out)
    return out


def _values(codes: Tensor, fmt: NumberFormat) -> Tensor:
    out = torch.empty(codes.shape, dtype=torch.float32)
    function("decode", fmt.backends, "any")(codes, fmt, out)
    return out


def _hexes(codes: Tensor, bits: int) -> list[str]:
    return [f"{code:0{-(-bits // 4)}x}" for code in codes.tolist()]
