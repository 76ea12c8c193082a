"""The blocks with which formats with scales are tested. A block is a list of the bits of float32 values.

The blocks cover the boundaries of the elements under several scales, the boundaries of the scales, special values, and
random values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from custom_fp.formats.protocol import NumberFormat
from custom_fp.vectors.floats import INFINITY, LARGEST, NAN, SIGN, around, bits_of, value_of

Case = tuple[str, list[int]]
WHOLE_TENSOR = (
    32  # the number of values in a test tensor that is one block, or whose rows or columns are blocks
)
# log2 of the scales under which all boundaries of the elements are tested
OCTAVES = (0, -3, 6, -40, 40, -120, 100)
BINADES = (
    -149,
    -140,
    -127,
    -126,
    -60,
    -9,
    -1,
    0,
    1,
    9,
    60,
    126,
    127,
)  # exponents of a block's largest magnitude
SPREAD = 24  # the number of binades below its largest magnitude over which a random block extends


def size_of(fmt: NumberFormat) -> int:
    """Return the number of values in a block."""
    if isinstance(fmt.block, tuple):
        return math.prod(fmt.block)
    return fmt.block if isinstance(fmt.block, int) else WHOLE_TENSOR


def blocks(fmt: NumberFormat, words: Sequence[int]) -> Iterator[Case]:
    """Yield the name of each case and its block, in a fixed order.

    Args:
        fmt: The format.
        words: Random 32-bit integers. A random block uses `size_of(fmt)` of them.
    """
    size = size_of(fmt)
    yield from _special(size)
    for octave in OCTAVES:
        for part in _split(_elements(fmt, octave), size):
            yield "boundaries of elements", part
    for largest in _largest_magnitudes(fmt):
        yield "boundary of a scale", _descending(largest, size)
    for first in range(0, len(words) - size + 1, size):
        yield "random", list(_random(words[first : first + size]))


def other_block(fmt: Any) -> list[int]:
    """Return the second block of each tensor, for formats with a scale of the whole tensor.

    The largest value of this block makes the scale of the tensor 1, unless the first block has a larger value.
    """
    return _descending(bits_of(fmt.target * fmt.largest_scale), size_of(fmt))


def _special(size: int) -> Iterator[Case]:
    for bits in (0, SIGN, 1, 0x007FFFFF, 0x00800000, bits_of(0.7), LARGEST, SIGN | LARGEST):
        yield "all the same", [bits] * size
    for bits in (NAN, 0x7F800001, INFINITY, SIGN | INFINITY):
        yield "not finite", [*_descending(bits_of(1.0), size)[1:], bits]
    zeros_but_last = [0] * size
    zeros_but_last[-1] = SIGN | bits_of(3.0)
    yield "one value, zeros", zeros_but_last


def _elements(fmt: NumberFormat, octave: int) -> list[list[int]]:
    """Return the largest value of a block, and the other values to test: all elements, boundaries and neighbors."""
    values = sorted({v for v in fmt.code_values() or (-1.0, 0.0, 1.0) if math.isfinite(v)})
    peak, scale = max(map(abs, values)), 2.0**octave
    if peak * scale > value_of(LARGEST):
        return [[], []]
    every = [v for pair in pairwise(values) for v in (pair[0], sum(pair) / 2)] + values[-1:]
    offsets = (0.0, -values[len(values) // 2]) if fmt.has_zero_point else (0.0,)
    rest: dict[int, None] = {}
    for value in [v + offset for offset in offsets for v in every]:
        sign = SIGN if value < 0 else 0
        exact, neighbors = around(abs(value) * scale)
        rest |= dict.fromkeys(sign | bits for bits in (*exact, *neighbors) if bits <= bits_of(peak * scale))
    return [[bits_of(peak * scale)], list(rest)]


def _split(elements: list[list[int]], size: int) -> Iterator[list[int]]:
    """Yield blocks that begin with the largest value. The last block is padded with zeros."""
    largest, rest = elements
    for first in range(0, len(rest), size - 1 or 1):
        part = [*largest, *rest[first : first + size - 1]][:size]
        yield part + [0] * (size - len(part))


def _largest_magnitudes(fmt: Any) -> list[int]:
    """Return the magnitudes of a block's largest value at which the scale changes, and their neighbors.

    If the format of the scales has a mantissa, these are all boundaries between scales. Otherwise, they are powers of
    two and the values at which the scaling rules change.
    """
    target = 1.0 if fmt.has_zero_point else fmt.target
    magnitudes = fmt.scale.format.magnitudes
    found: dict[int, None] = {}
    if magnitudes is not None:
        scales = [magnitudes.value_of(code) for code in range(magnitudes.max_code + 1)]
        wanted = [target * (low + high) / 2 for low, high in pairwise(scales)]
    else:
        parts = (1.0, 1.25, 1.5, 1.75, target / 2.0 ** math.floor(math.log2(target)))
        wanted = [part * 2.0**binade for binade in BINADES for part in parts]
    for magnitude in wanted:
        exact, neighbors = around(magnitude)
        found |= dict.fromkeys([*exact, *neighbors])
    return [bits for bits in found if bits]


def _descending(largest: int, size: int) -> list[int]:
    """Return the given largest value, multiplied by 1, -1/2, 1/3, -1/4 and so on."""
    value = value_of(largest)
    return [bits_of(value / (i + 1)) | SIGN * (i % 2) for i in range(size)]


def _random(words: Sequence[int]) -> Iterator[int]:
    """Yield random values whose exponents lie between a random largest exponent and SPREAD below that."""
    top = 1 + words[0] % 254
    for word in words:
        below = (word >> 8) * 2654435761 % 2**32 % (SPREAD + 1)
        yield word & ~INFINITY | max(0, top - below) << 23
