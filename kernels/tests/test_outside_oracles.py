"""Scalar formats against gfloat and ml_dtypes in every family and rounding, where their rules and ours coincide.

All three keep subnormals and overflow after rounding. They differ at m = 0, where gfloat breaks ties by the code's last
bit, and gfloat's largest value of an IEEE format with one exponent bit is a normal one, which does not exist. The
comparisons with rational arithmetic (test_quantize.py) cover both.
"""

import math

import custom_fp
import numpy as np
import oracle
import pytest
import torch
from custom_fp.formats.scalar import Format
from tensors import beside, bit_patterns, normal, same_bits

gfloat = pytest.importorskip("gfloat", reason="gfloat is an optional oracle")
ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is an optional oracle")
formats = pytest.importorskip("gfloat.formats")

GFLOAT = {
    "e5m2": formats.format_info_ocp_e5m2,
    "e4m3fn": formats.format_info_ocp_e4m3,
    "e3m2fn": formats.format_info_ocp_e3m2,
    "e2m3fn": formats.format_info_ocp_e2m3,
    "e2m1fn": formats.format_info_ocp_e2m1,
    "fp16": formats.format_info_binary16,
    "bf16": formats.format_info_bfloat16,
}
ML_DTYPES = {
    **{name: getattr(ml_dtypes, f"float8_{name}") for name in ("e5m2", "e4m3", "e3m4", "e4m3fn")},
    **{name: getattr(ml_dtypes, f"float8_{name}") for name in ("e4m3fnuz", "e5m2fnuz", "e4m3b11fnuz")},
    **{
        "e3m2fn": ml_dtypes.float6_e3m2fn,
        "e2m3fn": ml_dtypes.float6_e2m3fn,
        "e2m1fn": ml_dtypes.float4_e2m1fn,
    },
    "bf16": ml_dtypes.bfloat16,
}
MODES = {
    "nearest_even": gfloat.RoundMode.TiesToEven,
    "nearest_away": gfloat.RoundMode.TiesToAway,
    "toward_zero": gfloat.RoundMode.TowardZero,
    "toward_positive": gfloat.RoundMode.TowardPositive,
    "toward_negative": gfloat.RoundMode.TowardNegative,
}
HALVES = torch.arange(1 << 16).to(torch.int32).to(torch.int16).view(torch.float16).float()
NEW = [("fnuz", True), ("fo", True), ("ieee", True), ("fn", False), ("fo", False), ("ieee", False)]
EIGHT = [
    fmt
    for family, is_signed in NEW
    for fmt in (Format(e, 8 - is_signed - e, family=family, is_signed=is_signed) for e in range(1, 8))
    if fmt.mantissa_bits and not (fmt.has_inf and fmt.exponent_bits == 1)
]


def info_of(fmt):
    return gfloat.FormatInfo(
        fmt.name,
        fmt.bits,
        fmt.mantissa_bits + 1,
        bias=fmt.bias,
        is_signed=fmt.is_signed,
        domain=gfloat.Domain.Extended if fmt.has_inf else gfloat.Domain.Finite,
        has_nz=fmt.has_negative_zero,
        num_high_nans=2**fmt.mantissa_bits - 1 if fmt.has_inf else int(fmt.family == "fn"),
        has_subnormals=True,
        is_twos_complement=False,
    )


def boundaries(fmt):
    """Return finite values, midpoints and their neighbors, of both signs, up to two steps past the largest value."""
    values = torch.tensor([v for v in fmt.values() if math.isfinite(v) and v >= 0], dtype=torch.float64)
    step = values[-1] - values[-2]
    values = torch.cat([values, values[-1:] + step, values[-1:] + 2 * step])
    x = beside(torch.cat([values, (values[1:] + values[:-1]) / 2, torch.tensor([math.inf])]).float())
    return torch.cat([x, -x])


def same(a, b):
    return torch.equal(a.isnan(), b.isnan()) and same_bits(a.nan_to_num(7), b.nan_to_num(7))


def compare(fmt, info, x):
    """gfloat gives negative values to formats without a sign, and has no overflow for formats without NaN."""
    x = x[~x.isnan() & ((x >= 0) | fmt.is_signed)]
    for mode, sat in ((mode, sat) for mode in MODES for sat in (False, True) if sat or fmt.has_nan):
        theirs = gfloat.round_ndarray(info, x.double().numpy(), MODES[mode], sat)
        ours = custom_fp.quantize(x, fmt, rounding=mode, overflow="saturate" if sat else "infinity")
        assert same(ours, torch.from_numpy(theirs).float()), (mode, sat)


@pytest.mark.parametrize("fmt", EIGHT, ids=str)
def test_formats_of_eight_bits_equal_gfloat_in_every_rounding(fmt):
    info = info_of(fmt)
    compare(fmt, info, torch.cat([HALVES, boundaries(fmt)]))
    codes = torch.arange(256).to(torch.uint8)
    values = custom_fp.decode(codes, fmt)
    assert same(values, torch.tensor([gfloat.decode_float(info, code).fval for code in range(256)]))
    assert same(values, torch.tensor(fmt.values()))
    again, is_nan = custom_fp.encode(values, fmt), values.isnan()
    assert torch.equal(again[~is_nan], codes[~is_nan])
    assert not is_nan.any() or (again[is_nan] == fmt.nan_code).all()
    assert is_nan.any() == fmt.has_nan and values.isinf().any() == fmt.has_inf
    assert torch.signbit(values[values == 0]).any() == fmt.has_negative_zero
    assert same(custom_fp.unpack(custom_fp.pack(values, fmt), fmt, 256), values)


@pytest.mark.parametrize("name", ["e5m10fnuz", "e6m9fo", "ue5m11", "ue7m9fn", "e8m7"])
def test_formats_of_sixteen_bits_equal_gfloat_in_every_rounding(name):
    fmt = Format.parse(name)
    compare(fmt, info_of(fmt), torch.cat([bit_patterns(10_000), boundaries(fmt)[::37]]))


@pytest.mark.parametrize("name", GFLOAT)
def test_standard_formats_equal_gfloat(name):
    fmt, info = Format.parse(name), GFLOAT[name]
    ours = custom_fp.decode(torch.arange(2**fmt.bits), fmt).tolist()
    for code in range(0, 2**fmt.bits, max(1, 2**fmt.bits >> 10)):
        assert oracle.same(ours[code], gfloat.decode_float(info, code).fval), code
    compare(fmt, info, torch.cat([normal(500) * scale for scale in (fmt.max, 1, 2.0**fmt.emin)]))


@pytest.mark.parametrize("name", ML_DTYPES)
def test_rounding_and_codes_equal_ml_dtypes(name):
    fmt, dtype = Format.parse(name), ML_DTYPES[name]
    x = torch.cat([HALVES, boundaries(fmt)[:: max(1, 2**fmt.bits >> 9)]])
    if not fmt.has_nan:  # ml_dtypes saturates these formats, and has another NaN
        x = x[x.abs() <= fmt.max]
    if not fmt.has_inf:
        x = x[x.isfinite()]
    theirs = x.numpy().astype(dtype)
    assert same(custom_fp.quantize(x, fmt), torch.from_numpy(theirs.astype("float32")))
    if name.endswith("fnuz"):
        assert torch.equal(custom_fp.encode(x, fmt), torch.from_numpy(theirs.view(np.uint8)))


@pytest.mark.parametrize("name", ["e2m1fn", "e2m3fn", "e3m2fn"])
def test_nan_in_a_format_without_nan_is_the_largest_value_and_zero_in_ml_dtypes(name):
    """As the README's table says. So NaN has to be counted before it is rounded."""
    x = torch.tensor([math.nan])
    assert custom_fp.quantize(x, name).item() == Format.parse(name).max
    theirs = x.numpy().astype(ML_DTYPES[name]).astype("float32").item()
    assert oracle.same(theirs, -0.0)


@pytest.mark.parametrize("name", ["e5m2", "e4m3fn", "fp16", "bf16"])
def test_torchs_conversions(name):
    """Equal but for e4m3fn past its largest value: NaN in older versions of torch, the largest value from 2.15 on."""
    dtypes = {"fp16": torch.float16, "bf16": torch.bfloat16}
    dtype = dtypes.get(name) or getattr(torch, f"float8_{name}")
    ends = torch.tensor([torch.inf, -torch.inf, torch.nan])
    x = torch.cat([bit_patterns(1 << 18), torch.linspace(-1000, 1000, 20_001), ends])
    theirs = x.to(dtype).float()
    saturates = name == "e4m3fn" and torch.tensor(1e9).to(dtype).isfinite().item()
    ours = custom_fp.quantize(x, name, overflow="saturate" if saturates else "infinity")
    assert torch.equal(ours.nan_to_num(7e37), theirs.nan_to_num(7e37))
    assert torch.equal(ours.isnan(), theirs.isnan())
    if name == "e4m3fn":
        past = x.abs() > 464
        assert custom_fp.quantize(x, name)[past].isnan().all()
        assert torch.equal(theirs[past].isnan(), x[past].isnan()) is saturates
