"""The scales with which dot products of scaled formats are tested, and the values that codes have under these scales.

Each element must be a float32 value under each of these scales, so some large scales in e8m0 are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from custom_fp.accumulator import Accumulator
from custom_fp.accumulators.encodings import Operands
from custom_fp.formats.scaled_format import ScaledFormat
from custom_fp.reference import random_words
from custom_fp.scaled import scales

SCALES = 0xFFFFFFFB  # the scales of the first vector use this random stream, and those of the second the one before it
WIDE = 60  # in the cases with scales far apart, e8m0 scales are from 2**-WIDE to 2**WIDE
Case = tuple[str, list[float], list[float]]
Scales = tuple[list[float], list[float]]


def cases(how: Accumulator, operands: Sequence[Any], depth: int) -> Iterator[tuple[Case, Scales]]:
    """Yield dot products, each with the scales of the blocks of both vectors.

    In some cases, one block has the largest scale and a large code, and the other blocks have smaller scales, at every
    distance of exponents. Other cases have the smallest or largest scales, or a NaN scale.

    Args:
        how: The accumulator.
        operands: The formats of both vectors.
        depth: The number of terms.
    """
    count = -(-depth // how.scales)
    low, high = _exponents(operands[0])
    a, b = (fmt.element for fmt in operands)
    for distance in range(min(2 * (high - low), 24 + (how.width or 0) + 12) + 1):
        exponent_a = max(low, high - distance)
        exponent_b = 2 * high - distance - exponent_a
        scales_of_blocks = (
            [2.0**high, *[2.0**exponent_a] * (count - 1)],
            [2.0**high, *[2.0**exponent_b] * (count - 1)],
        )
        for sign in (1.0, -1.0):
            for x, y in ((a.max, b.max), (a.smallest_subnormal, b.smallest_subnormal)):
                ones = [sign * a.smallest_subnormal] * (depth - 1), [1.0] * (depth - 1)
                yield ("scales far apart", [x, *ones[0]], [y, *ones[1]]), scales_of_blocks
    ends = [_ends(fmt) for fmt in operands]
    for x in ends[0]:
        for y in ends[1]:
            for element in (a.smallest_subnormal, 1.0, 0.0):
                yield ("ends of scales", [element] * depth, [1.0] * depth), ([x] * count, [y] * count)
    for place in (0, count - 1):
        scales_of_blocks = [1.0] * count, [1.0] * count
        scales_of_blocks[place % 2][place] = math.nan
        yield ("not finite", [1.0] * depth, [1.0] * depth), scales_of_blocks


def random_codes(operands: Sequence[ScaledFormat], count: int, blocks: int, seed: int) -> list[Tensor]:
    """Return the codes of random scales for both vectors.

    Rows of three kinds alternate: arbitrary scales, scales near 1, and a single scale for the whole row.
    """
    found = []
    for i, fmt in enumerate(operands):
        words = random_words(count * blocks, SCALES - i, seed, torch.device("cpu")).view(count, blocks)
        last = int(codes([[_ends(fmt)[-1]]], fmt))
        rows = words % (last + 1) if fmt.scale.format.is_power_of_two else 1 + words % last
        near = int(codes([[1.0]], fmt)) - 8 + words % 17
        rows[1::3] = near[1::3]
        rows[2::3] = rows[2::3, :1]
        found.append(rows.to(torch.uint8))
    return found


def codes(values: Sequence[Sequence[float]], fmt: ScaledFormat) -> Tensor:
    """Return the codes of scales. Each scale must be NaN or a value of the format of the scales."""
    every = scales.values(fmt.scale.format, torch.arange(256).to(torch.uint8))
    code_of = {value: code for code, value in reversed(list(enumerate(every.tolist()))) if value == value}
    found = [[code_of.get(value, fmt.scale.format.nan_code) for value in row] for row in values]
    return torch.tensor(found, dtype=torch.uint8)


def scaled_operands(
    values: Sequence[Tensor], codes: Sequence[Tensor], operands: Sequence[ScaledFormat], size: int
) -> Operands:
    """Return the vectors of each row, times their scales, as a batch of operands for matrix products.

    Args:
        values: The values of the elements of both vectors, (rows, terms) each.
        codes: The codes of the scales of both vectors, (rows, blocks) each.
        operands: The formats of both vectors.
        size: The number of terms in a block.
    """
    scaled, exponents = [], []
    for x, block_codes, fmt in zip(values, codes, operands, strict=True):
        s = scales.values(fmt.scale.format, block_codes)
        scaled.append(x * s.repeat_interleave(size, 1)[:, : x.shape[1]])
        smallest = -127 if fmt.scale.format.magnitudes is None else fmt.scale.format.magnitudes.emin
        exponent = (torch.frexp(s).exponent - 1).clamp(min=smallest)
        exponents.append(torch.where(s.isnan(), 0, exponent).to(torch.int32))
    return Operands(
        scaled[0][:, None, :], scaled[1][:, :, None], exponents[0][:, None, :], exponents[1][:, :, None]
    )


def _exponents(fmt: Any) -> tuple[int, int]:
    magnitudes = fmt.scale.format.magnitudes
    if magnitudes is None:
        return -WIDE, WIDE
    return magnitudes.emin - magnitudes.mantissa_bits, magnitudes.emax


def _ends(fmt: Any) -> list[float]:
    scale = fmt.scale.format
    if scale.magnitudes is None:
        return [scale.smallest, 2.0 ** (127 - fmt.emax)]
    magnitudes = scale.magnitudes
    largest_subnormal = magnitudes.smallest_normal - magnitudes.smallest_subnormal
    return [scale.smallest, largest_subnormal, magnitudes.smallest_normal, scale.largest]
