"""Formats that are tables of values: the kernel equals the definition bit for bit, for every rounding and overflow."""

import custom_fp
import numpy as np
import pytest
import torch
from custom_fp import _native, native, reference
from custom_fp.formats.names import parse
from custom_fp.rounding import Overflow, Rounding, Rule

# even cells and cells by octave, with and without infinity, NaN, sign, beyond; values past float32's
NAMES = [
    "p3109_k8p3se",
    "p3109_k6p2uf",
    "p3109_k8p1ue",
    "posit8",
    "posit13",
    "takum9",
    "lns4_3",
    "hif8",
    "posit3",
    "posit2",  # two steps for each sign
    "p3109_k2p1se",
]
ROUNDINGS = [*Rounding, "stochastic_5"]


def bits(x):
    return x.view(torch.int32) if x.dtype is torch.float32 else x


@np.errstate(all="ignore")
def numbers(fmt, dtype=torch.float32):
    """Magnitudes and boundaries (300, where there are more) and their neighbours, any bits, both signs."""
    g = np.random.default_rng(0)
    halves = fmt.positive, fmt.negative
    special = np.array([v for half in halves for v in (*half.magnitudes, *half.boundaries)])
    special = g.permutation(special)[:300].astype(dtype_of(dtype))
    inf = np.array(np.inf, special.dtype)
    near = [special, np.nextafter(special, inf), np.nextafter(special, -inf)]
    whole = np.concatenate([*near, g.standard_normal(500), np.exp2(g.uniform(-150, 128, 500))])
    ends = [0.0, 5e-324, 1e-45, 3.4028235e38, 1e300, np.inf, np.nan]
    whole = np.concatenate([whole, ends]).astype(special.dtype)
    any_bits = g.integers(0, 2**32, 1000, dtype=np.uint32).view(np.float32)
    return torch.from_numpy(np.concatenate([whole, -whole, any_bits]).astype(special.dtype))


def dtype_of(dtype):
    return {torch.float32: np.float32, torch.float64: np.float64}[dtype]


@pytest.fixture(params=_native.isas())
def isa(request):
    best = _native.isa()
    _native.use_isa(request.param)
    yield request.param
    _native.use_isa(best)


def both(operator, size, dtype, *args):
    """What the compiled code and the definition write."""
    outs = torch.empty(size, dtype=dtype), torch.empty(size, dtype=dtype)
    getattr(native, operator)(*args, outs[0])
    getattr(reference, operator)(*args, outs[1])
    return outs


@pytest.mark.parametrize("name", NAMES)
def test_compiled_is_as_defined(name, isa):
    fmt = parse(name)
    wide, narrow = numbers(fmt, torch.float64), numbers(fmt)
    for rounding in ROUNDINGS:
        for overflow in Overflow:
            rule = Rule(rounding, overflow, seed=7, offset=301)
            for x in (narrow, wide):
                got, expected = both("quantize", x.shape, torch.float32, x, fmt, rule)
                wrong = bits(got) != bits(expected)
                assert not wrong.any(), (
                    rounding,
                    overflow,
                    x[wrong][:3],
                    got[wrong][:3],
                    expected[wrong][:3],
                )
            for x, shift in ((narrow, 0), (narrow, -3), (wide, 40), (narrow, 1400)):
                size = fmt.packed_size(x.numel())
                got, expected = both("pack", size, torch.uint8, x, fmt, shift, rule)
                assert torch.equal(got, expected), (rounding, overflow, shift)


@pytest.mark.parametrize("name", NAMES)
def test_codes(name, isa):
    fmt = parse(name)
    dtype = torch.uint8 if fmt.code_bits <= 8 else torch.int32
    for x in (numbers(fmt), numbers(fmt, torch.float64)):
        got, expected = both("encode", x.shape, dtype, x, fmt)
        assert torch.equal(got, expected)
    codes = torch.arange(1 << fmt.code_bits).to(dtype)
    got, expected = both("decode", codes.shape, torch.float32, codes, fmt)
    assert torch.equal(bits(got), bits(expected))
    data = torch.randint(0, 256, (fmt.packed_size(1003),), dtype=torch.uint8)
    for shift in (0, 5, -200):
        got, expected = both("unpack", 1003, torch.float32, data, fmt, shift)
        assert torch.equal(bits(got), bits(expected))


@pytest.mark.parametrize("name", NAMES)
def test_sums_and_products(name, isa):
    fmt, n = parse(name), 1003
    g = torch.Generator().manual_seed(1)
    scale = fmt.max**0.5 if fmt.max > 1e6 else fmt.max / 8
    terms = [scale * torch.randn(n, generator=g) ** 3 for _ in range(4)]
    terms[1][:4] = torch.tensor([float("inf"), float("nan"), -0.0, 3e38])
    wide = [terms[0], terms[1].double() * (1 + 2.0**-40), *terms[2:]]
    payloads, size = [custom_fp.pack(term, fmt) for term in terms], fmt.packed_size(n)
    for rounding in ("nearest_even", "stochastic", "to_odd", "toward_negative"):
        for kahan in (False, True):
            rule = Rule(rounding, seed=3, offset=77)
            for these in (terms, wide):
                got, expected = both("accumulate", n, torch.float32, these, fmt, kahan, rule)
                assert torch.equal(bits(got), bits(expected)), (rounding, kahan)
            got, expected = both(
                "accumulate_packed",
                size,
                torch.uint8,
                payloads,
                fmt,
                n,
                kahan,
                rule,
            )
            assert torch.equal(got, expected), (rounding, kahan)
    a, b = torch.randn(2, 5, 9, generator=g) * scale**0.5, torch.randn(1, 9, 70, generator=g)
    for kahan in (False, True):
        got, expected = both("matmul", (2, 5, 70), torch.float32, a, b, fmt, kahan)
        assert torch.equal(bits(got), bits(expected)), kahan


@pytest.mark.parametrize("name", [*NAMES, "takum8", "posit16", "takum16", "p3109_k8p4uf"])
def test_what_is_lifted_is_as_defined(name, isa):
    """All tops of float32 with any bits below, boundaries and beside them; one product each of factors that come near
    them, near the ends of binades, under float32's range and over it."""
    fmt, rule, g = parse(name), Rule("nearest_even"), np.random.default_rng(2)
    tops = np.arange(1 << 16, dtype=np.uint32) << 16
    low = np.concatenate(
        [tops, tops + 1, tops - 1, tops | g.integers(0, 1 << 16, tops.size, dtype=np.uint32)]
    )
    x = torch.cat([torch.from_numpy(low.view(np.float32)), numbers(fmt)])
    expected = both("quantize", x.shape, torch.float32, x, fmt, rule)[1]
    got = torch.empty_like(x)
    for operator, args in (("quantize", (x, fmt, rule)), ("accumulate", ([x], fmt, False, rule))):
        getattr(native, operator)(*args, got)
        wrong = bits(got) != bits(expected)
        assert not wrong.any(), (operator, x[wrong][:3], got[wrong][:3], expected[wrong][:3])
    x = numbers(fmt)
    x = x[torch.from_numpy(g.integers(0, len(x), 300))]
    near_one = 1 + torch.tensor([0.0, 1, -1, 3, 1 << 12]) * 2.0**-23
    y = torch.cat([x[:40], *(near_one * 2.0**k for k in (0, -1, 9, -70)), torch.tensor([0.0, -0.0, 3e38])])
    got, expected = both(
        "matmul", (1, 300, len(y)), torch.float32, x[None, :, None], y[None, None], fmt, False
    )
    assert torch.equal(bits(got), bits(expected))
