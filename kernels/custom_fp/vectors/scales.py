"""Scales of the blocks of dot products: which to ask, beside all of 1, and what they make of the codes under them.

Scales are those under which every element is a float32: of e8m0 none that takes the largest past it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from custom_fp.accumulator import Accumulator
from custom_fp.accumulators.encodings import Operands
from custom_fp.formats.scaled import ScaledFormat
from custom_fp.reference import random_words
from custom_fp.scaled import scales

SCALES = 0xFFFFFFFB  # the stream of random ones, and the one before it
WIDE = 60  # exponents of e8m0 on either side of 1 that far products are put at
Case = tuple[str, list[float], list[float]]
Under = tuple[list[float], list[float]]


def cases(how: Accumulator, operands: Sequence[ScaledFormat], depth: int) -> Iterator[tuple[Case, Under]]:
    """One block, or the first of a pair, with the largest scale and a large code, others with smaller ones, at every
    distance; every end of the scales; a NaN."""
    count = -(-depth // how.scales)
    low, high = _exponents(operands[0])
    a, b = (fmt.element for fmt in operands)
    for distance in range(min(2 * (high - low), 24 + how.width + 12) + 1):
        of_a = max(low, high - distance)
        of_b = 2 * high - distance - of_a
        under = [2.0**high, *[2.0**of_a] * (count - 1)], [2.0**high, *[2.0**of_b] * (count - 1)]
        for sign in (1.0, -1.0):
            for x, y in ((a.max, b.max), (a.smallest_subnormal, b.smallest_subnormal)):
                ones = [sign * a.smallest_subnormal] * (depth - 1), [1.0] * (depth - 1)
                yield ("scales far apart", [x, *ones[0]], [y, *ones[1]]), under
    ends = [_ends(fmt) for fmt in operands]
    for x in ends[0]:
        for y in ends[1]:
            for element in (a.smallest_subnormal, 1.0, 0.0):
                yield ("ends of scales", [element] * depth, [1.0] * depth), ([x] * count, [y] * count)
    for place in (0, count - 1):
        under = [1.0] * count, [1.0] * count
        under[place % 2][place] = math.nan
        yield ("not finite", [1.0] * depth, [1.0] * depth), under


def random_codes(operands: Sequence[ScaledFormat], count: int, blocks: int, seed: int) -> list[Tensor]:
    """Of `count` rows, in turn any, near 1, and the same for all of a row."""
    found = []
    for i, fmt in enumerate(operands):
        words = random_words(count * blocks, SCALES - i, seed, torch.device("cpu")).view(count, blocks)
        last = int(codes([[_ends(fmt)[-1]]], fmt))
        some = words % (last + 1) if fmt.scale.format.is_power_of_two else 1 + words % last
        near = int(codes([[1.0]], fmt)) - 8 + words % 17
        some[1::3] = near[1::3]
        some[2::3] = some[2::3, :1]
        found.append(some.to(torch.uint8))
    return found


def codes(values: Sequence[Sequence[float]], fmt: ScaledFormat) -> Tensor:
    """Of scales, each a value of theirs, or NaN."""
    every = scales.values(fmt.scale.format, torch.arange(256).to(torch.uint8))
    at = {value: code for code, value in reversed(list(enumerate(every.tolist()))) if value == value}
    found = [[at.get(value, fmt.scale.format.nan_code) for value in row] for row in values]
    return torch.tensor(found, dtype=torch.uint8)


def under(
    values: Sequence[Tensor], codes: Sequence[Tensor], operands: Sequence[ScaledFormat], size: int
) -> Operands:
    """Each row's vectors, (rows, terms), with their scales, as the definition takes them: a product a row."""
    scaled, exponents = [], []
    for x, of_blocks, fmt in zip(values, codes, operands, strict=True):
        s = scales.values(fmt.scale.format, of_blocks)
        scaled.append(x * s.repeat_interleave(size, 1)[:, : x.shape[1]])
        smallest = -127 if fmt.scale.format.magnitudes is None else fmt.scale.format.magnitudes.emin
        exponent = (torch.frexp(s).exponent - 1).clamp(min=smallest)
        exponents.append(torch.where(s.isnan(), 0, exponent).to(torch.int32))
    return Operands(
        scaled[0][:, None, :], scaled[1][:, :, None], exponents[0][:, None, :], exponents[1][:, :, None]
    )


def _exponents(fmt: ScaledFormat) -> tuple[int, int]:
    if fmt.scale.format.magnitudes is None:
        return -WIDE, WIDE
    return (
        fmt.scale.format.magnitudes.emin - fmt.scale.format.magnitudes.mantissa_bits,
        fmt.scale.format.magnitudes.emax,
    )


def _ends(fmt: ScaledFormat) -> list[float]:
    scale = fmt.scale.format
    if scale.magnitudes is None:
        return [scale.smallest, 2.0 ** (127 - fmt.emax)]
    of = scale.magnitudes
    return [scale.smallest, of.smallest_normal - of.smallest_subnormal, of.smallest_normal, scale.largest]
