"""The tables of named codebooks: their values in the order of the codes. This module does not import torch.

`dynamic_tree`, `linear`, `static_tree` and `mantissa` have 8 bits and are from Dettmers, "8-Bit Approximations for
Parallelism in Deep Learning" (ICLR 2016, arXiv:1511.04561), section 2. `dynamic_tree` is the author's own table. His
kernels (clusterNet, kCompression_8bit) have 126 positive entries, a code for zero and a code for the maximum. They
round values of at least .995703 to the maximum. This is the midpoint between 1 and the next entry, .99140625. The paper
leaves some details of the other tables open. Their docstrings state which choice is made here.

`nf4`, `fp4`, `dynamic_map` and `dynamic_map_unsigned` are from bitsandbytes 0.50. Its 4-bit layers use the first two,
and its 8-bit optimizers use the others. nf4 is from Dettmers, Pagnoni, Holtzman and Zettlemoyer, "QLoRA"
(arXiv:2305.14314). The dynamic map is derived from `dynamic_tree`, but 226 of its 256 values are not in that table. It
has seven decades, divides [.1, 1] into equal parts, and lists its values in ascending order. These four tables equal,
bit for bit, the results of the float32 arithmetic of bitsandbytes, whose linspace rounds a product and a sum once, as
fused multiply-adds do.
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
    """Return the table of codes with a sign bit and 7 bits, whose leading zeros determine the decade.

    With z = 0 to 5 leading zeros, the decade [.1, 1] * 10**-z has 64, 32, 16, 8, 4 or 2 values. The bits after the
    first 1 select one of these values. The lower half of the values are the midpoints of equal parts of [.1, .45], and
    the upper half are the midpoints of equal parts of [.45, 1]. The code 0000001 is the maximum, and 0000000 is zero.
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
    """Return the table of linear quantization, in which a sign bit and a 7-bit integer k encode k / 127 or -k / 127."""
    return _with_signs(Fraction(k, 127) for k in range(128))


def static_tree() -> list[float]:
    """Return the table of codes with a sign bit, 3 exponent bits e, and 4 bits that select a part of [.1, 1].

    The interval has 16 equal parts, and a value is the midpoint of a part, times 10**-e. The paper does not say which
    codes are zero and the maximum. As in dynamic_tree, we use the codes of the two smallest magnitudes (e = 7).
    """
    magnitudes = [
        value / 10**exponent for exponent in range(8) for value in _middles(Fraction(1, 10), Fraction(1), 16)
    ]
    smallest = 7 * 16
    magnitudes[smallest], magnitudes[smallest + 1] = Fraction(0), Fraction(1)
    return _with_signs(magnitudes)


def mantissa() -> list[float]:
    """Return the table of codes with a sign bit, 3 bits of a decimal exponent e, and 4 mantissa bits m.

    The value is m / 10 * 10**-e. The paper does not specify the range of m. Here, m is 0 to 15, and values above 1
    (m > 10 at e = 0) become 1. Several codes have the same value, as in any decimal format.
    """
    magnitudes = [
        min(Fraction(m, 10) / 10**exponent, Fraction(1)) for exponent in range(8) for m in range(16)
    ]
    return _with_signs(magnitudes)


def _middles(low: Fraction, high: Fraction, parts: int) -> list[Fraction]:
    """Return the midpoints of equal parts of [low, high], in ascending order."""
    return [low + (high - low) * Fraction(2 * i + 1, 2 * parts) for i in range(parts)]


def _with_signs(magnitudes: Iterable[Fraction]) -> list[float]:
    """Return the values of the codes without a sign bit, followed by their negatives. The negative of 0 is +0."""
    positive = [float32(float(value)) for value in magnitudes]
    return positive + [-value if value else 0.0 for value in positive]


# ---- bitsandbytes


def nf4() -> list[float]:
    """Return 7 negative quantiles of the normal distribution, zero, and 8 positive quantiles, divided by the largest.

    The probabilities are equally spaced from .5, which is excluded, to .9677083 and to 1 - .9677083.
    """
    outermost, inverse = 0.9677083, NormalDist().inv_cdf
    positive = [float32(inverse(p)) for p in _linspace(outermost, 0.5, 9)[:-1]]
    negative = [-float32(inverse(p)) for p in _linspace(outermost, 0.5, 8)[:-1]]
    return [float32(value / positive[0]) for value in sorted([*negative, 0.0, *positive])]


def fp4() -> list[float]:
    """Return the table of codes with a sign bit and three bits for 0, 1/16, 8, 12, 4, 6, 2 and 3, divided by 12.

    This is not OCP's e2m1 (`e2m1fn`).
    """
    magnitudes = [value / 12 for value in (0, 0.0625, 8, 12, 4, 6, 2, 3)]
    return _with_signs(map(Fraction, magnitudes))


def dynamic_map() -> list[float]:
    """Return the table with 0, 1 (but not -1), and positive and negative values in 7 decades.

    Decade z has 2**(6 - z) positive values: the midpoints of equal parts of [.1, 1], times 10**-z.
    """
    positive = [value for zeros in range(7) for value in _decade(2 ** (6 - zeros), zeros)]
    return sorted([*positive, *(-value for value in positive), 0.0, 1.0])


def dynamic_map_unsigned() -> list[float]:
    """Return dynamic_map with twice as many values per decade, all nonnegative, for squares of gradients."""
    return sorted([*(value for zeros in range(7) for value in _decade(2 ** (7 - zeros), zeros)), 0.0, 1.0])


def _decade(parts: int, zeros: int) -> list[float]:
    middles = [float32(float32(low + high) / 2) for low, high in pairwise(_linspace(0.1, 1.0, parts + 1))]
    return [float32(float32(10.0**-zeros) * middle) for middle in middles]


def _linspace(start: float, end: float, n: int) -> list[float]:
    """Return the float32 values of torch.linspace, which computes each value from the nearer end."""
    start, end = float32(start), float32(end)
    step = float32(float32(end - start) / (n - 1))
    return [float32(start + step * i if i < n // 2 else end - step * (n - 1 - i)) for i in range(n)]


TABLES: dict[str, Callable[[], list[float]]] = {
    table.__name__: table
    for table in (dynamic_tree, linear, static_tree, mantissa, nf4, fp4, dynamic_map, dynamic_map_unsigned)
}


# ---- float32 arithmetic with the standard library


def float32(value: float) -> float:
    """Round a number to float32. Anything but a finite number raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"a codebook must contain finite numbers, but got {value!r}")
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0] + 0.0  # turns -0 into 0
    except OverflowError:
        return math.copysign(math.inf, value)


def at_most(value: float) -> float:
    """Return the largest float32 that does not exceed `value`, a double in [-1, 1]."""
    rounded = float32(value)
    return rounded if rounded <= value else previous(rounded)


def previous(value: float) -> float:
    """Return the next smaller float32."""
    if value == 0.0:
        return -(2.0**-149)
    (pattern,) = struct.unpack("<i", struct.pack("<f", value))
    return struct.unpack("<f", struct.pack("<i", pattern - 1 if value > 0 else pattern + 1))[0]
