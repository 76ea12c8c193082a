"""Tests of the proofs: they hold for a few formats and all inputs, and they refute a header with a mistake."""

import struct

import pytest

pytest.importorskip("cupy", reason="CuPy brings NVRTC; pip install cupy-cuda13x")
pytest.importorskip("bitwuzla", reason="the solver; pip install 'cpdrun[dev]'")
from custom_fp.formats.scalar import Format

FEW = (2, 3), (0, 1)  # bits of exponent and of mantissa


@pytest.fixture(scope="module")
def prove():
    from research.proofs import __main__ as prove

    return prove


@pytest.fixture(scope="module")
def header(prove):
    return (prove.CSRC / "custom_fp.h").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def text(prove, header):
    try:
        return prove.ptx(header)
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"no NVRTC library: {error}")


@pytest.mark.parametrize(
    "name",
    [
        *("nearest_even", "to_odd_otherwise", "decode", "encode", "round_and_encode"),
        *("stochastic_N", "stochastic_fast_N", "stochastic_even_N", "stochastic_odd_N"),
    ],
)
def test_a_property_holds_for_every_input(prove, text, name):
    assert prove.counterexample(prove.PROPERTIES[name], text, *FEW) is None


@pytest.mark.parametrize(
    ("name", "is_now", "would_be"),
    [
        (
            "nearest_even",
            "r.odd = s.mantissa_bits > 0 && r.drop > 0;",
            "r.odd = r.drop > 0;",
        ),  # IEEE's tie of m = 0
        ("toward_zero", "static_cast<U>(multiple > absolute)", "static_cast<U>(multiple >= absolute)"),
        ("decode", "s.max_code = s.has_inf ? top - 1", "s.max_code = s.has_inf ? top - 2"),
    ],
)
def test_a_wrong_header_is_refuted_by_a_format_and_an_input(prove, header, text, name, is_now, would_be):
    assert header.count(is_now) == 1
    found = prove.counterexample(prove.PROPERTIES[name], prove.ptx(header.replace(is_now, would_be)), *FEW)
    assert found["got"] != found["wanted"]
    assert 2 <= found["exponent_bits"] <= 3 and found["mantissa_bits"] <= 1


@pytest.mark.parametrize("name", ["e5m2", "e4m3fn", "e3m0", "e4m3fnuz", "e2m1fn", "ue4m3", "e4m3fo", "fp32"])
def test_the_proof_defines_formats_as_custom_fp_does(prove, name):
    """Every property of a format in formats/scalar.py has the same value in the proof."""
    from bitwuzla import Bitwuzla, Result
    from research.proofs.bit_words import Word, all_of

    fmt, any_format, solver = Format.parse(name), prove.AnyFormat((1, 8), (0, 23)), Bitwuzla(prove.TERMS)
    values = (
        fmt.exponent_bits, fmt.mantissa_bits, fmt.emin, fmt.has_inf, fmt.has_nan, fmt.family == "fnuz",
        not fmt.is_signed,
    )  # fmt: skip
    for fact in any_format.facts:
        solver.assert_formula(fact)
    for word, value in zip(any_format.unknown.values(), values, strict=True):
        solver.assert_formula(word.equals(int(value)))
    right = [any_format.spec.equals(fmt.spec), any_format.max_code.equals(fmt.max_code)]
    if fmt.has_nan:
        right.append(any_format.nan_code.equals(fmt.nan_code))
    for code in range(0, 1 << fmt.bits, max(1, (1 << fmt.bits) // 64)):
        (bits,) = struct.unpack("<I", struct.pack("<f", fmt.value_of(code)))
        right.append(any_format.value_of(Word.number(32, code)).equals(bits))
    solver.push(1)
    assert solver.check_sat() is Result.SAT  # the format is one of those that the proof is of
    solver.pop(1)
    solver.assert_formula(prove.no(all_of(*right)))
    assert solver.check_sat() is Result.UNSAT
