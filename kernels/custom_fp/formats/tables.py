"""The tables of the codebooks that have names: values in the order of their codes. This module does not import torch.

`dynamic_tree`, `linear`, `static_tree` and `mantissa` have 8 bits and are from Dettmers, "8-Bit Approximations for
Parallelism in Deep Learning" (ICLR 2016, arXiv:1511.04561), section 2. `dynamic_tree` is the author's own table. His
kernels (clusterNet, kCompression_8bit) have 126 positive entries, a code for zero and a code for the maximum. They
round to the maximum from .995703 on, which is the middle between 1 and the next entry of this table, .99140625. If the
paper leaves a detail of the other tables open, the docstring states the choice that is made here.

`nf4`, `fp4`, `dynamic_map` and `dynamic_map_unsigned` are from bitsandbytes 0.50: the first two of its 4-bit layers,
and the others of its 8-bit optimizers. nf4 is from Dettmers, Pagnoni, Holtzman and Zettlemoyer, "QLoRA"
(arXiv:2305.14314). The dynamic map grew out of `dynamic_tree`, but 226 of its 256 values are not in that table: it has
seven decades, a decade is [.1, 1] in equal parts, and its values are in ascending order. These four tables equal, bit
for bit, what the float32 arithmetic of bitsandbytes gives. Its linspace rounds a product and a sum once, as fused
multiply-adds do.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable
from fractions import Fraction
from itertools import pairwise
from statistics import NormalDist

# ---- Dettmers 2016


def dynamic_tree() -> list[float]:
    """Return a sign bit and 7 bits whose leading zeros give the decade; the bits after the first one give the value.

    z = 0 .. 5 leading zeros are 64, 32, 16, 8, 4 and 2 values in the decade [.1, 1] * 10**-z. Half of them are the
    middles of equal parts of [.1, .45], and half those of [.45, 1]. 0000001 is the maximum, and 0000000 is zero.
    """
    magnitudes = [Fraction(0), Fraction(1)]
    for zeros in range(5, -1, -1):
        half = 2 ** (5 - zeros)
        split = _middles(Fraction(1, 10), Fraction(45, 100), half) + _middles(
            Fraction(45, 100), Fraction(1), half
        )
        magnitudes += [value / 10**zeros for value in split]
    return _with_signs(magnitudes)


def linear() -> list[float]:
    """Return k / 127, with a sign bit and 7 bits k: linear quantization."""
    return _with_signs(Fraction(k, 127) for k in range(128))


def static_tree() -> list[float]:
    """Return a sign bit, 3 exponent bits e and 4 bits that bisect [.1, 1]: middles of 16 equal parts, times 10**-e.

    Our choice: the codes of the two smallest magnitudes (e = 7) are zero and the maximum, as in dynamic_tree.
    """
    magnitudes = [
        value / 10**exponent for exponent in range(8) for value in _middles(Fraction(1, 10), Fraction(1), 16)
    ]
    smallest = 7 * 16
    magnitudes[smallest], magnitudes[smallest + 1] = Fraction(0), Fraction(1)
    return _with_signs(magnitudes)


def mantissa() -> list[float]:
    """Return a sign bit, 3 bits e of a decimal exponent and 4 mantissa bits m: m / 10 * 10**-e.

    Our choice: m counts tenths, 0 .. 15, and values above 1 (m > 10 at e = 0) are 1. Several codes have the same value,
    as in any decimal format.
    """
    magnitudes = [
        min(Fraction(m, 10) / 10**exponent, Fraction(1)) for exponent in range(8) for m in range(16)
    ]
    return _with_signs(magnitudes)


def _middles(low: Fraction, high: Fraction, parts: int) -> list[Fraction]:
    """Return the middles of equal parts of [low, high], ascending."""
    return [low + (high - low) * Fraction(2 * i + 1, 2 * parts) for i in range(parts)]


def _with_signs(magnitudes: Iterable[Fraction]) -> list[float]:
    """Return the magnitudes as codes 0 .. 127 and their negatives as 128 .. 255. The second zero is never written."""
    positive = [float32(float(value)) for value in magnitudes]
    return positive + [-value if value else 0.0 for value in positive]


# ---- bitsandbytes


def nf4() -> list[float]:
    """Return quantiles of the normal distribution, divided by the largest: 7 below zero, zero, and 8 above.

    Their probabilities are equal steps from .5, which is left out, to .9677083 and to 1 - .9677083.
    """
    outermost, inverse = 0.9677083, NormalDist().inv_cdf
    positive = [float32(inverse(p)) for p in _linspace(outermost, 0.5, 9)[:-1]]
    negative = [-float32(inverse(p)) for p in _linspace(outermost, 0.5, 8)[:-1]]
    return [float32(value / positive[0]) for value in sorted([*negative, 0.0, *positive])]


def fp4() -> list[float]:
    """Return a sign bit and three bits: 0, 1/16, 8, 12, 4, 6, 2, 3, over 12. This is not OCP's e2m1 (`e2m1fn`)."""
    magnitudes = [value / 12 for value in (0, 0.0625, 8, 12, 4, 6, 2, 3)]
    return _with_signs(map(Fraction, magnitudes))


def dynamic_map() -> list[float]:
    """Return 7 decades z with 2**(6 - z) values each, their negatives, 0 and 1, but not -1.

    The values of a decade are the middles of equal parts of [.1, 1], times 10**-z.
    """
    positive = [value for zeros in range(7) for value in _decade(2 ** (6 - zeros), zeros)]
    return sorted([*positive, *(-value for value in positive), 0.0, 1.0])


def dynamic_map_unsigned() -> list[float]:
    """Return dynamic_map with twice as many values in each decade and none below zero, for squares of gradients."""
    return sorted([*(value for zeros in range(7) for value in _decade(2 ** (7 - zeros), zeros)), 0.0, 1.0])


def _decade(parts: int, zeros: int) -> list[float]:
    middles = [float32(float32(low + high) / 2) for low, high in pairwise(_linspace(0.1, 1.0, parts + 1))]
    return [float32(float32(10.0**-zeros) * middle) for middle in middles]


def _linspace(start: float, end: float, n: int) -> list[float]:
    """Return torch.linspace in float32, which counts from the nearer end."""
    start, end = float32(start), float32(end)
    step = float32(float32(end - start) / (n - 1))
    return [float32(start + step * i if i < n // 2 else end - step * (n - 1 - i)) for i in range(n)]


TABLES: dict[str, Callable[[], list[float]]] = {
    table.__name__: table
    for table in (dynamic_tree, linear, static_tree, mantissa, nf4, fp4, dynamic_map, dynamic_map_unsigned)
}


# ---- float32 in the standard library


def float32(value: float) -> float:
    """Round a number to float32. Raise ValueError if it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"a codebook holds finite numbers, not {value!r}")
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0] + 0.0  # no -0
    except OverflowError:
        return math.copysign(math.inf, value)


def at_most(value: float) -> float:
    """Return the largest float32 that is at most a double in [-1, 1]."""
    rounded = float32(value)
    return rounded if rounded <= value else previous(rounded)


def previous(value: float) -> float:
    """Return the next smaller float32."""
    if value == 0.0:
        return -(2.0**-149)
    (pattern,) = struct.unpack("<i", struct.pack("<f", value))
    return struct.unpack("<f", struct.pack("<i", pattern - 1 if value > 0 else pattern + 1))[0]
