"""float32 as its 32 bits. Standard library only."""

from __future__ import annotations

import struct

from custom_fp.formats.tables import float32

SIGN, INFINITY, LARGEST, NAN = 0x80000000, 0x7F800000, 0x7F7FFFFF, 0x7FC00000


def bits_of(value: float) -> int:
    """Of a float32; infinity past the largest."""
    return struct.unpack("<I", struct.pack("<f", float32(value)))[0]


def value_of(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def around(magnitude: float) -> tuple[list[int], list[int]]:
    """A magnitude, exact in double, as ([its bits], those before and behind it); ([], the two that it lies between)
    where it is no float32. What is past the largest float32 is left out."""
    at = bits_of(magnitude)
    if value_of(at) == magnitude:
        here, beside = [at], [at - 1, at + 1]
    else:
        here, beside = [], [at, at + 1] if value_of(at) < magnitude else [at - 1, at]
    kept = [[bits for bits in some if 0 <= bits <= LARGEST] for some in (here, beside)]
    return kept[0], kept[1]
