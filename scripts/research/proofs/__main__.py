"""Prove that the arithmetic in csrc/custom_fp.h follows its definition, for every format and every input.

    make proofs                                              # all properties and formats: about 40 minutes
    export PYTHONPATH=scripts
    python -m research.proofs --exponent 2..5 --mantissa 0..10 nearest_even decode
    python -m research.proofs --output results/reference/numerics/proof.md

NVRTC compiles the header for a GPU. ptx_terms.py translates the instructions into terms of an SMT solver (bitwuzla), in
which the fields of the format are unknowns. The solver then looks for a format, an input and 32 random bits for which
the result differs from the definition. If there is none, the property is proved. Otherwise the counterexample is
printed and the exit status is 1.

The definition, in integers, is exact_rounding.py. The property `stochastic` covers any 32 random bits except all ones.
The properties `stochastic_N` and its variants cover the use of the first N bits, for every N and every distance.

The proofs rely on the solver, on the meaning of PTX as NVIDIA documents it, and on NVRTC, which compiled the
instructions. Tests on all inputs show that g++ compiles the same header to the same function. The proofs do not cover
sums of two values before rounding (add_to_odd, which is tested with every pair of values of small formats), products,
scaling by the shift of APS, and float64 inputs.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bitwuzla import Bitwuzla, Kind, Option, Options, Result
from research.proofs.bit_words import TERMS, Truth, Word, all_of, any_of, no, where
from research.proofs.exact_rounding import INF, INFINITY, PROPAGATE, SATURATE, AnyFormat, carries, rounded
from research.proofs.ptx_terms import Kernels

CSRC = Path(__file__).parents[3] / "kernels/custom_fp/csrc"
ROUNDINGS = (
    "nearest_even", "toward_zero", "stochastic", "nearest_away", "toward_positive", "toward_negative", "to_odd",
)  # fmt: skip
OF_A_MODE = """
extern "C" __global__ void quantize_{name}(u32 spec, u32 overflow, u32 x, u32 random, u32* out) {{
    const Rounder<float> r = make_rounder<float>(unpack_spec(spec), {mode}, overflow);
    out[0] = to_bits(settle(round<{template}>(from_bits(x), r, random), r));
}}"""
OF_CODES = """
extern "C" __global__ void shape(u32 random, u32 mask, u32* out) { out[0] = rounding_bits(random, mask); }
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
    """Compile custom_fp.h and the kernels above with NVRTC. Raise ImportError without CuPy."""
    import torch  # noqa: F401  The wheels of torch contain the NVRTC that CuPy uses.
    from cupy.cuda import nvrtc

    draws = (CSRC / "philox.h").read_text(encoding="utf-8").replace('#include "custom_fp.h"', "")
    source = (header + draws).replace("#pragma once", "") + "using namespace custom_fp;" + OF_CODES
    for mode in ROUNDINGS:
        source += OF_A_MODE.format(name=mode, mode=mode, template=mode)
        source += OF_A_MODE.format(name=f"{mode}_otherwise", mode=mode, template="otherwise")
    program = nvrtc.createProgram(source, "proof.cu", [], [])
    nvrtc.compileProgram(program, ["--gpu-architecture=sm_80", "-w", "--std=c++17", "--fmad=false"])
    found = nvrtc.getPTX(program)
    return found.decode() if isinstance(found, bytes) else found


# ---- claims


@dataclass(frozen=True)
class Claim:
    """A claim to prove.

    Attributes:
        fails: A term that is true if the unknowns are a counterexample.
        facts: Terms that may be assumed to be true.
        unknowns: Further unknowns of the claim, by name.
    """

    fails: Truth
    facts: list[Truth]
    unknowns: dict[str, Word]


def quantizes(kernels: Kernels, fmt: AnyFormat, rounding: str, *, template: str = "") -> Claim:
    """Claim that quantize equals its definition, for the formats of a template (template_of in custom_fp.h)."""
    x, overflow, random = Word.unknown(32, "x"), Word.unknown(32, "overflow"), Word.unknown(32, "random")
    arguments = [word.term for word in (fmt.spec, overflow, x, random, Word.number(64, 0))]
    got = Word(kernels.stored(f"quantize_{rounding}{template}", arguments)[0])
    served = [overflow >= INFINITY, overflow <= PROPAGATE]
    if rounding == "stochastic":
        served.append(random.differs(-1))  # `rounding_bits` never returns all ones.
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


def shapes(kernels: Kernels, fmt: AnyFormat, form: str) -> Claim:
    """Claim that `rounding_bits` uses N random bits according to the definition of a form of stochastic rounding.

    The definition determines, for each distance, whether the returned bits cause a carry. The claim covers every
    distance with 60 binary digits. Together with the claim about `stochastic`, which covers all 32 bits except all
    ones, it proves the rounding of the form.
    """
    random, n = Word.unknown(32, "random"), Word.unknown(32, "N")
    rest, places = Word.unknown(96, "rest"), Word.number(96, 60)  # the distance: rest / 2**60
    unit = Word.number(96, 1 << 60)
    low_bits = {"": 0b000, "fast": 0b001, "even": 0b011, "odd": 0b111}[form]
    mask = (Word.number(32, -1) << (Word.number(32, 32) - n)) | low_bits
    word = Word(kernels.stored("shape", [random.term, mask.term, Word.number(64, 0).term])[0])
    steps = rest << n.widened(96)
    whole, twice = steps >> places, (steps & (unit - 1)) << 1
    is_odd = whole.bit(0)
    halves = {"": TERMS.mk_false(), "fast": TERMS.mk_true(), "even": is_odd, "odd": no(is_odd)}[form]
    up = all_of(
        any_of(twice > unit, all_of(twice.equals(unit), halves)),
        TERMS.mk_true() if form else TERMS.mk_false(),
    )
    reached = where(up, whole + 1, whole) + (random >> (Word.number(32, 32) - n)).widened(96)
    got, wanted = carries(rest, places, word), reached >= Word.number(96, 1) << n.widened(96)
    facts = [n >= 1, n <= (29 if form else 31), rest >= 0, rest < unit]
    unknowns = {"random": random, "N": n, "rest": rest, "shaped": word}
    return Claim(any_of(TERMS.mk_term(Kind.XOR, [got, wanted]), word.equals(-1)), facts, unknowns)


def decodes(kernels: Kernels, fmt: AnyFormat) -> Claim:
    """Claim that decode returns the value of each code."""
    code = Word.unknown(32, "code")
    got = Word(kernels.stored("codes", [fmt.spec.term, code.term, Word.number(64, 0).term])[0])
    wanted = fmt.value_of(code)
    return Claim(got.differs(wanted), [], {"code": code, "got": got, "wanted": wanted})


def encodes(kernels: Kernels, fmt: AnyFormat) -> Claim:
    """Claim that encode returns the code of each value, and for all NaN the same code."""
    code = Word.unknown(32, "code")
    stored = kernels.stored("codes", [fmt.spec.term, code.term, Word.number(64, 0).term])
    bits = where(fmt.is_unsigned, fmt.width, fmt.width + 1)
    mask = where(bits.equals(32), -1, (fmt.one << bits) - 1)
    got, is_nan = Word(stored[4]), (Word(stored[0]) & 0x7FFFFFFF) > INF
    wanted = where(is_nan, fmt.nan_code, code & mask)
    return Claim(got.differs(wanted), [], {"code": code, "got": got, "wanted": wanted})


def rounds_and_encodes(kernels: Kernels, fmt: AnyFormat) -> Claim:
    """Claim that round_and_encode equals rounding and then encoding, for formats with a sign and a -0."""
    x = Word.unknown(32, "x")
    stored = kernels.stored("together", [fmt.spec.term, x.term, Word.number(64, 0).term])
    got, wanted = Word(stored[0]), Word(stored[4])
    return Claim(got.differs(wanted), [fmt.is_plain], {"x": x, "got": got, "wanted": wanted})


def _quantizes(rounding: str, template: str) -> Callable[[Kernels, AnyFormat], Claim]:
    return lambda kernels, fmt: quantizes(kernels, fmt, rounding, template=template)


def _shapes(form: str) -> Callable[[Kernels, AnyFormat], Claim]:
    return lambda kernels, fmt: shapes(kernels, fmt, form)


WITH_TEMPLATE = ROUNDINGS[:3]  # these have their own templates
PROPERTIES: dict[str, Callable[[Kernels, AnyFormat], Claim]] = {
    **{rounding: _quantizes(rounding, "") for rounding in WITH_TEMPLATE},
    **{f"{r}_otherwise": _quantizes(r, "_otherwise") for r in ROUNDINGS if r != "stochastic"},
    **{f"stochastic_{form}{'_' * (form != '')}N": _shapes(form) for form in ("", "fast", "even", "odd")},
    "decode": decodes,
    "encode": encodes,
    "round_and_encode": rounds_and_encodes,
}


def counterexample(
    claim: Callable[[Kernels, AnyFormat], Claim],
    text: str,
    exponent_bits: tuple[int, int],
    mantissa_bits: tuple[int, int],
) -> dict[str, int] | None:
    """Return a format and an input for which a property of a PTX text does not hold, or None if there is none."""
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
    found = {**fmt.unknown, **made.unknowns}
    return {name: int(solver.get_value(word.term).value(2), 2) for name, word in found.items()}


def _bounds(text: str) -> tuple[int, int]:
    low, _, high = text.partition("..")
    return int(low), int(high or low)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("properties", nargs="*", choices=[*PROPERTIES, []], help="default: all")
    parser.add_argument(
        "--exponent", type=_bounds, default=(1, 8), help="exponent bits, like 2..5 (default: 1..8)"
    )
    parser.add_argument(
        "--mantissa", type=_bounds, default=(0, 23), help="mantissa bits, like 0..10 (default: 0..23)"
    )
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
