"""Which blocks to ask a format with scales: its elements' boundaries under several scales, the scales' own boundaries,
what is special, and some at random. A block is a list of the bits of float32."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from custom_fp.formats.protocol import NumberFormat
from custom_fp.formats.scaled import ScaledFormat
from custom_fp.vectors.floats import INFINITY, LARGEST, NAN, SIGN, around, bits_of, value_of

Case = tuple[str, list[int]]
WHOLE_TENSOR = 32  # values of a block that is the whole tensor, or a row or column of it
OCTAVES = (0, -3, 6, -40, 40, -120, 100)  # of the scales under which every boundary of an element is asked
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
)  # of the largest magnitudes that are asked
SPREAD = 24  # binades below its largest that a random block reaches


def size_of(fmt: NumberFormat) -> int:
    """Values of a block."""
    if isinstance(fmt.block, tuple):
        return math.prod(fmt.block)
    return fmt.block if isinstance(fmt.block, int) else WHOLE_TENSOR


def blocks(fmt: NumberFormat, words: Sequence[int]) -> Iterator[Case]:
    """(case, block) in a fixed order; each `size_of(fmt)` of random words of 32 bits make one."""
    size = size_of(fmt)
    yield from _special(size)
    for octave in OCTAVES:
        for part in _parts(_elements(fmt, octave), size):
            yield "boundaries of elements", part
    for largest in _largest(fmt):
        yield "boundary of a scale", _falling(largest, size)
    for first in range(0, len(words) - size + 1, size):
        yield "random", list(_random(words[first : first + size]))


def other_block(fmt: NumberFormat) -> list[int]:
    """The block beside one that is asked, where the tensor has a scale: its largest value makes that 1 if nothing
    larger is there."""
    return _falling(bits_of(fmt.target * fmt.largest_scale), size_of(fmt))


def _special(size: int) -> Iterator[Case]:
    for one in (0, SIGN, 1, 0x007FFFFF, 0x00800000, bits_of(0.7), LARGEST, SIGN | LARGEST):
        yield "all the same", [one] * size
    for one in (NAN, 0x7F800001, INFINITY, SIGN | INFINITY):
        yield "not finite", [*_falling(bits_of(1.0), size)[1:], one]
    alone = [0] * size
    alone[-1] = SIGN | bits_of(3.0)
    yield "one value, zeros", alone


def _elements(fmt: NumberFormat, octave: int) -> list[list[int]]:
    """The largest value of a block, then what else it may hold: all values and boundaries, and beside them."""
    values = sorted({v for v in fmt.code_values() or (-1.0, 0.0, 1.0) if math.isfinite(v)})
    peak, scale = max(map(abs, values)), 2.0**octave
    if peak * scale > value_of(LARGEST):
        return [[], []]
    every = [v for pair in pairwise(values) for v in (pair[0], sum(pair) / 2)] + values[-1:]
    offsets = (0.0, -values[len(values) // 2]) if fmt.has_zero_point else (0.0,)
    rest: dict[int, None] = {}
    for value in [v + offset for offset in offsets for v in every]:
        sign = SIGN if value < 0 else 0
        here, beside = around(abs(value) * scale)
        rest |= dict.fromkeys(sign | bits for bits in (*here, *beside) if bits <= bits_of(peak * scale))
    return [[bits_of(peak * scale)], list(rest)]


def _parts(elements: list[list[int]], size: int) -> Iterator[list[int]]:
    """Blocks that begin with the largest value; the last is filled up with zeros."""
    largest, rest = elements
    for first in range(0, len(rest), size - 1 or 1):
        part = [*largest, *rest[first : first + size - 1]][:size]
        yield part + [0] * (size - len(part))


def _largest(fmt: ScaledFormat) -> list[int]:
    """Largest magnitudes at which a scale changes: each boundary of its format where that has digits, else powers of
    two and what rules make of them, with what lies beside."""
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
        here, beside = around(magnitude)
        found |= dict.fromkeys([*here, *beside])
    return [bits for bits in found if bits]


def _falling(largest: int, size: int) -> list[int]:
    """From the largest value down, signs in turn: 1, -1/2, 1/3 ... of it."""
    value = value_of(largest)
    return [bits_of(value / (i + 1)) | SIGN * (i % 2) for i in range(size)]


def _random(words: Sequence[int]) -> Iterator[int]:
    """Exponents from a random largest one down to SPREAD below it."""
    top = 1 + words[0] % 254
    for word in words:
        below = (word >> 8) * 2654435761 % 2**32 % (SPREAD + 1)
        yield word & ~INFINITY | max(0, top - below) << 23
