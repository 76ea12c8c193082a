"""Families fnuz and fo and formats without a sign: names, codes, and rounding in every mode against gfloat and
ml_dtypes over all of float16 and every boundary. gfloat breaks ties at m = 0 by the code, and its largest value of an
IEEE format with one exponent bit is a normal one, which there is none of; test_directed.py covers both.
"""

import itertools
import math

import custom_fp
import numpy as np
import oracle
import pytest
import torch
from custom_fp.formats.scalar import Format

gfloat = pytest.importorskip("gfloat", reason="gfloat is an optional oracle")
ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is an optional oracle")

MODES = {
    "nearest_even": gfloat.RoundMode.TiesToEven,
    "nearest_away": gfloat.RoundMode.TiesToAway,
    "toward_zero": gfloat.RoundMode.TowardZero,
    "toward_positive": gfloat.RoundMode.TowardPositive,
    "toward_negative": gfloat.RoundMode.TowardNegative,
}
HALVES = torch.arange(1 << 16).to(torch.int32).to(torch.int16).view(torch.float16).float()


def of_eight_bits():
    """Every format of 8 bits with a mantissa in each new family, and IEEE's for the new modes."""
    for family, is_signed in [
        ("fnuz", True),
        ("fo", True),
        ("ieee", True),
        ("fn", False),
        ("fo", False),
        ("ieee", False),
    ]:
        for e in range(1, 8):
            yield Format(e, 8 - is_signed - e, family=family, is_signed=is_signed)


EIGHT = [fmt for fmt in of_eight_bits() if fmt.mantissa_bits and not (fmt.has_inf and fmt.exponent_bits == 1)]


def info_of(fmt):
    m = fmt.mantissa_bits
    return gfloat.FormatInfo(
        fmt.name,
        fmt.bits,
        m + 1,
        bias=fmt.bias,
        is_signed=fmt.is_signed,
        domain=gfloat.Domain.Extended if fmt.has_inf else gfloat.Domain.Finite,
        has_nz=fmt.has_negative_zero,
        num_high_nans=2**m - 1 if fmt.has_inf else int(fmt.family == "fn"),
        has_subnormals=True,
        is_twos_complement=False,
    )


def boundaries(fmt, rounded=custom_fp.quantize):
    """Finite values, midpoints and the float32 on either side of each, of both signs, a step past the largest value."""
    values = torch.tensor([v for v in fmt.values() if math.isfinite(v) and v >= 0], dtype=torch.float64)
    step = values[-1] - values[-2]
    values = torch.cat([values, values[-1:] + step, values[-1:] + 2 * step])
    x = torch.cat([values, (values[1:] + values[:-1]) / 2]).float()
    infinity = torch.tensor(math.inf)
    x = torch.cat([x, x.nextafter(infinity), x.nextafter(-infinity), infinity[None]])
    return torch.cat([x, -x])


def same(a, b):
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(
        a.nan_to_num(7).view(torch.int32), b.nan_to_num(7).view(torch.int32)
    )


@pytest.mark.parametrize("fmt", EIGHT, ids=str)
def test_every_mode_equals_gfloats(fmt):
    info, x = info_of(fmt), torch.cat([HALVES, boundaries(fmt)])
    x = x[~x.isnan() & ((x >= 0) | fmt.is_signed)]  # gfloat gives formats without a sign negative numbers
    rules = [(mode, sat) for mode in MODES for sat in (False, True) if sat or fmt.has_nan]
    for mode, sat in rules:
        theirs = gfloat.round_ndarray(info, x.double().numpy(), MODES[mode], sat)
        ours = custom_fp.quantize(x, fmt, rounding=mode, overflow="saturate" if sat else "infinity")
        assert same(ours, torch.from_numpy(theirs).float()), (mode, sat)


@pytest.mark.parametrize("fmt", EIGHT, ids=str)
def test_codes_are_gfloats_and_there_and_back(fmt):
    codes = torch.arange(256).to(torch.uint8)
    values, info = custom_fp.decode(codes, fmt), info_of(fmt)
    assert same(values, torch.tensor(fmt.values()))
    assert same(values, torch.tensor([gfloat.decode_float(info, code).fval for code in range(256)]))
    again, is_nan = custom_fp.encode(values, fmt), values.isnan()
    assert torch.equal(again[~is_nan], codes[~is_nan])
    assert not is_nan.any() or (again[is_nan] == fmt.nan_code).all()
    assert is_nan.any() == fmt.has_nan and values.isinf().any() == fmt.has_inf
    assert torch.signbit(values[values == 0]).any() == fmt.has_negative_zero
    assert same(custom_fp.unpack(custom_fp.pack(values, fmt), fmt, 256), values)


@pytest.mark.parametrize("name", ["e4m3fnuz", "e5m2fnuz", "e4m3b11fnuz"])
def test_they_are_ml_dtypes(name):
    fmt, dtype = Format.parse(name), getattr(ml_dtypes, f"float8_{name}")
    x = torch.cat([HALVES, boundaries(fmt)])
    theirs = x.numpy().astype(dtype)
    assert same(custom_fp.quantize(x, fmt), torch.from_numpy(theirs.astype("float32")))
    assert torch.equal(custom_fp.encode(x, fmt), torch.from_numpy(theirs.view(np.uint8)))


@pytest.mark.parametrize("name", ["e5m10fnuz", "e6m9fo", "ue5m11", "ue7m9fn", "e8m7"])
def test_every_mode_of_sixteen_bits_equals_gfloats(name):
    fmt, g = Format.parse(name), torch.Generator().manual_seed(0)
    info, x = (
        info_of(fmt),
        torch.randint(-(2**31), 2**31, (20_000,), generator=g).to(torch.int32).view(torch.float32),
    )
    x = torch.cat([x, boundaries(fmt)[::37]])
    x = x[~x.isnan() & ((x >= 0) | fmt.is_signed)]
    for mode in MODES:
        theirs = gfloat.round_ndarray(info, x.double().numpy(), MODES[mode], True)
        assert same(
            custom_fp.quantize(x, fmt, rounding=mode, overflow="saturate"), torch.from_numpy(theirs).float()
        )


@pytest.mark.parametrize(
    ("name", "spelled", "bits", "largest", "smallest", "has_inf", "has_nan"),
    [  # ml_dtypes, PTX ISA (ue4m3), Direct3D 11 (R11G11B10: ue5m6)
        ("e4m3fnuz", "e4m3fnuz", 8, 240.0, 2.0**-10, False, True),
        ("e5m2fnuz", "e5m2fnuz", 8, 57344.0, 2.0**-17, False, True),
        ("e4m3b11fnuz", "e4m3b11fnuz", 8, 30.0, 2.0**-13, False, True),
        ("e4m3fo", "e4m3fo", 8, 480.0, 2.0**-9, False, False),
        ("e2m1fo", "e2m1fn", 4, 6.0, 0.5, False, False),
        ("e4m3b9fo", "e4m3b9fo", 8, 120.0, 2.0**-11, False, False),
        ("ue4m3", "ue4m3fn", 7, 448.0, 2.0**-9, False, True),
        ("ue5m3", "ue5m3fn", 8, 114688.0, 2.0**-17, False, True),
        ("ue4m3b7", "ue4m3b7", 7, 240.0, 2.0**-9, True, True),
        ("ue5m6", "ue5m6", 11, 65024.0, 2.0**-20, True, True),
        ("ue8m0fn", "ue8m0fn", 8, 2.0**127, None, False, True),
        ("ue1m0fo", "ue1m0fo", 1, 2.0, None, False, False),
    ],
)
def test_known_formats(name, spelled, bits, largest, smallest, has_inf, has_nan):
    fmt = Format.parse(name)
    assert fmt.name == spelled and Format.parse(spelled) == fmt == custom_fp.parse(name)
    assert (fmt.bits, fmt.max, fmt.smallest_subnormal) == (bits, largest, smallest)
    assert (fmt.has_inf, fmt.has_nan) == (has_inf, has_nan)


def test_every_name_parses_back():
    made = set()
    for family, is_signed, e, m in itertools.product(
        ("ieee", "fn", "fo", "fnuz"), (True, False), range(1, 9), range(24)
    ):
        try:
            fmt = Format(e, m, family=family, is_signed=is_signed)
        except ValueError as error:
            assert e == 8 or (family == "fnuz" and not is_signed), error
            continue
        assert Format.parse(fmt.name) == fmt and str(fmt) == fmt.name
        made.add(fmt)
    assert len({fmt.name for fmt in made}) == len({fmt.spec for fmt in made}) == len(made)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "ue4m3fnuz",
            "no format 'ue4m3fnuz': family fnuz needs a sign bit; for an unsigned format, use family ieee, fn or fo",
        ),
        ("e8m3fnuz", "no format 'e8m3fnuz': bias 128 puts values outside float32; allowed biases: none"),
        ("e4m3uz", "allowed: e<1..8>m<0..23>, then b<bias> and fn, fo or fnuz as options"),
    ],
)
def test_a_name_that_no_format_has(name, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        Format.parse(name)
    with pytest.raises(
        ValueError, match="elements of e4m3fnuz have no -0; allowed: formats with a sign and a -0"
    ):
        custom_fp.BlockFormat("mine", "e4m3fnuz")


def test_what_a_format_without_a_sign_makes_of_negative_numbers():
    inf, nan = math.inf, math.nan
    x = torch.tensor([-1.0, -1e-30, -inf, -0.0, 1e9, inf, nan])
    table = {
        ("nearest_even", "infinity"): [nan, 0, nan, 0, nan, nan, nan],
        ("toward_negative", "infinity"): [nan, nan, nan, 0, 448, nan, nan],
        ("toward_positive", "infinity"): [0, 0, nan, 0, nan, nan, nan],
        ("toward_zero", "infinity"): [0, 0, nan, 0, 448, nan, nan],
        ("nearest_even", "saturate"): [0, 0, 0, 0, 448, 448, nan],
        ("to_odd", "propagate"): [0, 0, 0, 0, 448, 448, nan],
    }
    for (rounding, overflow), expected in table.items():
        got = custom_fp.quantize(x, "ue4m3", rounding=rounding, overflow=overflow).tolist()
        assert all(map(oracle.same, got, map(float, expected))), (rounding, overflow, got)
    with pytest.raises(ValueError, match="format=ue4m3fn has no negative numbers, but gradients do"):
        custom_fp.parse("ue4m3").check_flat()
    sums = custom_fp.accumulate([torch.tensor([2.0, 1.0, 1.0]), torch.tensor([-1.0, -2.0, -1.0])], "ue4m3")
    assert all(map(oracle.same, sums.tolist(), [1.0, nan, 0.0]))
