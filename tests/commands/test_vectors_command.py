"""`cpdrun formats --vectors`: every boundary is included, and the compiled kernels agree with the vectors."""

import csv
import io
import json
import struct
from bisect import bisect_left, bisect_right
from itertools import islice, pairwise

import custom_fp
import pytest
import torch
from custom_fp.formats.names import parse
from custom_fp.rounding import Rule
from custom_fp.vectors.__main__ import header, write_csv
from custom_fp.vectors.answers import codes_in, rows, shape_of
from custom_fp.vectors.inputs import inputs

from cpdrun.cli import main


def floats(words):
    return torch.tensor([int(word, 16) for word in words]).to(torch.int32).view(torch.float32)


def bits(x):
    return (x.reshape(-1).view(torch.int32).long() & 0xFFFFFFFF).tolist()


def pattern(value):
    return struct.unpack("<I", struct.pack("<f", value))[0]


@pytest.mark.parametrize(
    ("name", "rounding", "overflow"),
    [
        ("e4m3fn", "nearest_even", "infinity"),
        ("e3m0", "nearest_even", "saturate"),
        ("e5m2fnuz", "stochastic_8", "infinity"),
        ("ue4m3", "toward_negative", "infinity"),
        ("e2m9", "to_odd", "propagate"),
        ("fp32", "toward_zero", "infinity"),
        ("posit8", "nearest_even", "infinity"),
        ("p3109_k6p3se", "stochastic", "propagate"),
        ("hif8", "nearest_away", "infinity"),
    ],
)
def test_kernels_agree_with_the_codes_and_values(name, rounding, overflow):
    fmt, rule = parse(name), Rule(rounding, overflow, 5)
    known = list(rows(fmt, [rule], count=64, seed=7))
    x = floats([row["input"] for row in known])
    words = {"rounding": rounding, "overflow": overflow, "seed": 5}
    values = [int(row["value"], 16) for row in known]
    assert values == bits(custom_fp.quantize(x, fmt, **words))
    codes = [int(row["code"], 16) for row in known]
    assert codes == codes_in(custom_fp.pack(x, fmt, **words), len(known), fmt.code_bits)
    assert ("random" in known[0]) == rounding.startswith("stochastic")
    assert len({row["input"] for row in known}) == len(known)
    assert sum(row["case"] == "random" for row in known) in range(60, 65)
    assert known == list(rows(fmt, [rule], count=64, seed=7))
    assert known != list(rows(fmt, [rule], count=64, seed=8))


@pytest.mark.parametrize("name", ["e4m3fn", "e3m0", "e1m2", "e4m6", "posit8", "lns4_3"])
def test_every_value_and_boundary_is_included_with_its_neighbors(name):
    fmt = parse(name)
    asked = inputs(fmt, [])
    nearest = custom_fp.quantize(floats([f"{x:08x}" for x in asked]), fmt).tolist()
    becomes = dict(zip(asked, map(repr, nearest), strict=True))
    ordered = sorted(x for x in asked if x <= 0x7F800000)
    positive = sorted({v for v in fmt.code_values() if 0 <= v < float("inf")})
    for low, high in pairwise(positive):
        between = ordered[bisect_left(ordered, pattern(low)) : bisect_right(ordered, pattern(high))]
        ends = {becomes[x] for x in between}
        assert {repr(low), repr(high)} <= ends, (low, high)
        # the last that becomes low and the first that becomes high are neighbours: nothing between is left open
        last = max(x for x in between if becomes[x] == repr(low))
        assert becomes[last + 1] == repr(high), (low, high)
        assert {pattern(low) + 1, pattern(high) - 1} <= asked.keys()


@pytest.mark.parametrize(
    ("name", "rounding"),
    [
        ("mxfp4", "nearest_even"),
        ("mxfp6_e2m3", "stochastic_4"),
        ("nf4", "nearest_even"),
        ("int4_affine_b32", "toward_zero"),
        ("int4_column", "nearest_even"),
        ("nvfp4_4x4_4over6", "nearest_even"),
    ],
)
def test_kernels_agree_with_the_blocks(name, rounding):
    fmt, shape = parse(name), shape_of(parse(name))
    rule = {"rounding": rounding, "seed": 3}
    known = [*islice(rows(fmt, [Rule(**rule)], count=4, seed=1), 0, None, 5)]
    assert {row["case"] for row in known} > {"boundaries of elements", "boundary of a scale", "random"}
    parts = ("tensor_scale", "scales", "zero_points", "codes")
    widths = (32, fmt.scale_bits, 8, fmt.code_bits)
    for row in known:
        x = floats(row["inputs"]).view(shape)
        assert [int(v, 16) for v in row["values"]] == bits(custom_fp.quantize(x, fmt, **rule)), row
        data, at = custom_fp.pack(x, fmt, **rule), 0
        for part, width in zip(parts, widths, strict=True):
            codes = [int(code, 16) for code in row.get(part, [])]
            end = at + -(-len(codes) * width // 8)
            assert codes == codes_in(data[at:end], len(codes), width), (part, row)
            at = end
        assert ("random" in row) == rounding.startswith("stochastic")


def test_a_file_has_its_definition_and_its_vectors(tmp_path, capsys):
    file = tmp_path / "e2m1fn.jsonl"
    words = ["e2m1fn", "--rounding", "nearest_even,toward_zero", "--count", "3", "--out", str(file)]
    assert main(["formats", "--vectors", *words]) == 0
    head, *known = map(json.loads, file.read_text().splitlines())
    assert head["format"]["name"] == "e2m1fn" and "LLVM" in head["definition"] and head["boundaries"] == "all"
    assert head["made_by"].startswith("cpdrun ")
    assert head["command"].startswith("cpdrun formats --vectors e2m1fn ")
    assert str(file) in capsys.readouterr().out
    fmt = parse("e2m1fn")
    expected = rows(fmt, [Rule(), Rule("toward_zero")], count=3, seed=0)
    assert known == list(expected)
    by_hand = {row["input"]: (row["code"], row["value"]) for row in known[: len(known) // 2]}
    assert by_hand["40a00000"] == ("6", "40800000"), "5, a tie: to 4, whose code is even"
    assert by_hand["40a00001"] == ("7", "40c00000") and by_hand["80000000"] == ("8", "80000000")


def test_a_csv_file_is_a_table_after_its_header():
    fmt, rule = parse("mxfp4"), Rule()
    request = {
        "roundings": ["nearest_even"],
        "overflows": ["infinity"],
        "seed": 0,
        "made_by": "x",
        "command": "y",
    }
    known = list(rows(fmt, [rule], count=1, seed=0))[-2:]
    text = io.StringIO()
    write_csv(text, header(fmt, request), iter(known))
    lines = text.getvalue().splitlines()
    head = json.loads("".join(line[2:] for line in lines if line.startswith("# ")))
    assert head["shape"] == [32] and head["format"]["scales"]["format"] == "e8m0"
    table = list(csv.DictReader(line for line in lines if not line.startswith("# ")))
    assert [row["codes"].split() for row in table] == [row["codes"] for row in known]
    assert [row["case"] for row in table] == ["boundary of a scale", "random"] and table[0]["random"] == ""


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["nvfp5"], "unknown format 'nvfp5' (did you mean 'nvfp4'?)"),
        (["e4m3", "--rounding", "up"], "--rounding: rounding is 'up'; allowed: nearest_even, "),
        (
            ["e4m3", "--overflow", "wrap"],
            "--overflow: overflow is 'wrap'; allowed: infinity, saturate, propagate",
        ),
        (["nf4", "--rounding", "stochastic"], "--rounding stochastic: nf4 rounds to nearest only"),
        (["nvfp4", "--overflow", "saturate"], "--overflow: elements of nvfp4 stop at their largest value"),
        (["e4m3", "--out", "x.txt"], "--out x.txt: must end in .jsonl or .csv"),
        (["e4m3", "--out", "no/x.csv"], "--out no/x.csv: there is no folder no"),
        (["e4m3", "--rounding", ","], "--rounding names nothing"),
    ],
)
def test_a_mistake_is_one_line(capsys, tmp_path, monkeypatch, words, line):
    monkeypatch.chdir(tmp_path)
    assert main(["formats", "--vectors", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {line}") and said.count("\n") == 1
    assert not list(tmp_path.iterdir())
