"""`accumulate` and `matmul`: each partial sum is exact and then rounded once. Orders, Kahan summation and parts."""

import math
from fractions import Fraction
from itertools import product

import custom_fp
import oracle
import pytest
import torch
from custom_fp import reference
from custom_fp.formats.scalar import Format
from custom_fp.rounding import Rounding, Rule
from tensors import normal, same_bits

NAMES = [
    *("e5m2", "e4m3", "e4m3fn", "e3m0", "e2m1fn", "e1m2", "bf16", "fp16", "e5m11", "e8m11", "e6m22"),
    *("e8m22", "e5m23", "e7m3", "fp32"),
]
EXACT = [rounding for rounding in Rounding if rounding is not Rounding.STOCHASTIC]


def rounded(value, fmt, rounding="nearest_even"):
    """Return an exact finite sum, rounded. A zero is positive, as a sum's is unless both terms are -0."""
    magnitude = oracle.quantize_exact(abs(value), fmt, rounding, negative=value < 0)
    return -magnitude if value < 0 else magnitude


@pytest.mark.parametrize("name", NAMES)
def test_every_partial_sum_is_exact_then_rounded(name):
    fmt = Format.parse(name)
    tie = 1 + fmt.epsilon / 2  # a sum next to a tie: half a unit in the last place and something far smaller
    rows = [*normal(12, 12, seed=1) * min(fmt.max / 16, 8.0)]
    rows += [
        torch.tensor([tiny, tie, -tie, tiny]) for tiny in (2.0**-30, -(2.0**-30), 2.0**-100, -(2.0**-100))
    ]
    for row, rounding in product(rows, EXACT if name in ("e4m3", "e3m0", "fp16") else ["nearest_even"]):
        exact = 0.0
        for term in row.tolist():
            if math.isfinite(exact):
                exact = rounded(Fraction(exact) + Fraction(term), fmt, rounding)
        assert custom_fp.accumulate(list(row), fmt, rounding=rounding).item() == exact, (rounding, row)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "e1m2"])  # which overflows
def test_products_and_their_sums_are_exact_then_rounded(name):
    fmt, a, b = Format.parse(name), normal(4, 20) * 0.5, normal(20, 3, seed=1) * 0.5
    got = custom_fp.matmul(a, b, accumulator=fmt)
    for i, j in product(range(4), range(3)):
        acc = 0.0
        for k in range(20):
            term = rounded(Fraction(a[i, k].item()) * Fraction(b[k, j].item()), fmt)
            acc = rounded(Fraction(acc) + Fraction(term), fmt)
        assert got[i, j].item() == acc


def test_partial_sums_of_float64_are_exact_then_rounded():
    """1 and a term next to half an ulp that float32, and a sum in float64, would make a tie of."""
    for name, tiny in product(("e5m2", "bf16", "e5m23"), (2.0**-60, -(2.0**-60), 2.0**-1074)):
        fmt = Format.parse(name)
        terms = [1.0, fmt.epsilon / 2 + tiny if abs(tiny) < fmt.epsilon * 2.0**-50 else tiny]
        got = custom_fp.accumulate([torch.tensor([t], dtype=torch.float64) for t in terms], fmt).item()
        assert got == oracle.quantize_exact(1 + Fraction(terms[1]), fmt, "nearest_even")
    terms = [torch.tensor([t], dtype=torch.float64) for t in (1.0, 0.125 + 2.0**-45)]
    assert custom_fp.accumulate(terms, "e5m2").item() == 1.25, "not rounded to float32 first"


@pytest.mark.parametrize("name", ["e5m2", "e4m3", "bf16", "fp16", "e5m11", "e6m14", "e5m23"])
def test_sums_that_float32_makes_a_tie_of(name):
    """A sum next to a midpoint, which float32 cannot tell from it: in one element of many, and in all of them."""
    fmt = Format.parse(name)
    for count in (1, 400):
        acc, half = custom_fp.quantize(torch.rand(400), fmt), torch.full((400,), fmt.epsilon / 2)
        acc[:count] = 1 + fmt.epsilon
        half[:count] = half[:count].nextafter(torch.tensor(0.0))
        got, expected = custom_fp.accumulate([acc, half], fmt), torch.empty(400)
        reference.accumulate([acc, half], fmt, False, Rule(), expected)
        assert torch.equal(got, expected)
        assert (got[:count] == 1.0 + fmt.epsilon).all()  # a tie would have gone up, to the even neighbor


SMALL = [
    f"e{e}m{m}" for e, m in product((2, 3, 4, 5), (0, 1, 2, 3))
]  # sums of two values fit float64, exactly
SMALL += ["e4m3fn", "e4m3fnuz", "e2m1fn", "ue5m3", "e5m2b-40"]


@pytest.mark.parametrize("name", SMALL)
def test_the_sum_of_every_pair_of_values_is_rounded_once(name):
    """The kernels round a sum to odd first. In each rounding, that is the exact sum rounded once."""
    fmt = Format.parse(name)
    values = torch.tensor(fmt.values())
    values = values[values.isfinite()]
    a, b = values.repeat_interleave(len(values)), values.repeat(len(values))
    exact = 0.0 + a.double() + b.double()  # a sum starts at +0
    if len(a) < 5000:
        sums = zip(exact.tolist(), a.tolist(), b.tolist(), strict=True)
        assert all(Fraction(s) == Fraction(x) + Fraction(y) for s, x, y in sums)
    for word in (*Rounding, "stochastic_3", "stochastic_even_4"):
        rule, random, once = Rule(word, seed=2), None, torch.empty(len(a))
        if rule.is_stochastic:  # the random bits of the second rounding: a alone is a value
            random = reference.random_words(len(a), 4, 2, a.device)
        reference.write(reference.round_to_format(exact, fmt, rule, random), once)
        assert same_bits(custom_fp.accumulate([a, b], fmt, rounding=word, seed=2), once), word


@pytest.mark.parametrize("kahan", [False, True])
def test_saturating_sums_stop_at_the_largest_value(kahan):
    for name in ("e4m3", "e4m3fn", "e2m1fn", "fp32", "fp16"):
        top, how = Format.parse(name).max, {"kahan": kahan, "overflow": "saturate"}
        terms = [torch.tensor([value]) for value in (top, top, top, -top / 2)]
        got = custom_fp.accumulate(terms, name, **how).item()
        # without kahan the excess is gone, with it the correction still knows a part of it
        assert got == top / 2 if not kahan else top / 2 <= got <= top, (name, got)
        with_nan = custom_fp.accumulate([*terms, torch.tensor([math.nan])], name, **how).item()
        assert oracle.same(with_nan, oracle.quantize(math.nan, Format.parse(name)))


def test_float32_is_plain_addition_in_order():
    terms = list(torch.randn(9, 1000))
    total = torch.zeros(1000)
    for term in terms:
        total += term
    assert torch.equal(custom_fp.accumulate(terms, "fp32"), total)


def test_kahan_is_more_accurate_and_survives_overflow():
    terms = [torch.tensor([0.01]) for _ in range(1000)]
    plain, kahan = (custom_fp.accumulate(terms, "fp16", kahan=k).item() for k in (False, True))
    assert abs(kahan - 10) < 0.02 < abs(plain - 10)
    lost = custom_fp.accumulate([torch.tensor([v]) for v in (6e4, 6e4, -1e3)], "fp16", kahan=True)
    assert lost.item() == math.inf  # and not NaN: c is 0 once the sum is not finite


def test_out_may_be_one_of_the_terms():
    terms = list(torch.randn(4, 100))
    expected = custom_fp.accumulate(terms, "e4m3")
    for i in range(4):
        copies = [term.clone() for term in terms]
        assert torch.equal(custom_fp.accumulate(copies, "e4m3", out=copies[i]), expected)


def test_zeros():
    assert not torch.signbit(custom_fp.accumulate([torch.tensor(-0.0)], "e5m2"))
    assert custom_fp.accumulate([torch.empty(0, 3)], "e5m2").shape == (0, 3)


@pytest.mark.parametrize("kahan", [False, True])
def test_a_part_is_summed_as_in_the_whole(kahan):
    terms = list(torch.randn(3, 1000))
    payloads = [custom_fp.pack(term, "e4m3") for term in terms]
    rule = {"kahan": kahan, "rounding": "stochastic", "seed": 5}
    whole = custom_fp.accumulate(terms, "e4m3", **rule)
    whole_packed = custom_fp.accumulate_packed(payloads, "e4m3", 1000, **rule)
    for start, stop in ((0, 1), (8, 1000), (200, 328), (136, 777)):
        part = custom_fp.accumulate([t[start:stop] for t in terms], "e4m3", offset=start, **rule)
        assert torch.equal(part, whole[start:stop])
        size = custom_fp.packed_size(stop - start, "e4m3")
        some, n = [p[start : start + size] for p in payloads], min(size, 1000 - start)
        part = custom_fp.accumulate_packed(some, "e4m3", n, offset=start, **rule)
        assert torch.equal(part, whole_packed[start : start + size])


# ---- products


@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [((3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((2, 3, 4), (4, 5)), ((3, 4), (2, 4, 5)), ((6, 1, 3, 4), (2, 4, 5)),
     ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((0, 4), (4, 5)), ((3, 0), (0, 5))],
)  # fmt: skip
def test_shapes_and_gradients_are_those_of_torch_matmul(a_shape, b_shape):
    a, b = torch.randn(a_shape), torch.randn(b_shape)
    grads = []
    for multiply in (torch.matmul, lambda x, y: custom_fp.matmul(x, y, accumulator="fp32")):
        x, y = a.clone().requires_grad_(), b.clone().requires_grad_()
        result = multiply(x, y)
        (result * torch.arange(result.numel()).view(result.shape)).sum().backward()
        grads.append((result.detach(), x.grad, y.grad))
    for expected, got in zip(*grads, strict=True):
        # two orders of summation of at most 30 terms in float32
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_backward_accumulator_is_used():
    a, b = torch.randn(7, 8, requires_grad=True), torch.randn(8, 9, requires_grad=True)
    grad = torch.randn(7, 9)
    custom_fp.matmul(a, b, accumulator="fp32", backward_accumulator="e4m3").backward(grad)
    assert same_bits(a.grad, custom_fp.matmul(grad, b.detach().mT, accumulator="e4m3"))
    assert same_bits(b.grad, custom_fp.matmul(a.detach().mT, grad, accumulator="e4m3"))
