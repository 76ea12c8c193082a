"""The codebooks that have names, as lists of values in the order of their codes. Standard library only.

Dettmers, "8-Bit Approximations for Parallelism in Deep Learning" (ICLR 2016, arXiv:1511.04561), section 2, 8 bits
each: `dynamic_tree`, `linear`, `static_tree`, `mantissa`. `dynamic_tree` is the author's own table: his kernels
(clusterNet, kCompression_8bit) have 126 positive entries, a code for zero, a code for the maximum, and go over to the
maximum at .995703, which is the middle between 1 and this table's next entry, .99140625. Where the paper's text leaves
the others open, what is chosen here stands in their docstrings.

bitsandbytes (0.50): `nf4` and `fp4` of its 4-bit layers, the former from Dettmers, Pagnoni, Holtzman and Zettlemoyer,
"QLoRA" (arXiv:2305.14314); `dynamic_map` and `dynamic_map_unsigned` of its 8-bit optimizers. In its dynamic map a
decade is [.1, 1] in equal parts, there are seven of them, and the values stand in ascending order: of its 256 values
226 are none of `dynamic_tree`'s, which it grew out of. These four are what its own float32 arithmetic gives, bit for
bit (its linspace rounds a product and a sum once, as processors do that fuse them).
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
    """Sign bit; the leading zeros of the other 7 bits give the decade; the bits behind the first one, the value.

    z leading zeros, z = 0..5: 64, 32, 16, 8, 4, 2 values in the decade [.1, 1] * 10**-z, half of them in the middles
    of equal parts of [.1, .45], half in those of [.45, 1]. 0000001 is the maximum, 0000000 zero.
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
    """Sign bit and 7 bits k: k / 127. Linear quantization."""
    return _with_signs(Fraction(k, 127) for k in range(128))


def static_tree() -> list[float]:
    """Sign bit, 3 bits e of exponent, 4 bits of a bisection of [.1, 1]: middles of 16 equal parts, times 10**-e.

    Our choice: the two smallest magnitudes (e = 7) give their codes to zero and to the maximum, as dynamic_tree has it.
    """
    magnitudes = [
        value / 10**exponent for exponent in range(8) for value in _middles(Fraction(1, 10), Fraction(1), 16)
    ]
    smallest = 7 * 16
    magnitudes[smallest], magnitudes[smallest + 1] = Fraction(0), Fraction(1)
    return _with_signs(magnitudes)


def mantissa() -> list[float]:
    """Sign bit, 3 bits e of exponent to the base ten, 4 bits m of mantissa: m / 10 * 10**-e, as a decimal float.

    Our choice: m counts tenths, 0..15, and what is above 1 (m > 10 at e = 0) is 1: codes that say the same remain,
    as they do in any format to base ten.
    """
    magnitudes = [
        min(Fraction(m, 10) / 10**exponent, Fraction(1)) for exponent in range(8) for m in range(16)
    ]
    return _with_signs(magnitudes)


def _middles(low: Fraction, high: Fraction, parts: int) -> list[Fraction]:
    """The middles of equal parts of [low, high], ascending."""
    return [low + (high - low) * Fraction(2 * i + 1, 2 * parts) for i in range(parts)]


def _with_signs(magnitudes: Iterable[Fraction]) -> list[float]:
    """Codes 0..127 as given, 128..255 negative; the second zero is read as zero and never written."""
    positive = [float32(float(value)) for value in magnitudes]
    return positive + [-value if value else 0.0 for value in positive]


# ---- bitsandbytes


def nf4() -> list[float]:
    """Quantiles of the normal distribution, over the largest of them: 7 below zero, zero, 8 above.

    Their probabilities are equal steps from .5, left out, to .9677083 and 1 - .9677083, the outermost.
    """
    outermost, inverse = 0.9677083, NormalDist().inv_cdf
    positive = [float32(inverse(p)) for p in _linspace(outermost, 0.5, 9)[:-1]]
    negative = [-float32(inverse(p)) for p in _linspace(outermost, 0.5, 8)[:-1]]
    return [float32(value / positive[0]) for value in sorted([*negative, 0.0, *positive])]


def fp4() -> list[float]:
    """Sign bit and three bits: 0, 1/16, 8, 12, 4, 6, 2, 3, over 12. Not the e2m1 of OCP, which is `e2m1fn` here."""
    magnitudes = [value / 12 for value in (0, 0.0625, 8, 12, 4, 6, 2, 3)]
    return _with_signs(map(Fraction, magnitudes))


def dynamic_map() -> list[float]:
    """Decades z = 6..0 with 2**(6 - z) values each: the middles of equal parts of [.1, 1], times 10**-z; their
    negatives; 0 and 1, but not -1."""
    positive = [value for zeros in range(7) for value in _decade(2 ** (6 - zeros), zeros)]
    return sorted([*positive, *(-value for value in positive), 0.0, 1.0])


def dynamic_map_unsigned() -> list[float]:
    """As dynamic_map with twice as many values in each decade, and none below zero: for squares of gradients."""
    return sorted([*(value for zeros in range(7) for value in _decade(2 ** (7 - zeros), zeros)), 0.0, 1.0])


def _decade(parts: int, zeros: int) -> list[float]:
    middles = [float32(float32(low + high) / 2) for low, high in pairwise(_linspace(0.1, 1.0, parts + 1))]
    return [float32(float32(10.0**-zeros) * middle) for middle in middles]


def _linspace(start: float, end: float, n: int) -> list[float]:
    """torch.linspace in float32: counted from the nearer end."""
    start, end = float32(start), float32(end)
    step = float32(float32(end - start) / (n - 1))
    return [float32(start + step * i if i < n // 2 else end - step * (n - 1 - i)) for i in range(n)]


TABLES: dict[str, Callable[[], list[float]]] = {
    table.__name__: table
    for table in (dynamic_tree, linear, static_tree, mantissa, nf4, fp4, dynamic_map, dynamic_map_unsigned)
}


# ---- float32 in the standard library


def float32(value: float) -> float:
    """Rounded to float32. Raises ValueError for what is no finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"a codebook holds finite numbers, not {value!r}")
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0] + 0.0  # no -0
    except OverflowError:
        return math.copysign(math.inf, value)


def at_most(value: float) -> float:
    """The largest float32 that is not above a double in [-1, 1]."""
    rounded = float32(value)
    return rounded if rounded <= value else previous(rounded)


def previous(value: float) -> float:
    """The next float32 below one."""
    if value == 0.0:
        return -(2.0**-149)
    (pattern,) = struct.unpack("<i", struct.pack("<f", value))
    return struct.unpack("<f", struct.pack("<i", pattern - 1 if value > 0 else pattern + 1))[0]
