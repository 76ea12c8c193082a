"""`encode`, `decode`, `pack`, `unpack`, `scale_pow2` and `max_exponent` equal Python integers and rationals."""

import math
from fractions import Fraction

import custom_fp
import oracle
import pytest
import torch
from custom_fp.formats.scalar import Format
from tensors import bit_patterns, same_bits

NAMES = [
    *("e5m2", "e4m3", "e4m3fn", "e3m0", "e2m1fn", "e3m2fn", "e1m2", "e1m0", "e8m0fn", "fp16", "bf16"),
    "e2m0fn",
]
# one format of every width from 2 to 32 bits
WIDTHS = [Format(1, 0)] + [Format(min(8, k - 2), k - 1 - min(8, k - 2)) for k in range(3, 33)]


@pytest.mark.parametrize("name", NAMES)
def test_every_code_decodes_to_its_value_and_back(name):
    fmt = Format.parse(name)
    codes = torch.arange(2**fmt.bits)
    values = custom_fp.decode(codes, fmt)
    assert all(map(oracle.same, values.tolist(), fmt.values()))
    again, is_nan = custom_fp.encode(values, fmt), values.isnan()
    assert torch.equal(again.long()[~is_nan], codes[~is_nan])
    assert not fmt.has_nan or (again[is_nan] == fmt.nan_code).all()
    for dtype in (torch.uint8, torch.int16, torch.int32):
        if fmt.bits < torch.iinfo(dtype).bits:
            assert torch.equal(custom_fp.decode(codes.to(dtype), fmt).nan_to_num(7), values.nan_to_num(7))


def test_dtypes_of_codes():
    x = torch.ones(3)
    for name, dtype in [("e5m2", torch.uint8), ("e5m3", torch.int32), ("e8m22", torch.int32)]:
        assert custom_fp.encode(x, name).dtype is dtype
    assert custom_fp.encode(-x, "fp32").tolist() == [0xBF800000] * 3


@pytest.mark.parametrize("fmt", WIDTHS, ids=str)
def test_packed_bytes_are_the_codes_end_to_end(fmt):
    k = fmt.bits
    for n in (0, 1, 7, 8, 9, 63, 511, 512, 513, 1500):
        x = torch.randn(n) * 3
        data = custom_fp.pack(x, fmt)
        assert data.dtype is torch.uint8 and data.numel() == -(-n // 8) * k == custom_fp.packed_size(n, fmt)
        number = sum(int(code) << (i * k) for i, code in enumerate(custom_fp.encode(x, fmt).tolist()))
        assert bytes(data.tolist()) == number.to_bytes(data.numel(), "little")
        assert same_bits(custom_fp.unpack(data, fmt, (n,)), custom_fp.quantize(x, fmt))


@pytest.mark.parametrize("name", ["e5m2", "e4m3fn", "e3m0", "e2m1fn", "bf16", "fp16", "e5m12", "fp32"])
def test_pack_rounds_the_scaled_value_once(name):
    fmt, x = Format.parse(name), bit_patterns(3001)
    exact = x.double()
    assert torch.equal(custom_fp.encode(exact, fmt), custom_fp.encode(custom_fp.quantize(x, fmt), fmt))
    for shift in (1, -1, 24, -24, 127, 128, -126, -127, 200, -200, 10**9, -(10**9)):
        scaled = exact * 2.0 ** max(-300, min(300, shift))
        data = custom_fp.pack(x, fmt, shift=shift)
        assert torch.equal(data, custom_fp.pack(custom_fp.quantize(scaled, fmt), fmt)), shift
    for rounding in ("nearest_even", "toward_zero", "stochastic"):
        for overflow in ("infinity", "saturate"):
            rule = {"rounding": rounding, "overflow": overflow, "seed": 8, "offset": 1000}
            wide = custom_fp.quantize(exact * 2.0**5, fmt, **rule)
            assert torch.equal(custom_fp.pack(x, fmt, shift=5, **rule), custom_fp.pack(wide, fmt)), rule


def test_scale_pow2_is_exact():
    x = bit_patterns(10_000)
    for shift in (0, 5, -5, 126, 127, 128, -126, -127, -149, 250, -250, 10**6, -(10**6)):
        exact = (x.double() * 2.0 ** max(-300, min(300, shift))).float()
        got = custom_fp.scale_pow2(x, shift)
        assert torch.equal(got.nan_to_num(1, 2, 3), exact.nan_to_num(1, 2, 3))
        assert not torch.signbit(got[got.isnan()]).any()
    assert custom_fp.scale_pow2(torch.tensor(2.0**-149), 276).item() == 2.0**127
    # 1.5 in units of the smallest value, a tie: to even
    assert custom_fp.scale_pow2(torch.tensor(3 * 2.0**127 / 2), -276).item() == 2.0**-148


@pytest.mark.parametrize("shift", [0, 1, -150, 301, -301, 900, 1074, -1000, 1190, -1190, 5000, -5000])
def test_scale_pow2_of_float64_takes_any_shift(shift):
    """Also shifts that take a float64 past its own range: values that are finite, or not zero, are rounded as such."""
    fp32, ends = Format.parse("fp32"), [0.0, -0.0, math.inf, -math.inf, math.nan]
    x = [
        2.0**-1074,
        3 * 2.0**-1074,
        2.0**-1000,
        -(2.0**-700) * 1.7,
        1.0,
        2.0**1000 * 1.3,
        -(2.0**900),
        3.3e-40,
    ]
    got = custom_fp.scale_pow2(torch.tensor([*x, *ends], dtype=torch.float64), shift).tolist()
    assert all(map(oracle.same, got[len(x) :], ends))
    for value, result in zip(x, got, strict=False):
        exact = abs(Fraction(value)) * Fraction(2) ** max(-3000, min(3000, shift))
        expected = oracle.quantize_exact(exact, fp32, "nearest_even")
        assert oracle.same(result, math.copysign(expected, value)), value


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_max_exponent(dtype):
    cases = [([1.0], 0), ([1.5, -0.25], 1), ([-4.0, 3.9], 2), ([0.0, -0.0], None), ([], None)]
    cases += [([2.0**-149], -149), ([1.5 * 2.0**-126], -125), ([3 * 2.0**-149], -147)]
    cases += [([math.inf, math.nan, 0.3], -1), ([math.nan, math.inf], None), ([3.4028234663852886e38], 128)]
    for values, expected in cases:
        assert custom_fp.max_exponent(torch.tensor(values, dtype=dtype)) == expected
    x = torch.randn(10_000, dtype=dtype)
    assert custom_fp.max_exponent(x) == math.ceil(math.log2(x.abs().max().item()))
