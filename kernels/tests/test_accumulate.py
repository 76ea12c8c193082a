"""`accumulate`: each partial sum equals rational arithmetic, and the compiled kernels equal the reference."""

import math
from fractions import Fraction

import custom_fp
import oracle
import pytest
import torch
from custom_fp import native, reference
from custom_fp.formats.scalar import Format
from custom_fp.rounding import Rule

NAMES = [
    "e5m2",
    "e4m3",
    "e4m3fn",
    "e3m0",
    "e2m1fn",
    "e1m2",
    "bf16",
    "fp16",
    "e5m11",
    "e8m11",
    "e6m22",
    "e8m22",
    "e5m23",
    "e7m3",
    "fp32",
]


def rounded(value, fmt):
    """An exact finite sum rounded; its sign where it is zero is +, as a sum's is (unless both terms are -0)."""
    sign = -1.0 if value < 0 else 1.0
    return sign * oracle.quantize_exact(abs(value), fmt, "nearest_even")


def accumulate_exactly(terms, fmt):
    acc = 0.0
    for term in terms:
        if math.isfinite(acc):
            acc = rounded(Fraction(acc) + Fraction(term), fmt)
    return acc


@pytest.mark.parametrize("name", NAMES)
def test_every_partial_sum_is_exact_then_rounded(name):
    fmt = Format.parse(name)
    g = torch.Generator().manual_seed(1)
    scale = min(fmt.max / 16, 8.0)
    # arbitrary float32 terms, and a sum that sits just beside a tie: ulp / 2 and something far smaller
    tie = 1 + fmt.epsilon / 2
    rows = [torch.randn(12, generator=g) * scale for _ in range(150)]
    rows += [
        torch.tensor([tiny, tie, -tie, tiny]) for tiny in (2.0**-30, -(2.0**-30), 2.0**-100, -(2.0**-100))
    ]
    for row in rows:
        got = custom_fp.accumulate(list(row), fmt).item()
        assert oracle.same(abs(got), abs(accumulate_exactly(row.tolist(), fmt))), row


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kahan", [False, True])
def test_native_equals_reference(name, kahan):
    fmt, n = Format.parse(name), 1100
    g = torch.Generator().manual_seed(0)
    patterns = torch.randint(-(2**31), 2**31, (6, n), generator=g).to(torch.int32).view(torch.float32)
    plain = torch.randn(6, n, generator=g) * min(fmt.max / 4, 2.0)
    members = custom_fp.quantize(plain / 8, fmt, overflow="saturate")
    got, expected = torch.empty(n), torch.empty(n)
    packed_expected = torch.empty(custom_fp.packed_size(n, fmt), dtype=torch.uint8)
    rules = [
        (rounding, overflow)
        for rounding in ("nearest_even", "toward_zero", "stochastic")
        for overflow in ("infinity", "saturate")
    ]
    try:
        for terms in (list(patterns), list(plain), list(members)):
            payloads = [custom_fp.pack(term, fmt) for term in terms]
            for rounding, overflow in rules:
                drawn = Rule(rounding, overflow, 3, 77)
                reference.accumulate(terms, fmt, kahan, drawn, expected)
                reference.accumulate_packed(payloads, fmt, n, kahan, drawn, packed_expected)
                for isa in native._native.isas():
                    native._native.use_isa(isa)
                    rule = {
                        "kahan": kahan,
                        "rounding": rounding,
                        "overflow": overflow,
                        "seed": 3,
                        "offset": 77,
                    }
                    custom_fp.accumulate(terms, fmt, out=got, **rule)
                    assert torch.equal(got.view(torch.int32), expected.view(torch.int32)), (isa, rule)
                    packed = custom_fp.accumulate_packed(payloads, fmt, n, **rule)
                    assert torch.equal(packed, packed_expected), (isa, rule)
    finally:
        native._native.use_isa(native._native.isas()[-1])


@pytest.mark.parametrize("name", ["e5m2", "e4m3", "bf16", "fp16", "e5m11", "e6m14", "e5m23"])
def test_sums_that_float32_makes_a_tie_of(name):
    """A sum just beside a midpoint, which float32 cannot tell from it: in one element of many, and in all of them."""
    fmt = Format.parse(name)
    for count in (1, 400):
        acc, half = custom_fp.quantize(torch.rand(400), fmt), torch.full((400,), fmt.epsilon / 2)
        acc[:count] = 1 + fmt.epsilon
        half[:count] = half[:count].nextafter(torch.tensor(0.0))
        got = custom_fp.accumulate([acc, half], fmt)
        expected = torch.empty(400)
        reference.accumulate([acc, half], fmt, False, Rule(), expected)
        assert torch.equal(got, expected)
        assert (got[:count] == 1.0 + fmt.epsilon).all()  # a tie would have gone up, to the even neighbour


@pytest.mark.parametrize("name", ["e5m2", "e4m3", "e3m0", "e2m1fn", "bf16", "fp16"])
def test_random_sums_where_the_first_half_of_the_bits_leaves_it_undecided(name):
    """1 and a term that, with the 16 bits drawn first, comes out about one short of a carry; and Kahan on many."""
    fmt, n, seed = Format.parse(name), 40_000, 11
    g = torch.Generator().manual_seed(0)
    upper = reference.random_words(n, 4, seed, torch.device("cpu")) >> 16  # stream 4: the second term
    nearly = 0xFFFF - upper + torch.randint(-1, 3, (n,), generator=g)
    term = ((nearly + torch.rand(n, generator=g)) / 2**16 * fmt.epsilon).float()
    many = list(torch.randn(4, n, generator=g) * fmt.max / 8)
    expected, got = torch.empty(n), torch.empty(n)
    try:
        for terms, kahan in (([torch.ones(n), term], False), ([-torch.ones(n), -term], False), (many, True)):
            reference.accumulate(terms, fmt, kahan, Rule("stochastic", seed=seed), expected)
            for isa in native._native.isas():
                native._native.use_isa(isa)
                custom_fp.accumulate(terms, fmt, kahan=kahan, rounding="stochastic", seed=seed, out=got)
                assert torch.equal(got.view(torch.int32), expected.view(torch.int32)), isa
    finally:
        native._native.use_isa(native._native.isas()[-1])


@pytest.mark.parametrize("kahan", [False, True])
def test_saturating_sums_stop_at_the_largest_value(kahan):
    for name in ("e4m3", "e4m3fn", "e2m1fn", "fp32", "fp16"):
        top = Format.parse(name).max
        terms = [torch.tensor([value]) for value in (top, top, top, -top / 2)]
        got = custom_fp.accumulate(terms, name, kahan=kahan, overflow="saturate").item()
        # without kahan the excess is gone, with it the correction still knows a part of it
        assert got == top / 2 if not kahan else top / 2 <= got <= top, (name, got)
        nan = torch.tensor([math.nan])
        assert oracle.same(
            custom_fp.accumulate([*terms, nan], name, kahan=kahan, overflow="saturate").item(),
            oracle.quantize(math.nan, Format.parse(name)),
        )


def test_float32_is_plain_addition_in_order():
    terms = list(torch.randn(9, 1000))
    total = torch.zeros(1000)
    for term in terms:
        total += term
    assert torch.equal(custom_fp.accumulate(terms, "fp32"), total)


def test_kahan_follows_its_definition_and_helps():
    terms = [torch.tensor([0.01]) for _ in range(1000)]
    plain = custom_fp.accumulate(terms, "fp16").item()
    kahan = custom_fp.accumulate(terms, "fp16", kahan=True).item()
    assert abs(kahan - 10) < 0.02 < abs(plain - 10)
    lost = custom_fp.accumulate(
        [torch.tensor([6e4]), torch.tensor([6e4]), torch.tensor([-1e3])], "fp16", kahan=True
    )
    assert lost.item() == math.inf  # and not NaN: c is 0 once the sum is not finite


def test_float64_terms_are_not_rounded_to_float32_first():
    terms = [torch.tensor([1.0], dtype=torch.float64), torch.tensor([0.125 + 2.0**-45], dtype=torch.float64)]
    assert custom_fp.accumulate(terms, "e5m2").item() == 1.25


def test_out_may_be_one_of_the_terms():
    terms = list(torch.randn(4, 100))
    expected = custom_fp.accumulate(terms, "e4m3")
    for i in range(4):
        copies = [term.clone() for term in terms]
        assert torch.equal(custom_fp.accumulate(copies, "e4m3", out=copies[i]), expected)


def test_zeros():
    assert not torch.signbit(custom_fp.accumulate([torch.tensor(-0.0)], "e5m2"))
    assert custom_fp.accumulate([torch.empty(0, 3)], "e5m2").shape == (0, 3)


def test_a_part_is_summed_as_in_the_whole():
    terms = list(torch.randn(3, 1000))
    payloads = [custom_fp.pack(term, "e4m3") for term in terms]
    for kahan in (False, True):
        rule = {"kahan": kahan, "rounding": "stochastic", "seed": 5}
        whole = custom_fp.accumulate(terms, "e4m3", **rule)
        whole_packed = custom_fp.accumulate_packed(payloads, "e4m3", 1000, **rule)
        for start, stop in ((0, 1), (8, 1000), (200, 328), (136, 777)):
            part = custom_fp.accumulate([t[start:stop] for t in terms], "e4m3", offset=start, **rule)
            assert torch.equal(part, whole[start:stop])
            size = custom_fp.packed_size(stop - start, "e4m3")
            some = [p[start : start + size] for p in payloads]
            n = min(size, 1000 - start)
            part = custom_fp.accumulate_packed(some, "e4m3", n, offset=start, **rule)
            assert torch.equal(part, whole_packed[start : start + size])


def test_bad_input():
    with pytest.raises(ValueError, match="overflow is 'wrap'"):
        custom_fp.accumulate([torch.ones(3)], "e5m2", overflow="wrap")
    with pytest.raises(ValueError, match="offset is -1"):
        custom_fp.accumulate([torch.ones(3)], "e5m2", offset=-1)
    with pytest.raises(ValueError, match="at least one"):
        custom_fp.accumulate([], "e5m2")
    with pytest.raises(ValueError, match="one shape"):
        custom_fp.accumulate([torch.ones(3), torch.ones(4)], "e5m2")
    with pytest.raises(ValueError, match="one device"):
        custom_fp.accumulate([torch.ones(3), torch.ones(3, device="meta")], "e5m2")
    with pytest.raises(TypeError, match="int"):
        custom_fp.accumulate([torch.ones(3, dtype=torch.int32)], "e5m2")
    with pytest.raises(ValueError, match="16 bytes"):
        custom_fp.accumulate_packed([torch.zeros(8, dtype=torch.uint8)], "e5m2", 9)
