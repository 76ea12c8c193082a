"""`cpdrun formats`: the list of kinds, the facts and values of a format, and error messages."""

import json
import math
import subprocess
import sys

import pytest
from custom_fp.formats.names import KINDS, parse
from custom_fp.properties import facts, listed

from cpdrun.cli import main


def said(capsys, *words):
    assert main(["formats", *words]) == 0
    return capsys.readouterr().out


def test_every_kind_is_listed_and_every_listed_name_is_a_format(capsys):
    shown = json.loads(said(capsys, "--json"))
    assert [each["kind"] for each in shown["kinds"]] == list(KINDS)
    assert all(each["for"] and each["examples"] for each in shown["kinds"])
    assert [each["name"] for each in shown["formats"]] == [fmt.name for fmt in listed()]
    assert len({each["name"] for each in shown["formats"]}) == len(shown["formats"])
    for each in shown["formats"]:
        fmt = parse(each["name"])
        assert each["bits"] == fmt.bits and each["has_inf"] == fmt.has_inf, each["name"]
        assert all(parse(name) == fmt for name in each["synonyms"]), each["name"]
        assert 0 < each["smallest"] <= each["max"] and each["emax"] <= math.log2(each["max"]), each["name"]
    text = said(capsys)
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.split()}
    assert rows["e5m2"] == ["8", "57344", "2^-16", "0.25", "15", "yes", "yes", "yes"]
    assert rows["e4m3fnuz"] == ["8", "240", "2^-10", "0.125", "7", "-", "yes", "-"]
    assert rows["bf16"][:2] == ["16", "3.38953e+38"] and rows["nvfp4"][0] == "4.5"


def test_values_and_special_codes_are_those_of_decode():
    import custom_fp
    import torch

    for fmt in listed():
        values = fmt.code_values()
        if fmt.has_scales or values is None or fmt.code_bits > 12:
            continue
        decoded = custom_fp.decode(torch.arange(len(values)), fmt)
        assert torch.equal(torch.tensor(values).nan_to_num(1e38), decoded.nan_to_num(1e38)), fmt
        known, special = facts(fmt), {"zero": 0.0, "-zero": -0.0, "inf": math.inf, "-inf": -math.inf}
        written = [what for what in special if what in known.codes]
        assert ("inf" in written) == fmt.has_inf and ("-zero" in written) == fmt.has_negative_zero, fmt
        for what in [*written, *(["nan"] if fmt.has_nan else [])]:
            x = torch.tensor([special.get(what, math.nan)])
            assert custom_fp.encode(x, fmt).item() == known.codes[what], (fmt, what)
        assert known.nans == int(decoded.isnan().sum()), fmt


def test_element_values_of_block_formats_are_those_of_decode():
    import custom_fp
    import torch

    one = {"mxfp4": 127, "mxint8": 127, "nvint4": 0x38}  # the code of a scale of 1, in e8m0 and e4m3fn
    for name in ("mxfp4", "mxint8", "nvint4", "nf4", "fp8_tensor"):
        fmt = parse(name)
        values = torch.tensor(fmt.code_values())
        count, codes = fmt.scales(len(values)), torch.arange(len(values)).to(torch.uint8)
        scales = torch.full((count,), one[name], dtype=torch.uint8) if name in one else torch.ones(count)
        of_tensor = (torch.ones(()),) if name == "nvint4" else ()
        finite = ~values.isnan()
        assert torch.equal(custom_fp.decode((codes, scales, *of_tensor), fmt)[finite], values[finite]), name


def test_a_format_is_shown_with_its_values_scales_and_uses(capsys):
    text = said(capsys, "e4m3fn")
    assert "8: 1 sign, 4 exponent (bias 7), 3 mantissa" in text and "largest             448.0" in text
    assert "0 00, -0 80, NaN 7f (2 are read as NaN)" in text
    line = next(line for line in text.splitlines() if line.startswith("0x78"))
    assert line.split()[1:] == ["256", "288", "320", "352", "384", "416", "448", "nan"]
    shown = json.loads(said(capsys, "nvfp4", "--json"))
    scales = {"block": 16, "bits": 8, "format": "e4m3fn", "rule": "amax", "element": "e2m1fn"}
    assert shown["scales"] == scales | {"of_tensor": True, "zero_point": False}
    assert shown["values"][:8] == [0, 0.5, 1, 1.5, 2, 3, 4, 6] and "recipe/nvfp4" in shown["used_in"]
    assert "IEEE-style (maximum 240); hardware FP8 is e4m3fn (448)" in said(capsys, "e4m3")
    assert "hardware FP8" not in said(capsys, "e4m3fn")
    bf16 = said(capsys, "bf16")
    assert "e8m7" in bf16 and "bfloat16" in bf16 and "recipe: bf16" in bf16 and "0x" not in bf16
    assert "codes               0 0000, -0 8000, inf 7f80, NaN 7fc0, -inf ff80 (254 are read" in bf16
    assert len([x for x in said(capsys, "e5m3", "--values").splitlines() if x.startswith("0x")]) == 64
    assert f"-22 .. 15, precise up to {parse('hif8').emax}" in said(capsys, "hif8")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["e4m33"], "error: unknown format 'e4m33' (did you mean 'e4m3'?)"),
        (["E4M3"], "error: unknown format 'E4M3' (did you mean 'e4m3fn'?)"),
        (["fp8"], "error: unknown format 'fp8' (did you mean e4m3fn (hardware FP8, maximum 448) or e5m2?)"),
        (["nvfp5"], "error: unknown format 'nvfp5' (did you mean 'nvfp4'?)"),
        (["fp32", "--values"], "error: --values: fp32 has 32 bits; tables of values stop at 16 bits"),
        (["--values"], "error: --values needs the name of a format: cpdrun formats NAME --values"),
    ],
)
def test_a_mistake_is_one_line(capsys, words, line):
    assert main(["formats", *words]) == 2
    assert capsys.readouterr().err == line + "\n"


def test_the_command_imports_neither_torch_nor_numpy():
    code = "import sys; from cpdrun.cli import main; main(['formats', 'posit8', '--json']); main(['formats'])"
    code += "; assert not {'torch', 'numpy'} & sys.modules.keys()"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
