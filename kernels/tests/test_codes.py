"""`encode`, `decode`, `pack` and `unpack`: round trips of every code, and bytes compared with Python's integers."""

import math

import custom_fp
import oracle
import pytest
import torch
from custom_fp import reference
from custom_fp.formats.scalar import Format
from custom_fp.rounding import Rule

NAMES = [
    "e5m2",
    "e4m3",
    "e4m3fn",
    "e3m0",
    "e2m1fn",
    "e3m2fn",
    "e1m2",
    "e1m0",
    "e8m0fn",
    "fp16",
    "bf16",
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
    again = custom_fp.encode(values, fmt)
    numbers = ~values.isnan()
    assert torch.equal(again.long()[numbers], codes[numbers])
    if fmt.has_nan:
        assert (again[~numbers] == fmt.nan_code).all()
    for dtype in (torch.uint8, torch.int16, torch.int32):
        if fmt.bits < 8 * torch.iinfo(dtype).bits // 8:
            assert torch.equal(custom_fp.decode(codes.to(dtype), fmt).nan_to_num(7), values.nan_to_num(7))


def test_code_dtypes():
    x = torch.ones(3)
    for name, dtype in [("e5m2", torch.uint8), ("e5m3", torch.int32), ("e8m22", torch.int32)]:
        assert custom_fp.encode(x, name).dtype is dtype
    assert custom_fp.encode(-x, "fp32").tolist() == [0xBF800000] * 3


def test_encode_rounds_first():
    x = torch.randn(1000, dtype=torch.float64)
    for name in ("e5m2", "e4m3fn", "e2m1fn", "e3m0"):
        expected = custom_fp.encode(custom_fp.quantize(x, name), name)
        assert torch.equal(custom_fp.encode(x, name), expected)


@pytest.mark.parametrize("fmt", WIDTHS, ids=str)
def test_packed_bytes_are_the_codes_end_to_end(fmt):
    k = fmt.bits
    for n in (0, 1, 7, 8, 9, 63, 511, 512, 513, 1500):
        x = torch.randn(n) * 3
        data = custom_fp.pack(x, fmt)
        assert data.dtype is torch.uint8 and data.numel() == -(-n // 8) * k == custom_fp.packed_size(n, fmt)
        number = sum(int(code) << (i * k) for i, code in enumerate(custom_fp.encode(x, fmt).tolist()))
        assert bytes(data.tolist()) == number.to_bytes(data.numel(), "little")
        back = custom_fp.unpack(data, fmt, (n,))
        assert torch.equal(back.view(torch.int32), custom_fp.quantize(x, fmt).view(torch.int32))


@pytest.mark.parametrize("name", ["e5m2", "e4m3fn", "e3m0", "bf16", "fp16", "e5m12", "fp32"])
def test_scaled_forms_round_once(name):
    fmt = Format.parse(name)
    x = torch.randint(-(2**31), 2**31, (3000,)).to(torch.int32).view(torch.float32)
    for shift in (1, -1, 24, -24, 126, 127, 128, -126, -127, 200, -200, 10**9, -(10**9)):
        exact = x.double() * 2.0 ** max(-300, min(300, shift))
        data = custom_fp.pack(x, fmt, shift=shift)
        assert torch.equal(data, custom_fp.pack(custom_fp.quantize(exact, fmt), fmt)), shift
        back = custom_fp.unpack(data, fmt, x.shape, shift=-shift)
        expected = torch.empty_like(x)
        reference.unpack(data, fmt, -shift, expected)
        assert torch.equal(back.view(torch.int32), expected.view(torch.int32)), shift


@pytest.mark.parametrize("name", ["e5m2", "e4m3fn", "e3m0", "e2m1fn", "bf16", "e5m12"])
def test_pack_rounds_in_every_way(name):
    fmt = Format.parse(name)
    x = torch.randint(-(2**31), 2**31, (3001,)).to(torch.int32).view(torch.float32)
    expected = torch.empty(custom_fp.packed_size(3001, fmt), dtype=torch.uint8)
    for rounding in ("nearest_even", "toward_zero", "stochastic"):
        for overflow in ("infinity", "saturate"):
            for shift in (0, 5, -140):
                rule = {"rounding": rounding, "overflow": overflow, "seed": 8, "offset": 1000}
                data = custom_fp.pack(x, fmt, shift=shift, **rule)
                reference.pack(x, fmt, shift, Rule(**rule), expected)
                assert torch.equal(data, expected), (shift, rule)
                wide = custom_fp.quantize(x.double() * 2.0**shift, fmt, **rule)
                assert torch.equal(data, custom_fp.pack(wide, fmt)), (shift, rule)


def test_scale_pow2_is_exact():
    x = torch.randint(-(2**31), 2**31, (10_000,)).to(torch.int32).view(torch.float32)
    for shift in (0, 5, -5, 126, 127, 128, -126, -127, -149, 250, -250, 10**6, -(10**6)):
        exact = (x.double() * 2.0 ** max(-300, min(300, shift))).float()
        got = custom_fp.scale_pow2(x, shift)
        assert torch.equal(got.nan_to_num(1, 2, 3), exact.nan_to_num(1, 2, 3))
        assert not torch.signbit(got[got.isnan()]).any()
    tiny = torch.tensor(2.0**-149)
    assert custom_fp.scale_pow2(tiny, 276).item() == 2.0**127
    assert (
        custom_fp.scale_pow2(torch.tensor(3 * 2.0**127 / 2), -276).item() == 2.0**-148
    )  # 1.5, a tie: to even


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_max_exponent(dtype):
    cases = [([1.0], 0), ([1.5, -0.25], 1), ([-4.0, 3.9], 2), ([0.0, -0.0], None), ([], None)]
    cases += [([2.0**-149], -149), ([1.5 * 2.0**-126], -125), ([3 * 2.0**-149], -147)]
    cases += [([math.inf, math.nan, 0.3], -1), ([math.nan, math.inf], None), ([3.4028234663852886e38], 128)]
    for values, expected in cases:
        assert custom_fp.max_exponent(torch.tensor(values, dtype=dtype)) == expected
    x = torch.randn(10_000, dtype=dtype)
    assert custom_fp.max_exponent(x) == math.ceil(math.log2(x.abs().max().item()))


def test_bad_bytes_and_codes():
    data = custom_fp.pack(torch.ones(9), "e5m2")
    for wrong in (data[:-1], data.view(2, 8), data.int()):
        with pytest.raises((ValueError, TypeError), match=r"bytes|uint8"):
            custom_fp.unpack(wrong, "e5m2", (9,))
    with pytest.raises(ValueError, match="24 bytes"):
        custom_fp.unpack(data, "e5m2", (17,))
    with pytest.raises(TypeError, match="codes"):
        custom_fp.decode(torch.ones(3), "e5m2")
