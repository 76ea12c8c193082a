"""Prove that the arithmetic in csrc/custom_fp.h is what its definition says: for every format, of every input.

    python scripts/prove.py                                # all properties, all formats: a quarter of an hour or more
    python scripts/prove.py --exponent 2..5 --mantissa 0..10 nearest_even decode
    python scripts/prove.py --output results/reference/numerics/proof.md

NVRTC compiles the header for a GPU; scripts/ptx_terms.py reads the instructions as terms of an SMT solver (bitwuzla),
the format's fields among the unknowns; and the solver looks for a format, an input and 32 random bits of which the
result is not that of the definition below. It finds none, and that is the proof, or it prints one and the exit status
is 1.

The definition here is in whole numbers: x = sig * 2**p is divided by the quantum of its binade, shifted out bit by bit.
It says what reference.py says in float64 and shares no line with it nor with the header. What the proof rests on: the
solver, PTX's meaning as NVIDIA documents it, and NVRTC, which made the instructions; that g++ makes the same of the
header is what the tests on all inputs hold. Not proved: sums of two values before they are rounded (add_to_odd),
products, scaling by APS's shift, float64 inputs.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bit_words import TERMS, Truth, Word, all_of, any_of, no, where
from bitwuzla import Bitwuzla, Option, Options, Result
from ptx_terms import Kernels

CSRC = Path(__file__).parents[1] / "kernels/custom_fp/csrc"
ROUNDINGS = (
    "nearest_even", "toward_zero", "stochastic", "nearest_away", "toward_positive", "toward_negative", "to_odd",
)  # fmt: skip
INFINITY, SATURATE, PROPAGATE = range(3)
INF, NAN = 0x7F800000, 0x7FC00000  # of float32
OF_A_MODE = """
extern "C" __global__ void quantize_{name}(u32 spec, u32 overflow, u32 x, u32 random, u32* out) {{
    const Rounder<float> r = make_rounder<float>(unpack_spec(spec), {mode}, overflow);
    out[0] = to_bits(settle(round<{template}>(from_bits(x), r, random), r));
}}"""
OF_CODES = """
extern "C" __global__ void codes(u32 spec, u32 code, u32* out) {
    const Coder c = make_coder(unpack_spec(spec));
    const float value = decode(code, c);
    out[0] = to_bits(value);
    out[1] = encode(value, c);
}
extern "C" __global__ void together(u32 spec, u32 x, u32* out) {
    const Spec s = unpack_spec(spec);
    const Coder c = make_coder(s);
    const Rounder<float> r = make_rounder<float>(s, nearest_even, infinity);
    out[0] = round_and_encode(from_bits(x), r, c);
    out[1] = encode(round<nearest_even>(from_bits(x), r, 0), c);
}"""


def ptx(header: str) -> str:
    """What NVRTC makes of custom_fp.h and the kernels above. Raises ImportError without CuPy."""
    import torch  # noqa: F401  its wheels bring the NVRTC that CuPy looks for
    from cupy.cuda import nvrtc

    source = header.replace("#pragma once", "") + "using namespace custom_fp;" + OF_CODES
    for mode in ROUNDINGS:
        source += OF_A_MODE.format(name=mode, mode=mode, template=mode)
        source += OF_A_MODE.format(name=f"{mode}_otherwise", mode=mode, template="otherwise")
    program = nvrtc.createProgram(source, "proof.cu", [], [])
    nvrtc.compileProgram(program, ["--gpu-architecture=sm_80", "-w", "--std=c++17", "--fmad=false"])
    found = nvrtc.getPTX(program)
    return found.decode() if isinstance(found, bytes) else found


# ---- the definition


class AnyFormat:
    """All formats at once: formats/scalar.py in unknowns, between bounds of the exponent's and the mantissa's bits."""

    def __init__(self, exponent_bits: tuple[int, int], mantissa_bits: tuple[int, int]) -> None:
        names = ("exponent_bits", "mantissa_bits", "emin", "has_inf", "has_nan", "is_fnuz", "is_unsigned")
        self.unknown = {name: Word.unknown(32, name) for name in names}
        self.e, self.m, self.emin, inf, nan, fnuz, unsigned = self.unknown.values()
        self.spec = (fnuz << 31) | (inf << 30) | (nan << 29) | ((self.emin + 512) << 16) | (unsigned << 15)
        self.spec = self.spec | (self.m << 8) | self.e
        self.has_inf, self.has_nan, self.is_fnuz, self.is_unsigned = (
            word.equals(1) for word in (inf, nan, fnuz, unsigned)
        )
        self.width = self.e + self.m  # of a code without its sign
        self.one = Word.number(32, 1)
        self.inf_code = ((self.one << self.e) - 1) << self.m
        all_ones = (self.one << self.width) - 1
        last_is_nan = all_of(self.has_nan, no(self.is_fnuz))
        self.max_code = where(self.has_inf, self.inf_code - 1, where(last_is_nan, all_ones - 1, all_ones))
        self.max = self.magnitude(self.max_code)
        self.bounds = [
            *(
                word >= low
                for word, low in zip((self.e, self.m), (exponent_bits[0], mantissa_bits[0]), strict=True)
            ),
            *(
                word <= high
                for word, high in zip((self.e, self.m), (exponent_bits[1], mantissa_bits[1]), strict=True)
            ),
        ]

    @cached_property
    def facts(self) -> list[Truth]:
        """What formats there are."""
        field = self.max_code >> self.m
        emax = where(field.equals(0), self.emin - 1, self.emin - 1 + field)
        flags = list(self.unknown.values())[3:]
        ieee = all_of(no(self.is_fnuz), any_of(*(all_of(a, b) for a, b in self._nan_of_ieee())))
        return [
            *self.bounds,
            *(flag >= 0 for flag in flags),
            *(flag <= 1 for flag in flags),
            self.emin >= -126,
            self.emin <= 104,
            emax <= 127,
            any_of(no(self.has_inf), ieee),
            any_of(no(self.is_fnuz), all_of(self.has_nan, no(self.has_inf), no(self.is_unsigned))),
        ]

    def _nan_of_ieee(self) -> Iterator[tuple[Truth, Truth]]:
        yield self.m > 0, self.has_nan
        yield self.m.equals(0), no(self.has_nan)

    @property
    def is_plain(self) -> Truth:
        return all_of(no(self.is_fnuz), no(self.is_unsigned))

    def magnitude(self, code: Word) -> Word:
        """The float32 bits of a finite value, from its code without the sign."""
        field, digits = code >> self.m, code & ((self.one << self.m) - 1)
        is_subnormal = field.equals(0)
        significand = where(is_subnormal, digits, digits + (self.one << self.m))
        return bits_of(significand, where(is_subnormal, self.emin, self.emin + field - 1) - self.m)

    def value_of(self, code: Word) -> Word:
        """The float32 bits of a code's value; bits above the format's do not count."""
        magnitude = code & ((self.one << self.width) - 1)
        sign = where(all_of(no(self.is_unsigned), code.bit(self.width)), 1 << 31, 0)
        is_infinite = all_of(self.has_inf, magnitude.equals(self.inf_code))
        special = where(is_infinite, sign | INF, NAN)
        found = where(magnitude > self.max_code, special, self.magnitude(magnitude) | sign)
        is_minus_zero = all_of(magnitude.equals(0), sign.differs(0))
        return where(all_of(self.is_fnuz, is_minus_zero), NAN, found)

    @property
    def nan_code(self) -> Word:
        of_ieee = self.inf_code | ((self.one << self.m) >> 1)
        return where(self.has_inf, of_ieee, self.max_code + 1)


def bits_of(n: Word, exponent: Word) -> Word:
    """The float32 bits of n * 2**exponent, a multiple of 2**-149; past float32, as if its exponent field went on."""
    top = n.highest_one() + exponent
    normal = ((top + 127) << 23) + ((n << (n.like(23) - n.highest_one())) & 0x7FFFFF)
    return where(n.equals(0), 0, where(top >= -126, normal, n << (exponent + 149)))


def rounded(fmt: AnyFormat, x: Word, rounding: str, overflow: Word, random: Word) -> Word:
    """quantize, as rule.py and reference.py define it."""
    magnitude, is_negative = x & 0x7FFFFFFF, x.bit(31)
    found = _multiple(fmt, magnitude, is_negative, rounding, random)
    infinity, past = _past_max(fmt, is_negative, rounding, overflow)
    found = where(found > fmt.max, past, found)
    found = where(magnitude.equals(INF), infinity, found)
    nan = where(fmt.has_nan, NAN, where(fmt.has_inf, INF, fmt.max))
    is_number = all_of(magnitude <= INF, found <= INF)
    signed = where(is_number, found | (x & (1 << 31)), found)
    return where(magnitude > INF, nan, _settled(fmt, signed, magnitude, rounding, overflow))


def _multiple(fmt: AnyFormat, magnitude: Word, is_negative: Truth, rounding: str, random: Word) -> Word:
    """The multiple of its binade's quantum that a finite magnitude becomes, as bits."""
    field, fraction = magnitude >> 23, magnitude & 0x7FFFFF
    significand = where(field.equals(0), fraction, fraction | 0x800000)
    p = where(field.equals(0), 1, field) - 150
    top = significand.highest_one() + p
    quantum = where(top < fmt.emin, fmt.emin, top) - fmt.m
    dropped = quantum - p  # bits; past 60 nothing of 24 is left, nor of 31 random ones
    few = where(dropped > 60, 60, where(dropped < 0, 0, dropped)).widened(64)
    x = significand.widened(64)
    n = x >> few
    rest, unit = x - (n << few), Word.number(64, 1) << few
    up = _goes_up(n.bit(0), rest, unit, few, is_negative, rounding, random)
    return where(dropped < 0, magnitude, bits_of(where(up, n + 1, n).low(32), quantum))


def _goes_up(
    is_odd: Truth, rest: Word, unit: Word, bits: Word, is_negative: Truth, rounding: str, random: Word
) -> Truth:
    """Whether rest / unit, of unit = 2**bits, is rounded up: rule.Rounding."""
    twice, is_inexact = rest << 1, rest.differs(0)
    match rounding:
        case "nearest_even":
            return any_of(twice > unit, all_of(twice.equals(unit), is_odd))
        case "nearest_away":
            return twice >= unit
        case "toward_positive":
            return all_of(is_inexact, no(is_negative))
        case "toward_negative":
            return all_of(is_inexact, is_negative)
        case "to_odd":
            return all_of(is_inexact, no(is_odd))
        case "stochastic":
            return ((rest << 31) >> bits) + (random >> 1).widened(64) >= 1 << 31
    return TERMS.mk_false()


def _past_max(fmt: AnyFormat, is_negative: Truth, rounding: str, overflow: Word) -> tuple[Word, Word]:
    """What infinity becomes and what a finite number past the largest value: magnitudes."""
    special = where(fmt.has_inf, INF, where(fmt.has_nan, NAN, fmt.max))
    keeps = any_of(overflow.equals(SATURATE), all_of(overflow.equals(PROPAGATE), no(fmt.has_inf)))
    infinity = where(keeps, fmt.max, special)
    max_is_odd = where(fmt.m.equals(0), fmt.max_code, fmt.max_code & 1).differs(0)
    stays = {
        "toward_zero": TERMS.mk_true(), "to_odd": max_is_odd, "toward_negative": no(is_negative),
        "toward_positive": is_negative,
    }.get(rounding, TERMS.mk_false())  # fmt: skip
    return infinity, where(any_of(overflow.differs(INFINITY), stays), fmt.max, infinity)


def _settled(fmt: AnyFormat, value: Word, magnitude: Word, rounding: str, overflow: Word) -> Word:
    """-0 and negative numbers where the format has none; `magnitude` of what was rounded."""
    gone = where(all_of(fmt.has_nan, overflow.equals(INFINITY)), NAN, 0)
    number = gone.like(0) if rounding in ("toward_zero", "toward_positive") else gone
    is_below = all_of(fmt.is_unsigned, value.bit(31), value.differs(1 << 31))
    value = where(is_below, where(magnitude.equals(INF), gone, number), value)
    is_minus_zero = value.equals(1 << 31)
    return where(all_of(no(fmt.is_plain), is_minus_zero), 0, value)


# ---- what is proved


@dataclass(frozen=True)
class Claim:
    """`fails` holds of what would refute it; `asked`: what else is unknown, by name."""

    fails: Truth
    facts: list[Truth]
    asked: dict[str, Word]


def quantizes(kernels: Kernels, fmt: AnyFormat, rounding: str, *, template: str = "") -> Claim:
    """quantize is the definition: of formats that the template serves (template_of in custom_fp.h), at every
    overflow."""
    x, overflow, random = Word.unknown(32, "x"), Word.unknown(32, "overflow"), Word.unknown(32, "random")
    arguments = [word.term for word in (fmt.spec, overflow, x, random, Word.number(64, 0))]
    got = Word(kernels.stored(f"quantize_{rounding}{template}", arguments)[0])
    served = [overflow >= INFINITY, overflow <= PROPAGATE]
    if not template and rounding != "stochastic":
        served.append(fmt.is_plain)
    if not template and rounding == "nearest_even":
        served.append(overflow <= SATURATE)
    wanted = rounded(fmt, x, rounding, overflow, random)
    return Claim(
        got.differs(wanted),
        served,
        {"x": x, "overflow": overflow, "random": random, "got": got, "wanted": wanted},
    )


def decodes(kernels: Kernels, fmt: AnyFormat) -> Claim:
    """decode gives each code's value."""
    code = Word.unknown(32, "code")
    got = Word(kernels.stored("codes", [fmt.spec.term, code.term, Word.number(64, 0).term])[0])
    wanted = fmt.value_of(code)
    return Claim(got.differs(wanted), [], {"code": code, "got": got, "wanted": wanted})


def encodes(kernels: Kernels, fmt: AnyFormat) -> Claim:
    """encode of a code's value gives that code, of NaN the one code that NaN is written as."""
    code = Word.unknown(32, "code")
    stored = kernels.stored("codes", [fmt.spec.term, code.term, Word.number(64, 0).term])
    bits = where(fmt.is_unsigned, fmt.width, fmt.width + 1)
    mask = where(bits.equals(32), -1, (fmt.one << bits) - 1)
    got, is_nan = Word(stored[4]), (Word(stored[0]) & 0x7FFFFFFF) > INF
    wanted = where(is_nan, fmt.nan_code, code & mask)
    return Claim(got.differs(wanted), [], {"code": code, "got": got, "wanted": wanted})


def goes_together(kernels: Kernels, fmt: AnyFormat) -> Claim:
    """round_and_encode, in one go, is encode of round, for formats with a sign and a -0."""
    x = Word.unknown(32, "x")
    stored = kernels.stored("together", [fmt.spec.term, x.term, Word.number(64, 0).term])
    got, wanted = Word(stored[0]), Word(stored[4])
    return Claim(got.differs(wanted), [fmt.is_plain], {"x": x, "got": got, "wanted": wanted})


def _of_a_mode(rounding: str, template: str) -> Callable[[Kernels, AnyFormat], Claim]:
    return lambda kernels, fmt: quantizes(kernels, fmt, rounding, template=template)


OWN = ROUNDINGS[:3]  # with templates of their own
PROPERTIES: dict[str, Callable[[Kernels, AnyFormat], Claim]] = {
    **{rounding: _of_a_mode(rounding, "") for rounding in OWN},
    **{f"{r}_otherwise": _of_a_mode(r, "_otherwise") for r in ROUNDINGS if r != "stochastic"},
    "decode": decodes,
    "encode": encodes,
    "round_and_encode": goes_together,
}


def counterexample(
    claim: Callable[[Kernels, AnyFormat], Claim],
    text: str,
    exponent_bits: tuple[int, int],
    mantissa_bits: tuple[int, int],
) -> dict[str, int] | None:
    """The fields of a format and an input of which the property of a PTX text does not hold; None: there are none."""
    kernels, fmt = Kernels(text, TERMS), AnyFormat(exponent_bits, mantissa_bits)
    made = claim(kernels, fmt)
    options = Options()
    options.set(Option.PRODUCE_MODELS, True)
    solver = Bitwuzla(TERMS, options)
    for term in (*fmt.facts, *made.facts, *kernels.facts, made.fails):
        solver.assert_formula(term)
    answer = solver.check_sat()
    if answer is Result.UNSAT:
        return None
    if answer is not Result.SAT:
        raise RuntimeError(f"the solver says {answer}")
    found = {**fmt.unknown, **made.asked}
    return {name: int(solver.get_value(word.term).value(2), 2) for name, word in found.items()}


def _bounds(text: str) -> tuple[int, int]:
    low, _, high = text.partition("..")
    return int(low), int(high or low)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("properties", nargs="*", choices=[*PROPERTIES, []], help="default: all")
    parser.add_argument("--exponent", type=_bounds, default=(1, 8), help="bits, as 2..5 (1..8)")
    parser.add_argument("--mantissa", type=_bounds, default=(0, 23), help="bits, as 0..10 (0..23)")
    parser.add_argument("--output", type=Path, help="write the table to this file as well")
    options = parser.parse_args()

    text = ptx((CSRC / "custom_fp.h").read_text(encoding="utf-8"))
    (low_e, high_e), (low_m, high_m) = options.exponent, options.mantissa
    rows = [
        f"custom_fp.h against its definition: exponents of {low_e} to {high_e} bits, mantissas of {low_m} to {high_m}, "
        "every bias that float32 holds, with and without infinity, NaN, sign and -0; every input, overflow and "
        "random word:",
        "",
        "| property | verdict | seconds |",
        "| --- | --- | --- |",
    ]
    print("\n".join(rows), flush=True)
    refuted = False
    for name in options.properties or PROPERTIES:
        started = time.monotonic()
        found = counterexample(PROPERTIES[name], text, options.exponent, options.mantissa)
        refuted |= found is not None
        verdict = (
            "proved" if found is None else ", ".join(f"{key} {value:#x}" for key, value in found.items())
        )
        rows.append(f"| {name} | {verdict} | {time.monotonic() - started:.0f} |")
        print(rows[-1], flush=True)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return int(refuted)


if __name__ == "__main__":
    sys.exit(main())
