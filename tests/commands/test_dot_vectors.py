"""`cpdrun formats --vectors ACCUMULATOR`, checked by an independent reader and by rational arithmetic."""

import json
import math
import sys
from pathlib import Path

import pytest
from custom_fp import Accumulator

from cpdrun.cli import main

sys.path.append(str(Path(__file__).parents[2] / "kernels" / "tests"))
import dot_oracle

CASES = {
    "zeros",
    "one term",
    "sums of ones",
    "far apart",
    "cancelled",
    "ends of the range",
    "not finite",
    "random",
}


def number(code, fmt):
    """Return the value of a binary floating-point code, given the facts of its format."""
    e, m = fmt["exponent_bits"], fmt["mantissa_bits"]
    if fmt["family"] == "fnuz" and code == 1 << (e + m):
        return math.nan
    sign, field, mantissa = -1.0 if code >> (e + m) else 1.0, code >> m & 2**e - 1, code & 2**m - 1
    if fmt["family"] == "ieee" and field == 2**e - 1:
        return math.nan if mantissa else sign * math.inf
    if fmt["family"] == "fn" and fmt["has_nan"] and field == 2**e - 1 and mantissa == 2**m - 1:
        return math.nan
    return sign * math.ldexp(mantissa + (1 << m) * (field > 0), max(field, 1) - fmt["bias"] - m)


def scale(code, name):
    """Return the value and the exponent of a scale. Subnormal scales have the exponent of the smallest normal."""
    if name == "e8m0":
        return (math.nan, 0) if code == 255 else (2.0 ** (code - 127), code - 127)
    field, mantissa = code >> 3, code & 7
    value = math.ldexp(mantissa + 8 * (field > 0), max(field, 1) - 10)
    return (math.nan, 0) if code == 127 else (value, max(field, 1) - 7)


def same(x, y):
    return (x != x and y != y) or (x == y and math.copysign(1, x) == math.copysign(1, y))


@pytest.mark.parametrize(
    "words",
    [
        "h100_fp8",
        "mi300_fp8_e5m2",
        "mi250_fp16",
        "e5m7-of_fp16-block_3-width_9-chunk_6_bf16",
        "fp16 --operands e4m3fn,e5m2",
        "e4m3fnuz-exact",
        "b200_mxfp8_e5m2_by_e4m3",
        "b200_mxfp4",
        "b200_nvfp4",
    ],
)
def test_results_equal_rational_arithmetic(words, capsys):
    assert main(["formats", "--vectors", *words.split(), "--count", "20", "--seed", "3"]) == 0
    head, *rows = map(json.loads, capsys.readouterr().out.splitlines())
    how, formats = Accumulator.parse(head["accumulator"]["in_words"]), head["formats"]
    assert how.name == head["accumulator"]["name"] and "dot product" in head["definition"]
    step = max(1, len(rows) // 40)
    for row in [*rows[::step], *rows[-20:]]:
        assert len(row["a"]) == len(row["b"]) == head["accumulator"]["terms"]
        a, b = ([number(int(code, 16), formats[side]) for code in row[side]] for side in "ab")
        exponents = []
        for values, side in ((a, "a"), (b, "b")) if "scales" in head else ():
            of = head["scales"][side]
            scales = [scale(int(code, 16), of["format"]) for code in row[f"{side}_scales"]]
            values[:] = [x * scales[k // of["terms"]][0] for k, x in enumerate(values)]
            exponents.append([exponent for _, exponent in scales])
        want = dot_oracle.dot(a, b, how, scales=tuple(exponents) or ((), ()))
        got = number(int(row["result"], 16), formats["result"])
        assert same(got, want), (row, got, want)
    assert {row["case"] for row in rows} >= CASES
    results = {row["result"] for row in rows}
    assert len(results) > 20 and sum(row["case"] == "random" for row in rows) == 20


@pytest.mark.parametrize("count", [0, 1])
def test_zero_or_one_random_vectors_can_be_requested(count, capsys):
    assert main(["formats", "--vectors", "h100_fp8", "--count", str(count)]) == 0
    rows = list(map(json.loads, capsys.readouterr().out.splitlines()[1:]))
    assert sum(row["case"] == "random" for row in rows) == count


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["h100_fp9"], "unknown format 'h100_fp9'"),
        (["h100_fp9-fused"], "unknown accumulator"),
        (["fp16-stochastic"], "rounds stochastically"),
        (["fp16-fused", "--operands", "mxfp8_e4m3"], "without scales"),
        (["fp16-fused", "--operands", "e4m3,e4m3,e4m3"], "one format is needed, or two"),
        (["fp16-fused", "--rounding", "toward_zero"], "the name of an accumulator says how it rounds"),
        (["b200_mxfp8", "--operands", "e4m3fn"], "says what its operands are"),
    ],
    ids=str,
)
def test_accumulators_without_vectors_are_refused(words, says, capsys):
    assert main(["formats", "--vectors", *words]) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1


def test_vectors_may_be_written_as_csv(tmp_path):
    file = tmp_path / "quire.csv"
    assert main(["formats", "--vectors", "posit8-exact", "--count", "5", "--out", str(file)]) == 0
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "case,a,b,result" and len(lines[1].split(",")[1].split()) == 16
