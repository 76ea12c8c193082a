"""The float32 inputs with which formats without scales are tested: all corner cases of rounding, and random values.

The result of rounding changes only at the values of the format and at the boundaries between neighbors. The results for
these numbers and for the float32 values on both sides therefore determine the results for all inputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from custom_fp.formats.protocol import NumberFormat
from custom_fp.formats.scalar import Format
from custom_fp.formats.tabulated_format import Tabulated
from custom_fp.vectors.floats import INFINITY, LARGEST, NAN, SIGN, around

ALL, ENDS, NONE = "all", "those next to powers of two", "none: the format does not list its values"
SPECIAL = (0, 1, 0x007FFFFF, 0x00800000, LARGEST, INFINITY, NAN, 0x7F800001, 0x7FFFFFFF)
WIDER = 2  # the number of binades beyond each end of the format's range that random inputs cover


def inputs(fmt: NumberFormat, words: Sequence[int]) -> dict[int, str]:
    """Return the bits of each input and the name of its case, in a fixed order.

    Args:
        fmt: The format.
        words: Random 32-bit integers. A random input uses two of them.
    """
    found: dict[int, str] = {}
    for bits in SPECIAL:
        for sign in (0, SIGN):
            found.setdefault(bits | sign, "special")
    values, boundaries, past, _ = corners(fmt)
    cases = (("value", values), ("boundary", boundaries), ("number past the largest", past))
    for case, magnitudes in cases:
        for magnitude in magnitudes:
            exact, neighbors = around(magnitude)
            for bits, name in [(b, case) for b in exact] + [(b, f"next to a {case}") for b in neighbors]:
                for sign in (0, SIGN):
                    found.setdefault(bits | sign, name)
    for bits in _random(fmt, words):
        found.setdefault(bits, "random")
    return found


def corners(fmt: NumberFormat) -> tuple[list[float], list[float], list[float], str]:
    """Return the magnitudes at which the result of rounding changes, in ascending order and exact in float64.

    Returns:
        The magnitudes of the format's values, of the boundaries between neighbors, and of numbers past the largest
        value. The last item is a text that says which boundaries are included.
    """
    if isinstance(fmt, Tabulated):
        halves = (fmt.positive, fmt.negative)
        magnitudes = {v for half in halves for v in half.magnitudes}
        boundaries = {float(b) for half in halves for b in half.boundaries if math.isfinite(b)}
        past = {float(half.beyond) for half in halves if half.beyond is not None}
        return sorted(magnitudes), sorted(boundaries), sorted(past), ALL
    if isinstance(fmt, Format):
        return _float_corners(fmt)
    known = fmt.code_values()
    if known is None:
        return [], [], [], NONE
    values = sorted({abs(v) for v in known if math.isfinite(v)})
    return values, [(low + high) / 2 for low, high in pairwise(values)], [], ALL


def _float_corners(fmt: Format) -> tuple[list[float], list[float], list[float], str]:
    codes: Sequence[int] = range(fmt.max_code + 1)
    which = ALL
    if fmt.bits > 16:
        starts = range(0, fmt.max_code + 1, 1 << fmt.mantissa_bits)
        near = {start + step for start in (*starts, fmt.max_code) for step in (-2, -1, 0, 1)}
        codes, which = sorted(code for code in near if 0 <= code <= fmt.max_code), ENDS
    step = 2.0 ** (max(fmt.emax, fmt.emin) - fmt.mantissa_bits)
    past = fmt.max + step
    values = [fmt.value_of(code) for code in codes]
    following = [fmt.value_of(code + 1) if code < fmt.max_code else past for code in codes]
    boundaries = [(low + high) / 2 for low, high in zip(values, following, strict=True)]
    return values, boundaries, [past, past + step / 2, 2 * past], which


def _random(fmt: NumberFormat, words: Sequence[int]) -> Iterator[int]:
    """Yield random inputs: alternately any float32 value, and a value in the format's range or slightly beyond it."""
    finite = [v for v in corners(fmt)[0] if v > 0]
    first, last = 1, 254
    if finite:
        first = max(0, math.frexp(finite[0])[1] - 1 + 127 - WIDER)
        last = min(254, math.frexp(finite[-1])[1] - 1 + 127 + WIDER)
    for i in range(0, len(words) - 1, 2):
        bits, other = words[i], words[i + 1]
        if i % 4:
            bits = bits & ~INFINITY | (first + other % (last - first + 1)) << 23
        yield bits
