"""Convert between float32 values and their 32 bits. This module uses only the standard library."""

from __future__ import annotations

import struct

from custom_fp.formats.tables import float32

SIGN, INFINITY, LARGEST, NAN = 0x80000000, 0x7F800000, 0x7F7FFFFF, 0x7FC00000


def bits_of(value: float) -> int:
    """Return the bits of a value after rounding it to float32."""
    return struct.unpack("<I", struct.pack("<f", float32(value)))[0]


def value_of(bits: int) -> float:
    """Return the float32 value of 32 bits."""
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def around(magnitude: float) -> tuple[list[int], list[int]]:
    """Return the bits of the float32 values at and around a magnitude.

    Args:
        magnitude: A value that is exact in float64.

    Returns:
        If the magnitude is a float32 value, a list with its bits and a list with the bits of its two neighbors.
        Otherwise, an empty list and a list with the bits of the two values that enclose the magnitude. Values beyond
        the largest float32 are left out.
    """
    at = bits_of(magnitude)
    if value_of(at) == magnitude:
        exact, neighbors = [at], [at - 1, at + 1]
    else:
        exact, neighbors = [], [at, at + 1] if value_of(at) < magnitude else [at - 1, at]
    finite = [[bits for bits in found if 0 <= bits <= LARGEST] for found in (exact, neighbors)]
    return finite[0], finite[1]
