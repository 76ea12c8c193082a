"""accumulate: each partial sum against exact rationals, the compiled forms against the reference."""

import math
from fractions import Fraction

import custom_fp
import oracle
import pytest
import torch
from custom_fp import native, reference
from custom_fp.format import Format

NAMES = ["e5m2", "e4m3", "e4m3fn", "e3m0", "e2m1fn", "e1m2", "bf16", "fp16", "e5m11", "e6m22", "e7m3", "fp32"]


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
    fmt = Format.parse(name)
    g = torch.Generator().manual_seed(0)
    patterns = torch.randint(-(2**31), 2**31, (6, 1100), generator=g).to(torch.int32).view(torch.float32)
    plain = torch.randn(6, 1100, generator=g) * min(fmt.max / 4, 2.0)
    got, expected = torch.empty(1100), torch.empty(1100)
    packed_expected = torch.empty(custom_fp.packed_size(1100, fmt), dtype=torch.uint8)
    try:
        for isa in native._native.isas():
            native._native.use_isa(isa)
            for terms in (list(patterns), list(plain)):
                for rounding in ("nearest_even", "toward_zero", "stochastic"):
                    custom_fp.accumulate(terms, fmt, kahan=kahan, rounding=rounding, seed=3, out=got)
                    reference.accumulate(terms, fmt, kahan, rounding, 3, expected)
                    assert torch.equal(got.view(torch.int32), expected.view(torch.int32)), (isa, rounding)
                payloads = [custom_fp.pack(term, fmt) for term in terms]
                packed = custom_fp.accumulate_packed(payloads, fmt, 1100, kahan=kahan)
                reference.accumulate_packed(payloads, fmt, 1100, kahan, "nearest_even", 0, packed_expected)
                assert torch.equal(packed, packed_expected), isa
    finally:
        native._native.use_isa(native._native.isas()[-1])


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


def test_bad_input():
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
