"""quantize and decode against gfloat and ml_dtypes, where their rules and ours coincide.

Both libraries and custom_fp round to nearest even, keep subnormals and overflow to infinity or NaN after rounding.
They differ at m = 0, where gfloat breaks ties by the code's last bit; the exact-rational tests cover that.
"""

import math

import custom_fp
import oracle
import pytest
import torch
from custom_fp.formats.scalar import Format

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
    "e5m2": ml_dtypes.float8_e5m2,
    "e4m3": ml_dtypes.float8_e4m3,
    "e3m4": ml_dtypes.float8_e3m4,
    "e4m3fn": ml_dtypes.float8_e4m3fn,
    "e3m2fn": ml_dtypes.float6_e3m2fn,
    "e2m3fn": ml_dtypes.float6_e2m3fn,
    "e2m1fn": ml_dtypes.float4_e2m1fn,
    "bf16": ml_dtypes.bfloat16,
}


@pytest.mark.parametrize("name", GFLOAT)
def test_values_equal_gfloats(name):
    fmt, info = Format.parse(name), GFLOAT[name]
    codes = torch.arange(2**fmt.bits)
    ours = custom_fp.decode(codes, fmt).tolist()
    for code in range(0, 2**fmt.bits, max(1, 2**fmt.bits >> 10)):
        assert oracle.same(ours[code], gfloat.decode_float(info, code).fval), code


def inputs(fmt):
    g = torch.Generator().manual_seed(0)
    x = torch.cat([torch.randn(1500, generator=g) * scale for scale in (fmt.max, 1, 2.0**fmt.emin)])
    values = custom_fp.quantize(x, fmt)
    finite = values[values.isfinite()]
    infinity = torch.tensor(math.inf)
    return torch.cat([x, finite, (finite + finite.nextafter(infinity)) / 2, torch.tensor([0.0, -0.0])])


@pytest.mark.parametrize("name", GFLOAT)
def test_rounding_equals_gfloats(name):
    fmt, info = Format.parse(name), GFLOAT[name]
    x = inputs(fmt)[::3]
    if fmt.has_nan or fmt.has_inf:  # the others overflow to an error in gfloat
        nearest = custom_fp.quantize(x, fmt).tolist()
        for value, ours in zip(x.tolist(), nearest, strict=True):
            assert oracle.same(ours, gfloat.round_float(info, value)), value
    saturated = custom_fp.quantize(x, fmt, overflow="saturate").tolist()
    for value, ours in zip(x.tolist(), saturated, strict=True):
        assert oracle.same(ours, gfloat.round_float(info, value, sat=True)), value


@pytest.mark.parametrize("name", ML_DTYPES)
def test_rounding_equals_ml_dtypes(name):
    fmt, dtype = Format.parse(name), ML_DTYPES[name]
    x = inputs(fmt)
    if not fmt.has_inf:  # ml_dtypes saturates formats without NaN, and we say so only past max
        x = x[x.abs() <= fmt.max]
    ours = custom_fp.quantize(x, fmt)
    theirs = torch.from_numpy(x.numpy().astype(dtype).astype("float32"))
    same = (ours.view(torch.int32) == theirs.view(torch.int32)) | (ours.isnan() & theirs.isnan())
    assert same.all(), (x[~same][:5], ours[~same][:5], theirs[~same][:5])


@pytest.mark.parametrize("name", ["e2m1fn", "e2m3fn", "e3m2fn"])
def test_nan_in_a_format_without_one_is_the_largest_value_here_and_a_zero_in_ml_dtypes(name):
    """What the README's table says. So a NaN is to be counted before it is rounded."""
    x = torch.tensor([math.nan])
    assert custom_fp.quantize(x, name).item() == Format.parse(name).max
    theirs = x.numpy().astype(ML_DTYPES[name]).astype("float32").item()
    assert oracle.same(theirs, -0.0)
