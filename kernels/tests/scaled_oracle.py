"""Scaled formats in exact rational arithmetic: the steps of formats/scaled_format.py, one value at a time.

Every operation is on Fractions and rounded to float32 after it; nothing is shared with custom_fp but the fields of a
format. Slow, and written to be read.
"""

from __future__ import annotations

import math
from fractions import Fraction

import oracle
from custom_fp import Format, ScaledFormat

FP32 = Format.parse("fp32")
SCALES = {
    "e8m0": [Fraction(2) ** (code - 127) for code in range(255)],
    "e4m3fn": oracle.finite_magnitudes(Format.parse("e4m3fn")),
    "ue5m3": oracle.finite_magnitudes(Format.parse("e5m3fn")),
}
POWERS = ("floor", "ceil", "nearest", "even", "rceil")


def float32(value: Fraction) -> Fraction:
    return Fraction(math.copysign(oracle.quantize_exact(abs(value), FP32, "nearest_even"), value))


def floor_log2(value: Fraction) -> int:
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    return exponent if Fraction(2) ** exponent <= value else exponent - 1


def elements_of(fmt: ScaledFormat) -> list[Fraction]:
    """The magnitudes of an element, ascending."""
    if isinstance(fmt.element, Format):
        return oracle.finite_magnitudes(fmt.element)
    return [Fraction(i, 2**fmt.element.fraction_bits) for i in range(2 ** (fmt.element.code_bits - 1))]


def tensor_scale(fmt: ScaledFormat, largest: float) -> Fraction:
    """t of a tensor of that largest magnitude."""
    most = max(SCALES[fmt.scale.format.name])
    if fmt.scale.rule == "4over6":
        most = Fraction(2) ** floor_log2(most / Fraction(3, 2))
    target = max(elements_of(fmt)) / 2**fmt.scale.margin
    return max(float32(Fraction(largest) / (target * most)), Fraction(2) ** -126)


def block(fmt: ScaledFormat, x: list[float], t: Fraction | None = None) -> list[float]:
    """The values of a block, rounded to nearest."""
    largest = max(abs(Fraction(value)) for value in x)
    tried = [values(fmt, x, scale, t) for scale in scales(fmt, largest, t)]
    if len(tried) == 1:
        return tried[0]
    return min(tried, key=lambda found: squared_error(x, found))  # the first of equal ones


def scales(fmt: ScaledFormat, largest: Fraction, t: Fraction | None) -> list[Fraction]:
    top = max(elements_of(fmt))
    if fmt.scale.rule in POWERS:
        return [power_of_two(fmt, largest, top)]
    wanted = float32(largest / (top / 2**fmt.scale.margin))
    wanted = wanted if t is None else float32(wanted / t)
    return [
        nearest_scale(fmt, float32(wanted * times))
        for times in (1, Fraction(3, 2))[: 1 + (fmt.scale.rule == "4over6")]
    ]


def power_of_two(fmt: ScaledFormat, largest: Fraction, top: Fraction) -> Fraction:
    if largest == 0:
        return SCALES["e8m0"][0]
    emax = floor_log2(top)
    if fmt.scale.rule == "rceil":
        wanted = float32(largest / top)
        exponent = floor_log2(wanted) + (wanted > Fraction(2) ** floor_log2(wanted)) if wanted else -127
        return Fraction(2) ** min(max(exponent, -127), 127)
    digits = {"floor": 0, "ceil": 0, "nearest": 0, "even": fmt.element.mantissa_bits}[fmt.scale.rule]
    exponent = floor_log2(largest)
    significand = largest / Fraction(2) ** exponent  # in [1, 2)
    if fmt.scale.rule == "ceil":
        exponent += significand > 1
    elif fmt.scale.rule != "floor":
        exponent += significand + Fraction(1, 2 ** (digits + 1)) >= 2
    return Fraction(2) ** min(max(exponent - emax, -127), 127)


def nearest_scale(fmt: ScaledFormat, wanted: Fraction) -> Fraction:
    if fmt.scale.format.name == "fp32":
        return min(max(wanted, Fraction(2) ** -126), Fraction(FP32.max))
    known = [value for value in SCALES[fmt.scale.format.name] if value > 0]
    wanted = min(max(wanted, known[0]), known[-1])
    place = min(range(len(known)), key=lambda i: (abs(known[i] - wanted), i % 2 == 0))
    if fmt.scale.format.name == "e8m0":  # halves up
        place = max(i for i in range(len(known)) if abs(known[i] - wanted) == abs(known[place] - wanted))
    return known[place]  # a tie: the even code, which is an odd place, for code 0 is left out


def values(fmt: ScaledFormat, x: list[float], scale: Fraction, t: Fraction | None) -> list[float]:
    r = 1 / scale if t is None else float32(1 / t) / scale
    r = min(float32(r) if abs(r) < 2**128 else Fraction(FP32.max), Fraction(FP32.max))
    known, top = elements_of(fmt), max(elements_of(fmt))
    scale = scale if t is None else float32(scale * t)
    found = []
    for value in x:
        q = abs(Fraction(value)) * r
        limit = top if value > 0 or fmt.element is not None else Fraction(2)  # MX's int8 has -128
        q = min(float32(q), limit) if q < 2**100 else limit
        is_negative = math.copysign(1.0, value) < 0
        if isinstance(fmt.element, Format):
            element = Fraction(oracle.quantize_exact(q, fmt.element, "nearest_even", "saturate"))
        else:
            element = Fraction(round(q * 2**fmt.element.fraction_bits), 2**fmt.element.fraction_bits)
            is_negative = is_negative and element > 0
        assert element in known or fmt.element is None
        result = oracle.quantize_exact(element * scale, FP32, "nearest_even")
        found.append(-result if is_negative else result)
    return found


def squared_error(x: list[float], found: list[float]) -> float:
    """Eight sums over every eighth element, then pairwise, in float64."""
    sums = [0.0] * 8
    for i, (value, is_) in enumerate(zip(x, found, strict=True)):
        error = float(float32(Fraction(is_) - Fraction(value)))
        sums[i % 8] += error * error
    fours = [sums[i] + sums[i + 4] for i in range(4)]
    return (fours[0] + fours[2]) + (fours[1] + fours[3])
