"""Formats of all kinds: names, properties and tables, and a user-defined kind."""

import itertools
import json
import math
import pickle
import subprocess
import sys
from fractions import Fraction

import custom_fp
import oracle
import pytest
import torch
from custom_fp import Affine, BlockFormat, Codebook, Scale, ScaledFormat, parse
from custom_fp.formats import names
from custom_fp.formats.names import KINDS, read, spelled
from custom_fp.formats.scalar import ALIASES, Format


def all_formats(families=("ieee", "fn", "fo", "fnuz"), signs=(True, False)):
    """Yield every scalar format with the default bias."""
    for family, is_signed, e, m in itertools.product(families, signs, range(1, 9), range(24)):
        try:
            yield Format(e, m, family=family, is_signed=is_signed)
        except ValueError:
            assert (e == 8 and family != "ieee") or (family == "fnuz" and not is_signed)


# ---- names

CANONICAL = {
    **{name: alias for alias, name in ALIASES.items()},
    "ue4m3": "ue4m3fn",
    "e2m1fo": "e2m1fn",
    "float8_e4m3fn": "e4m3fn",
    "float8_e5m2": "e5m2",
    "float8_e4m3fnuz": "e4m3fnuz",
    "float8_e5m2fnuz": "e5m2fnuz",
    "binary8p3se": "p3109_k8p3se",
    "nvfp4_b16": "nvfp4",
    "nvfp4_4over6_b32": "nvfp4_b32_4over6",
    "nvfp4_16x16": "nvfp4_2d",
    "nvfp4_ue4m3": "nvfp4",
    "nvfp4_e8m0_1level": "nvfp4_e8m0",
    "fp8_1x128": "fp8_b128",
    "fp8_128x128": "fp8_block128",
    "int8_row": "int8_channel",
    "int8_affine_tensor": "int8_affine",
    "int8_affine_row": "int8_affine_channel",
    "mxfp4_e2m1": "mxfp4",
    "mxe2m1fn": "mxfp4",
    "mxe4m3fn": "mxfp8_e4m3",
    "mxfp8_e5m2_rceil_b16": "mxfp8_e5m2_b16_rceil",
    "mxfp4_ue5m3_amax": "mxfp4_ue5m3",
    "e4m3fn_b32": "fp8_b32",
    "posit8_e8m0_b32": "posit8_b32_e8m0",
    "nf4_fp32_b32": "nf4_b32",
}
ITS_OWN = [
    *("e4m3b11", "e4m3b11fn", "e2m1b-20", "posit8", "posit16es1", "takum12", "lns4_3", "hif8", "nvint4"),
    *("nf4_b32_e8m0_floor", "mxlns4_3_b16", "mxposit8_fp32", "dynamic_tree_b64", "int2_affine_8x16"),
]
BITS = {
    **{"nvfp4": 4.5, "nvfp4_2d": 4 + 8 / 256, "mxfp4": 4.25, "mxint4": 4.25, "nvint4": 4.5, "nvfp4_fp32": 6},
    **{"fp8_block128": 8 + 32 / 128**2, "fp8_b128": 8.25, "fp8_tensor": 8, "fp8_row": 8, "int8_channel": 8},
    **{"mxfp8_e4m3": 8.25, "mxfp6_e3m2": 6.25, "mxint8": 8.25, "nf4_b64": 4.5, "dynamic_tree_b64": 8.5},
    **{"int4_affine_b32": 4 + 40 / 32, "int8_affine": 8, "posit16es1": 16, "hif8": 8},
}


def test_every_scalar_format_has_a_name_that_parses_back():
    formats = set(all_formats())
    for fmt in formats:
        assert Format.parse(fmt.name) == fmt == Format.parse(fmt) == read(spelled(fmt))
        assert str(fmt) == fmt.name
    assert len({fmt.name for fmt in formats}) == len({fmt.spec for fmt in formats}) == len(formats)
    assert len(set(all_formats(("ieee", "fn"), (True,)))) == 2 * 8 * 24 - 23


def test_each_format_has_one_name_and_a_text_that_any_process_reads():
    for typed, name in CANONICAL.items():
        assert parse(typed) == parse(name) and parse(typed).name == str(parse(name)) == name
    for name in (*ITS_OWN, *CANONICAL.values(), *BITS):
        assert parse(name).name == name and read(spelled(parse(name))) == parse(name) == parse(parse(name))
    own = [
        BlockFormat("mine", "int4", (3, 5), "ue5m3", tensor_scale="fp32"),
        ScaledFormat("mine", "posit6", Scale("ue5m3", (4, 4), has_tensor_scale=True)),
        Codebook("ternary", (-1.0, 0.0, 0.25, 1.0), block=16),
        Affine("mine", 6, (2, 3)),
    ]
    for fmt in own:
        assert read(spelled(fmt)) == fmt and hash(read(spelled(fmt))) == hash(fmt)
    assert "_hash" in vars(own[0]) and "_hash" not in vars(pickle.loads(pickle.dumps(own[0])))
    assert own[1].element == parse("posit6") and own[1].block == (4, 4) and own[1].scale.rule == "amax"
    x = torch.randn(8, 8)
    assert torch.equal(custom_fp.quantize(x, own[1]), own[1].quantize(x))


def test_texts_of_former_kinds_are_read():
    former = [
        ["BlockFormat", {"name": "a", "element": None, "block": [3, 5], "scale": "e8m0", "rule": "floor"}],
        ["Codebook", {"name": "b", "values": [-1.0, 0.0, 1.0], "block": None}],
        ["Affine", {"name": "c", "bits_of_code": 3, "block": "row"}],
    ]
    now = [BlockFormat("a", None, (3, 5)), Codebook("b", (-1.0, 0.0, 1.0)), Affine("c", 3, "row")]
    assert [read(json.dumps(each)) for each in former] == now


def test_bits_include_the_share_of_a_scale():
    assert {name: parse(name).bits for name in BITS} == BITS


def test_a_name_of_a_module_is_recognized_without_importing_it(tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = list(sys.path)
    assert names.is_own("evil.F") and names.is_own("antigravity.x")
    assert not any(names.is_own(name) for name in ("e4m3", "fp32", "mxfp4", None, 8))
    assert sys.path == before and "antigravity" not in sys.modules
    with pytest.raises(ValueError, match=r"'evil.F': importing its module raised SystemExit: ran"):
        names.parse("evil.F")


def test_formats_cost_no_torch():
    code = "import sys, custom_fp as c; c.Format.parse('e5m2'); c.parse('mxfp4'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", f"{code}; c.testing.assert_matmul"], check=True)


# ---- properties


def test_properties_follow_from_the_fields():
    for fmt in all_formats(("ieee", "fn"), (True,)):
        if fmt.bits > 12:
            continue
        values = oracle.finite_magnitudes(fmt)
        normal = [value for value in values if value >= Fraction(2) ** fmt.emin]
        subnormal = [value for value in values if 0 < value < Fraction(2) ** fmt.emin]
        assert fmt.max == values[-1] and len(values) == fmt.max_code + 1
        assert fmt.smallest_normal == (float(normal[0]) if normal else None)
        assert fmt.smallest_subnormal == (float(subnormal[0]) if subnormal else None)
        assert fmt.epsilon == 2.0**-fmt.mantissa_bits
        assert fmt.emax == (math.floor(math.log2(fmt.max)) if fmt.max else fmt.emin - 1)


@pytest.mark.parametrize(
    ("name", "bits", "largest", "smallest", "has_inf", "has_nan"),
    [  # the OCP specifications, IEEE 754, ml_dtypes, PTX ISA (ue4m3), Direct3D 11 (R11G11B10: ue5m6)
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
        ("e4m3fnuz", 8, 240.0, 2.0**-10, False, True),
        ("e5m2fnuz", 8, 57344.0, 2.0**-17, False, True),
        ("e4m3b11fnuz", 8, 30.0, 2.0**-13, False, True),
        ("e4m3fo", 8, 480.0, 2.0**-9, False, False),
        ("e4m3b9fo", 8, 120.0, 2.0**-11, False, False),
        ("ue4m3", 7, 448.0, 2.0**-9, False, True),
        ("ue5m3", 8, 114688.0, 2.0**-17, False, True),
        ("ue4m3b7", 7, 240.0, 2.0**-9, True, True),
        ("ue5m6", 11, 65024.0, 2.0**-20, True, True),
        ("ue8m0fn", 8, 2.0**127, None, False, True),
        ("ue1m0fo", 1, 2.0, None, False, False),
    ],
)
def test_known_formats(name, bits, largest, smallest, has_inf, has_nan):
    fmt = parse(name)
    assert (fmt.bits, fmt.max, fmt.smallest_subnormal) == (bits, largest, smallest)
    assert (fmt.has_inf, fmt.has_nan) == (has_inf, has_nan)


def test_table_of_values():
    for name in ("e5m2", "e4m3fn", "e3m0", "e2m1fn", "e1m1", "fp16"):
        fmt = Format.parse(name)
        table, half = fmt.values(), 2 ** (fmt.bits - 1)
        finite = [float(value) for value in oracle.finite_magnitudes(fmt)]
        assert table[: len(finite)] == finite and len(table) == 2 * half
        assert all(oracle.same(-a, b) for a, b in zip(table[:half], table[half:], strict=True))
        assert sum(map(math.isinf, table)) == 2 * fmt.has_inf
        assert (sum(map(math.isnan, table)) > 0) == fmt.has_nan


def test_formats_are_values():
    assert len({Format.parse("fp16"), Format(5, 10), Format(5, 10, 15)}) == 1
    with pytest.raises(AttributeError):
        Format(5, 2).bias = 3
    assert "float8_e4m3fn" in parse("float8_e4m3fn").synonyms


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
        ("dynamic_map_unsigned", (True, "tensor", 8, 1, 108, False, True, False, False, False, None)),
        (
            "int2_affine_8x16",
            (True, (8, 16), 2 + 40 / 128, None, None, False, True, False, True, False, None),
        ),
    ],
)
def test_every_kind_states_the_same_facts(name, facts):
    fmt = parse(name)
    sizes = (None, None) if fmt.has_tiles else (fmt.scales(100), fmt.packed_size(100))
    codes = fmt.has_inf, fmt.has_nan, fmt.has_negative_zero, fmt.is_signed
    assert (fmt.has_scales, fmt.block, fmt.bits, *sizes, *codes, fmt.is_fp32, fmt.exponent_bits) == facts


@pytest.mark.parametrize("name", ["e4m3fn", "e2m1fn", "mxfp4", "mxint8", "linear", "mantissa_b64"])
def test_a_format_keeps_what_it_says_and_its_methods_are_the_operators(name):
    fmt, x = parse(name), torch.tensor([-0.0, 0.5, -1.0, 0.25])
    rounded = fmt.quantize(x)
    assert torch.equal(rounded, custom_fp.quantize(x, name))
    assert torch.equal(fmt.decode(fmt.encode(x)), rounded)
    assert torch.equal(fmt.unpack(fmt.pack(x), x.shape), rounded)
    assert torch.signbit(rounded[0]).item() == fmt.has_negative_zero
    assert (rounded[2] < 0).item() == fmt.is_signed
    for value, kept in ((math.inf, fmt.has_inf), (math.nan, fmt.has_nan)):
        first = fmt.quantize(torch.tensor([value, 1.0]))[0]
        assert oracle.same(first.item(), value) == kept


def test_kinds_are_registered():
    assert "Tabulated" not in KINDS and {"P3109", "Posit", "Takum", "Logarithmic", "HiFloat8"} <= set(KINDS)


# ---- a user-defined kind

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
    """Operators accept a new kind under all transforms. Those without a function for it raise ValueError."""
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
