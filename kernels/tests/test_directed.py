"""nearest_away, toward_positive, toward_negative, to_odd and overflow=propagate: exact rationals on every boundary,
and the compiled forms against the reference in every operator, of every family of formats.
"""

import itertools
import math
from fractions import Fraction

import custom_fp
import oracle
import pytest
import torch
from custom_fp import native, reference
from custom_fp.formats.scalar import Format
from custom_fp.rounding import Overflow, Rounding, Rule
from custom_fp.scaled.arithmetic import ScaledReference
from test_quantize import boundaries

_native = native._native
EXACT = [rounding for rounding in Rounding if rounding is not Rounding.STOCHASTIC]
SMALL = ["e2m1", "e3m0", "e1m2", "e1m0", "e2m1fn", "e2m2fn", "e3m1fo", "e2m0fo", "e2m2fnuz", "e3m0fnuz"]
SMALL += ["ue2m2", "ue2m2fn", "ue3m1fo", "ue3m0", "ue3m0fn", "ue1m0fo", "e3m1b-90", "e2m1b120fnuz"]
FORMATS = [
    "e4m3",
    "e3m0",
    "fp16",
    "fp32",
    "e8m22",
    "e4m3fnuz",
    "e5m10fnuz",
    "e4m3fo",
    "ue4m3",
    "ue5m6",
    "ue8m23",
]
SHARED = [(r, o) for r in EXACT for o in Overflow if o is Overflow.PROPAGATE or r.mode > 2]


def same_bits(a, b):
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


@pytest.fixture(autouse=True)
def last_isa():
    """What a test leaves behind."""
    yield
    _native.use_isa(_native.isas()[-1])


@pytest.mark.parametrize("name", SMALL)
def test_exact_on_every_boundary(name):
    fmt = Format.parse(name)
    x = boundaries(fmt, torch.float32)
    x = torch.cat([x, torch.tensor([math.inf, -math.inf, math.nan, 5e-45, -5e-45, 3e38, -3e38])])
    for rounding, overflow in itertools.product(EXACT, Overflow):
        got = custom_fp.quantize(x, fmt, rounding=rounding, overflow=overflow).tolist()
        for value, result in zip(x.tolist(), got, strict=True):
            expected = oracle.quantize(value, fmt, rounding, overflow)
            assert oracle.same(result, expected), (rounding, overflow, value, result, expected)


def hostile(fmt, n=1031):
    """Of every magnitude and near the format's: terms, (4, n)."""
    g = torch.Generator().manual_seed(0)
    patterns = torch.randint(-(2**31), 2**31, (2, n), generator=g).to(torch.int32).view(torch.float32)
    near = torch.randn(2, n, generator=g) * torch.tensor(
        [[min(max(fmt.max, 1e-30) / 4, 2.0)], [2.0**fmt.emin]]
    )
    patterns[0, :5] = torch.tensor([math.inf, -math.inf, math.nan, -0.0, 1e-45])
    near[0, ::5] = custom_fp.quantize(near[0, ::5], fmt, overflow="saturate") * (1 + fmt.epsilon / 2)  # ties
    return torch.cat([patterns, near])


@pytest.mark.parametrize("name", FORMATS)
def test_quantize_as_the_reference(name):
    fmt = Format.parse(name)
    for x in hostile(fmt)[[0, 2]]:
        got, expected = torch.empty_like(x), torch.empty_like(x)
        for rounding, overflow in itertools.product(Rounding, Overflow):
            rule = Rule(rounding, overflow, 99, 1000)
            for source in (x, x.double()):
                reference.quantize(source, fmt, rule, expected)
                for isa in _native.isas():
                    _native.use_isa(isa)
                    native.quantize(source, fmt, rule, got)
                    assert same_bits(got, expected), (isa, rounding, overflow, source.dtype)


@pytest.mark.parametrize("name", FORMATS)
def test_sums_as_the_reference(name):
    fmt = Format.parse(name)
    is_new = not fmt.has_negative_zero
    terms, n = list(hostile(fmt, 523)), 523
    payloads = [custom_fp.pack(term, fmt) for term in terms]
    got, expected = torch.empty(n), torch.empty(n)
    packed, packed_expected = (
        torch.empty(custom_fp.packed_size(n, fmt), dtype=torch.uint8) for _ in range(2)
    )
    rules = SHARED + [(r, "infinity") for r in ("nearest_even", "toward_zero", "stochastic") if is_new]
    for (rounding, overflow), kahan in itertools.product(rules, (False, True)):
        rule = Rule(rounding, overflow, 3, 77)
        reference.accumulate(terms, fmt, kahan, rule, expected)
        reference.accumulate_packed(payloads, fmt, n, kahan, rule, packed_expected)
        for isa in _native.isas():
            _native.use_isa(isa)
            native.accumulate(terms, fmt, kahan, rule, got)
            assert same_bits(got, expected), (isa, rounding, overflow, kahan)
            native.accumulate([term.double() for term in terms], fmt, kahan, rule, got)
            assert same_bits(got, expected), (isa, rounding, overflow, kahan)
            native.accumulate_packed(payloads, fmt, n, kahan, rule, packed)
            assert torch.equal(packed, packed_expected), (isa, rounding, overflow, kahan)


@pytest.mark.parametrize("name", FORMATS)
def test_codes_and_shifts_as_the_reference(name):
    """Shifts that take a float64 past its own range, too: what was finite, or not zero, is rounded as that."""
    fmt, n = Format.parse(name), 1031
    data, expected = (torch.empty(custom_fp.packed_size(n, fmt), dtype=torch.uint8) for _ in range(2))
    values, values_expected = torch.empty(n), torch.empty(n)
    for x, (rounding, overflow), shift in itertools.product(
        hostile(fmt)[[0, 2]],
        [("nearest_even", "infinity"), ("nearest_even", "saturate"), *SHARED[::2]],
        (0, 7, -9, -1299),
    ):
        rule = Rule(rounding, overflow)
        for source in (x, x.double()):
            reference.pack(source, fmt, shift, rule, expected)
            native.pack(source, fmt, shift, rule, data)
            assert torch.equal(data, expected), (rounding, overflow, shift, source.dtype)
        reference.unpack(data, fmt, -shift, values_expected)
        native.unpack(data, fmt, -shift, values)
        assert same_bits(values, values_expected), shift
        assert torch.equal(custom_fp.encode(x, fmt), custom_fp.encode(x.double(), fmt))


@pytest.mark.parametrize("name", ["e4m3fnuz", "e5m10fnuz", "e4m3fo", "ue4m3", "ue5m11", "ue8m23"])
@pytest.mark.parametrize("kahan", [False, True])
def test_products_as_the_reference(name, kahan):
    fmt, g = Format.parse(name), torch.Generator().manual_seed(0)
    a, b = torch.randn(1, 5, 19, generator=g) / 2, torch.randn(1, 19, 67, generator=g) / 4
    a, b = (a, b) if fmt.is_signed else (a.abs(), b + 0.5)  # some products are below zero
    got, expected = torch.empty(1, 5, 67), torch.empty(1, 5, 67)
    reference.matmul(a, b, fmt, kahan, expected)
    for isa in _native.isas():
        _native.use_isa(isa)
        native.matmul(a, b, fmt, kahan, got)
        assert same_bits(got, expected), isa
    assert fmt.is_signed or kahan or 0.1 < got.isnan().double().mean() < 0.9


@pytest.mark.parametrize("name", ["e4m3", "e3m0", "e4m3fnuz"])
def test_directed_sums_are_exact_sums_rounded(name):
    """What is far below the sum's last digit still takes it up: Fractions, term by term."""
    fmt = Format.parse(name)
    rows = [[1.0, tiny, -tiny, tiny] for tiny in (2.0**-40, -(2.0**-40), 2.0**-120, 0.3)]
    rows += (torch.randn(30, 5, generator=torch.Generator().manual_seed(2)) / 2).tolist()
    for rounding, row in itertools.product(EXACT, rows):
        exact = 0.0
        for term in row:
            total = Fraction(exact) + Fraction(term)
            exact = math.copysign(
                oracle.quantize_exact(abs(total), fmt, rounding, negative=total < 0),
                -1.0 if total < 0 else 1.0,
            )
        got = custom_fp.accumulate(
            [torch.tensor([term], dtype=torch.float64) for term in row], fmt, rounding=rounding
        )
        assert got.item() == exact, (rounding, row)


def test_rounding_twice_by_way_of_odd_is_rounding_once():
    """fp32 to bf16 to e5m2: three digits fewer. By way of nearest it is not."""
    g = torch.Generator().manual_seed(0)
    x = (torch.randn(1 << 15, generator=g) * torch.logspace(-6, 5, 1 << 15)).clamp(-57344, 57344)
    differs = {}
    for by, to in itertools.product(("to_odd", "nearest_even"), EXACT):
        twice = custom_fp.quantize(custom_fp.quantize(x, "e8m7", rounding=by), "e5m2", rounding=to)
        differs[by, to] = (twice != custom_fp.quantize(x, "e5m2", rounding=to)).sum().item()
    assert not any(differs["to_odd", to] for to in EXACT)
    assert differs["nearest_even", "nearest_even"] and differs["nearest_even", "toward_positive"]


@pytest.mark.parametrize("rounding", list(Rounding)[3:])
def test_scaled_formats_take_them(rounding):
    """Elements under a scale, floating point and whole numbers, as `round_to_format` of x over the scale."""
    x = torch.randn(6, 70, generator=torch.Generator().manual_seed(1))
    for name in ("mxfp8_e4m3", "mxfp4", "mxint8", "int4_b32", "int8_affine"):
        fmt, got, expected = custom_fp.parse(name), torch.empty_like(x), torch.empty_like(x)
        slow = ScaledReference()
        slow.quantize(x, fmt, Rule(rounding), expected)
        custom_fp.quantize(x, fmt, rounding=rounding, out=got)
        assert same_bits(got, expected), name
        assert rounding == "nearest_away" or not torch.equal(got, custom_fp.quantize(x, fmt))
        if rounding is Rounding.TOWARD_POSITIVE and name != "int8_affine":
            assert (got >= x.clamp(max=1e9)).double().mean() > 0.9  # but what saturates
