"""float64 tensors: compiled operators equal the reference bit for bit, and ignore the flush-to-zero setting."""

import math
from fractions import Fraction

import custom_fp
import oracle
import pytest
import torch
from custom_fp import _native, reference
from custom_fp.formats.scalar import Format
from custom_fp.rounding import Rule

FORMATS = ["e5m2", "e4m3fn", "e3m0", "e2m1fn", "e1m2", "fp16", "e5m13", "e7m23", "fp32", "e4m3b-100"]
N = 1100


def rows(fmt: Format) -> list[torch.Tensor]:
    """Any bits at all; magnitudes that the format has; ties of it and their nearest neighbours among doubles."""
    g = torch.Generator().manual_seed(0)
    patterns = torch.randint(-(2**63), 2**63 - 1, (N,), generator=g).view(torch.float64)
    plain = torch.randn(N, generator=g, dtype=torch.float64) * min(fmt.max / 4, 2.0)
    ties = custom_fp.quantize(plain, fmt, rounding="toward_zero").double() * (1 + fmt.epsilon / 2)
    beside = ties.nextafter(torch.tensor(math.inf, dtype=torch.float64))
    return [patterns, plain, ties, beside]


def every_isa(call):
    used = _native.isa()
    try:
        for isa in _native.isas():
            _native.use_isa(isa)
            call(isa)
    finally:
        _native.use_isa(used)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@pytest.mark.parametrize("name", FORMATS)
def test_codes_equal_the_reference(name):
    fmt = Format.parse(name)
    codes = custom_fp.encode(torch.zeros(N), fmt)
    data = torch.empty(custom_fp.packed_size(N, fmt), dtype=torch.uint8)
    rules = [(r, o) for r in ("nearest_even", "toward_zero", "stochastic") for o in ("infinity", "saturate")]
    for x in rows(fmt):
        reference.encode(x, fmt, codes)
        every_isa(lambda isa, x=x: _assert(same(custom_fp.encode(x, fmt), codes), isa))
        for rounding, overflow in rules:
            for shift in (0, -5, 700):
                reference.pack(x, fmt, shift, Rule(rounding, overflow, 3, 77), data)
                rule = {"shift": shift, "rounding": rounding, "overflow": overflow, "seed": 3, "offset": 77}
                every_isa(
                    lambda isa, x=x, rule=rule: _assert(same(custom_fp.pack(x, fmt, **rule), data), isa, rule)
                )


def _assert(holds, *what):
    assert holds, what


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kahan", [False, True])
def test_sums_equal_the_reference(name, kahan):
    fmt, expected = Format.parse(name), torch.empty(N)
    patterns, plain, ties, beside = rows(fmt)
    for terms in ([patterns, plain, ties], [plain.float(), ties, beside, plain.float()]):
        for rounding in ("nearest_even", "toward_zero", "stochastic"):
            for overflow in ("infinity", "saturate"):
                reference.accumulate(terms, fmt, kahan, Rule(rounding, overflow, 3, 77), expected)
                rule = {"kahan": kahan, "rounding": rounding, "overflow": overflow, "seed": 3, "offset": 77}
                every_isa(
                    lambda isa, rule=rule, terms=terms: _assert(
                        same(custom_fp.accumulate(terms, fmt, **rule), expected), isa, rule
                    )
                )


def test_a_partial_sum_of_doubles_is_exact_then_rounded():
    """1 and a term beside half an ulp that float32, and a sum in float64, would make a tie of."""
    for name in ("e5m2", "bf16", "e5m23"):
        fmt = Format.parse(name)
        for tiny in (2.0**-60, -(2.0**-60), 2.0**-1074):
            terms = [1.0, fmt.epsilon / 2 + tiny if abs(tiny) < fmt.epsilon * 2.0**-50 else tiny]
            exact = Fraction(1) + Fraction(terms[1])
            got = custom_fp.accumulate([torch.tensor([t], dtype=torch.float64) for t in terms], fmt).item()
            assert got == oracle.quantize_exact(exact, fmt, "nearest_even")


@pytest.mark.parametrize("shift", [0, 1, -150, 301, -301, 900, 1074, -1000, 1190, -1190, 5000, -5000])
def test_scale_pow2_of_doubles_takes_any_shift(shift):
    x = torch.tensor(
        [2.0**-1074, 2.0**-1000, -(2.0**-700) * 1.7, 0.0, -0.0, 1.0, 2.0**1000 * 1.3, -(2.0**900), 3.3e-40]
    )
    x = torch.cat(
        [x.double(), torch.tensor([math.inf, -math.inf, math.nan, 2.0**-1074 * 3], dtype=torch.float64)]
    )
    x[0], x[1], x[2], x[6], x[7] = 2.0**-1074, 2.0**-1000, -(2.0**-700) * 1.7, 2.0**1000 * 1.3, -(2.0**900)
    expected = torch.empty(x.shape)
    reference.scale_pow2(x, shift, expected)
    every_isa(lambda isa: _assert(same(custom_fp.scale_pow2(x, shift), expected), isa))
    fp32 = Format.parse("fp32")
    for value, got in zip(x.tolist(), expected.tolist(), strict=True):
        if math.isfinite(value) and value != 0 and abs(shift) < 2000:
            exact = abs(Fraction(value)) * Fraction(2) ** shift
            right = oracle.quantize_exact(exact, fp32, "nearest_even")
            assert oracle.same(got, math.copysign(right, value)), (value, shift)
        elif math.isfinite(value) and value != 0:
            assert oracle.same(got, math.copysign(math.inf if shift > 0 else 0.0, value))


# ---- flush-to-zero ---------------------------------------------------------------------------------------------


def everything(sources: list[torch.Tensor], square: torch.Tensor) -> list[torch.Tensor]:
    """Of every operator."""
    found = []
    own = custom_fp.BlockFormat("own", "e4m3fn", 5)
    for source in sources:
        for fmt in ("bf16", "e8m13", "fp32", "mxfp8_e5m2", "mxint8", own, "linear_b64", "dynamic_tree"):
            found += [custom_fp.quantize(source, fmt), custom_fp.pack(source, fmt)]
            found.append(custom_fp.unpack(found[-1], fmt, source.shape))
            codes = custom_fp.encode(source, fmt)
            found += codes if isinstance(codes, tuple) else (codes,)
            found.append(custom_fp.decode(codes, fmt))
        for fmt in ("bf16", "e8m13", "e8m23"):
            for kahan in (False, True):
                found.append(custom_fp.accumulate([source, source.roll(1), sources[1]], fmt, kahan=kahan))
            found.append(custom_fp.quantize(source, fmt, rounding="stochastic", seed=1))
            found.append(custom_fp.pack(source, fmt, shift=-3, rounding="toward_zero"))
        found += [custom_fp.scale_pow2(source, shift) for shift in (-4, 3, 140)]
        found.append(torch.tensor([custom_fp.max_exponent(source)]))
    return [*found, custom_fp.matmul(square, square, accumulator="bf16")]


def test_nothing_follows_the_callers_flush_to_zero():
    x = torch.randn(321, generator=torch.Generator().manual_seed(0)) * 2.0**-130
    x[200:] *= 2.0**-14
    inputs = [x, x.double(), x.bfloat16()], torch.randn(8, 8) * 2.0**-66
    expected = everything(*inputs)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    try:
        got = everything(*inputs)
        assert (x * 1.0)[:4].count_nonzero() == 0  # the setting was in force
    finally:
        torch.set_flush_denormal(False)
    for i, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        assert same(ours, theirs), i
