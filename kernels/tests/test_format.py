"""`Format`: names, properties and tables, compared with their definitions in rational arithmetic."""

import math
import re
import subprocess
import sys
from fractions import Fraction

import oracle
import pytest
from custom_fp.formats import names
from custom_fp.formats.scalar import ALIASES, Format


def all_formats():
    """Every format of default bias that there is."""
    for family in ("ieee", "fn"):
        for e in range(1, 9):
            for m in range(24):
                try:
                    yield Format(e, m, family=family)
                except ValueError:
                    assert family == "fn" and e == 8 and m > 0  # would reach 2**128


def test_every_format_prints_a_name_that_parses_back():
    formats = list(all_formats())
    assert len(formats) == 2 * 8 * 24 - 23
    for fmt in formats:
        assert Format.parse(fmt.name) == fmt == Format.parse(fmt)
        assert str(fmt) == fmt.name
    for name in ("e4m3b11", "e4m3b11fn", "e2m1b-20"):
        assert Format.parse(name).name == name


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_aliases(alias, name):
    assert Format.parse(alias) == Format.parse(name)
    assert Format.parse(name).name == alias == str(names.parse(name))


def test_properties_follow_from_the_fields():
    for fmt in all_formats():
        if fmt.bits > 12:
            continue
        values = oracle.finite_magnitudes(fmt)
        assert fmt.max == values[-1]
        assert len(values) == fmt.max_code + 1
        positive = [value for value in values if value > 0]
        normal = [value for value in positive if value >= Fraction(2) ** fmt.emin]
        subnormal = [value for value in positive if value < Fraction(2) ** fmt.emin]
        assert fmt.smallest_normal == (float(normal[0]) if normal else None)
        assert fmt.smallest_subnormal == (float(subnormal[0]) if subnormal else None)
        assert fmt.epsilon == 2.0**-fmt.mantissa_bits
        if positive:
            assert fmt.emax == math.floor(math.log2(fmt.max))


@pytest.mark.parametrize(
    ("name", "bits", "largest", "smallest", "has_inf", "has_nan"),
    [  # from the OCP specifications and IEEE 754
        ("e5m2", 8, 57344.0, 2.0**-16, True, True),
        ("e4m3fn", 8, 448.0, 2.0**-9, False, True),
        ("e4m3", 8, 240.0, 2.0**-9, True, True),
        ("e3m2fn", 6, 28.0, 0.0625, False, False),
        ("e2m3fn", 6, 7.5, 0.125, False, False),
        ("e2m1fn", 4, 6.0, 0.5, False, False),
        ("fp16", 16, 65504.0, 2.0**-24, True, True),
        ("bf16", 16, 3.3895313892515355e38, 2.0**-133, True, True),
        ("fp32", 32, 3.4028234663852886e38, 2.0**-149, True, True),
        ("e1m2", 4, 1.5, 0.5, True, True),
    ],
)
def test_known_formats(name, bits, largest, smallest, has_inf, has_nan):
    fmt = Format.parse(name)
    assert (fmt.bits, fmt.max, fmt.smallest_subnormal) == (bits, largest, smallest)
    assert (fmt.has_inf, fmt.has_nan) == (has_inf, has_nan)


def test_formats_without_a_value_but_zero():
    for name in ("e1m0", "e1m0fn"):
        fmt = Format.parse(name)
        assert fmt.max == 0 and fmt.emax == fmt.emin - 1
        assert fmt.smallest_normal is None and fmt.smallest_subnormal is None


def test_table_of_values():
    for name in ("e5m2", "e4m3fn", "e3m0", "e2m1fn", "e1m1", "fp16"):
        fmt = Format.parse(name)
        table = fmt.values()
        assert len(table) == 2**fmt.bits
        finite = [float(value) for value in oracle.finite_magnitudes(fmt)]
        half = len(table) // 2
        assert table[: len(finite)] == finite
        assert all(oracle.same(-a, b) for a, b in zip(table[:half], table[half:], strict=True))
        assert sum(map(math.isinf, table)) == 2 * fmt.has_inf
        assert (sum(map(math.isnan, table)) > 0) == fmt.has_nan
    with pytest.raises(ValueError, match="16"):
        Format.parse("fp32").values()


@pytest.mark.parametrize(
    "name", ["", "banana", "e9m2", "e0m2", "e5m24", "e5", "m2", "e5m2x", "E5M2", "e4m3nf", "e8m3fn", None, 8]
)
def test_bad_names_say_what_is_allowed(name):
    with pytest.raises(ValueError, match=r"allowed|fit"):
        Format.parse(name)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("E4M3", "e4m3fn"),
        ("float8_e4m3", "e4m3"),
        ("bfloat16", "bf16"),
        ("torch.bfloat16", "bf16"),
        ("torch.float8_e5m2", "e5m2"),
        ("MXFP4", "mxfp4"),
        ("half", "fp16"),
        ("torch.float8_e4m3fnuz", "e4m3fnuz"),
        ("torch.float8_e4m3fn", "e4m3fn"),
        ("float8_e4m3b11fnuz", "e4m3b11fnuz"),
    ],
)
def test_other_libraries_names_and_capitals_are_told_ours(typed, meant):
    with pytest.raises(ValueError, match=f"unknown format '{typed}' .did you mean '{meant}'"):
        names.parse(typed)
    assert names.parse(meant.split(" or ")[0])


def test_torchs_names_of_float8_are_taken():
    for name, largest in (("e4m3fn", 448), ("e5m2", 57344), ("e4m3fnuz", 240), ("e5m2fnuz", 57344)):
        fmt = names.parse(f"float8_{name}")
        assert fmt.name == name and f"float8_{name}" in fmt.synonyms and fmt.max == largest
    told = re.escape("unknown format 'fp8' (did you mean e4m3fn (hardware FP8, maximum 448) or e5m2?)")
    with pytest.raises(ValueError, match=told):
        names.parse("fp8")


@pytest.mark.parametrize(
    "name", ["banana", "float8_e8m0fnu", "e4m3uz", None, 8, ["e4m3", "e5m2"], {"e4m3": 1}]
)
def test_an_unknown_name_gets_a_short_line(name):
    with pytest.raises(ValueError, match="allowed: ") as raised:
        names.parse(name)
    assert "did you mean" not in str(raised.value) and len(str(raised.value)) < 240


def test_whether_a_name_is_of_a_module_is_told_without_importing_it(tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = list(sys.path)
    assert names.is_own("evil.F") and names.is_own("antigravity.x")
    assert not any(names.is_own(name) for name in ("e4m3", "fp32", "mxfp4", None, 8))
    assert sys.path == before and "antigravity" not in sys.modules
    with pytest.raises(ValueError, match=r"'evil.F': importing its module raised SystemExit: ran"):
        names.parse("evil.F")


@pytest.mark.parametrize("width", ["4", 4.0, True, None])
def test_a_width_is_a_whole_number(width):
    with pytest.raises(ValueError, match=r"exponent_bits is .*; it must be a whole number"):
        Format(width, 3)


@pytest.mark.parametrize("bias", [128, -5, 1000])
def test_a_bias_that_leaves_float32_is_refused(bias):
    with pytest.raises(ValueError, match="allowed biases: -1 to 127"):
        Format(7, 2, bias)


def test_formats_are_values():
    assert len({Format.parse("fp16"), Format(5, 10), Format(5, 10, 15)}) == 1
    with pytest.raises(AttributeError):
        Format(5, 2).bias = 3


def test_the_module_costs_no_torch():
    code = "import sys, custom_fp; custom_fp.Format.parse('e5m2'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("name", "facts"),
    [  # has_scales, block, bits, scales of 100 values, bytes of them; inf, NaN, -0, sign; fp32, exponent bits
        ("e4m3fn", (False, 1, 8, 0, 104, False, True, True, True, False, 4)),
        ("fp32", (False, 1, 32, 0, 416, True, True, True, True, True, 8)),
        ("e2m1fn", (False, 1, 4, 0, 52, False, False, True, True, False, 2)),
        ("mxfp4", (True, 32, 4.25, 4, 56, False, True, True, True, False, None)),
        ("mxint8", (True, 32, 8.25, 4, 108, False, True, False, True, False, None)),
        ("linear", (True, "tensor", 8, 1, 108, False, True, False, True, False, None)),
        ("linear_b64", (True, 64, 8.5, 2, 112, False, True, False, True, False, None)),
    ],
)
def test_every_kind_states_the_same_facts(name, facts):
    fmt = names.parse(name)
    counts = fmt.has_scales, fmt.block, fmt.bits, fmt.scales(100), fmt.packed_size(100)
    codes = fmt.has_inf, fmt.has_nan, fmt.has_negative_zero, fmt.is_signed
    assert (*counts, *codes, fmt.is_fp32, fmt.exponent_bits) == facts


@pytest.mark.parametrize("name", ["e4m3fn", "e2m1fn", "mxfp4", "mxint8", "linear", "mantissa_b64"])
def test_a_format_keeps_what_it_says_it_keeps_and_works_as_the_operators_do(name):
    import custom_fp
    import torch

    fmt, x = names.parse(name), torch.tensor([-0.0, 0.5, -1.0, 0.25])
    rounded = fmt.quantize(x)
    assert torch.equal(rounded, custom_fp.quantize(x, name))
    assert torch.equal(fmt.decode(fmt.encode(x)), rounded)
    assert torch.equal(fmt.unpack(fmt.pack(x), x.shape), rounded)
    assert torch.signbit(rounded[0]).item() == fmt.has_negative_zero
    assert (rounded[2] < 0).item() == fmt.is_signed
    for value, kept in ((math.inf, fmt.has_inf), (math.nan, fmt.has_nan)):
        of_it = fmt.quantize(torch.tensor([value, 1.0]))[0]
        assert oracle.same(of_it.item(), value) == kept


OWN_KIND = """
from dataclasses import dataclass
from typing import ClassVar
import torch
from custom_fp import NumberFormat

@dataclass(frozen=True)
class PowerOfTwo(NumberFormat):
    name: str
    bias: int
    LOOKS_LIKE: ClassVar = "pow2"
    BACKENDS: ClassVar = {"any": "powers:arithmetic"}
    code_bits: ClassVar = 8
    exponent_bits: ClassVar = None
    has_inf: ClassVar = False
    has_nan: ClassVar = False
    has_negative_zero: ClassVar = False
    is_signed: ClassVar = False

    @classmethod
    def named(cls, name):
        return None

class arithmetic:
    def encode(x, fmt, out):
        out.copy_((torch.log2(x.abs()).round() + fmt.bias).clamp(0, 255))
    def decode(codes, fmt, out):
        out.copy_(torch.exp2(codes.float() - fmt.bias))
    def quantize(x, fmt, rule, out):
        out.copy_(torch.exp2(torch.log2(x.abs()).round().clamp(-fmt.bias, 255 - fmt.bias)))
    def pack(x, fmt, shift, rule, out):
        arithmetic.encode(x.reshape(-1), fmt, out[: x.numel()])
        out[x.numel() :] = 0
    def unpack(data, fmt, shift, out):
        arithmetic.decode(data[: out.numel()].view(out.shape), fmt, out)

P = PowerOfTwo("powers.P", 127)
UNNAMED = PowerOfTwo("some", 100)
"""


def test_a_new_kind_is_a_class_and_its_arithmetic(tmp_path, monkeypatch):
    """Every operator takes it, under every transform; those that it has no function for say so."""
    import custom_fp
    import torch

    (tmp_path / "powers.py").write_text(OWN_KIND)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    named, x = names.parse("powers.P"), torch.tensor([[0.9, 3.1], [70.0, 0.1]], requires_grad=True)
    for fmt in ("powers.P", named, sys.modules["powers"].UNNAMED):
        rounded = custom_fp.quantize(x, fmt)
        assert rounded.tolist() == [[1.0, 4.0], [64.0, 0.125]]
        (gradient,) = torch.autograd.grad(rounded.sum(), x)
        assert torch.equal(gradient, torch.ones(2, 2))
        assert torch.equal(custom_fp.decode(custom_fp.encode(x, fmt), fmt), rounded)
        assert torch.equal(custom_fp.unpack(custom_fp.pack(x, fmt), fmt, x.shape), rounded)
        assert torch.equal(torch.func.vmap(lambda row, fmt=fmt: custom_fp.quantize(row, fmt))(x), rounded)
        compiled = torch.compile(
            lambda x, fmt=fmt: custom_fp.quantize(x, fmt), fullgraph=True, backend="eager"
        )
        assert torch.equal(compiled(x), rounded)
    with pytest.raises(ValueError, match="accumulate is not defined for a PowerOfTwo; allowed: e"):
        custom_fp.accumulate([x], named)
