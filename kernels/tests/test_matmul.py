"""`matmul` with an emulated accumulator, compared with rationals, the reference, and torch's shapes and gradients."""

from fractions import Fraction

import custom_fp
import oracle
import pytest
import torch
from custom_fp import native, reference
from custom_fp.formats.scalar import Format

NAMES = ["e5m10", "e5m2", "e4m3fn", "e3m0", "e2m1fn", "bf16", "e6m12", "e5m23", "fp32"]


def equal_bits(a, b):
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


@pytest.mark.parametrize("name", NAMES)
def test_products_and_sums_are_exact_then_rounded(name):
    fmt = Format.parse(name)

    def rounded(value):
        return (-1 if value < 0 else 1) * oracle.quantize_exact(abs(value), fmt, "nearest_even")

    a, b = torch.randn(5, 20) * 0.5, torch.randn(20, 4) * 0.5
    got = custom_fp.matmul(a, b, accumulator=fmt)
    for i in range(5):
        for j in range(4):
            acc = 0.0
            for k in range(20):
                term = rounded(Fraction(a[i, k].item()) * Fraction(b[k, j].item()))
                acc = rounded(Fraction(acc) + Fraction(term))
            assert got[i, j].item() == acc


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kahan", [False, True])
def test_native_equals_reference(name, kahan):
    fmt = Format.parse(name)
    expected = torch.empty(1, 19, 70)
    try:
        for isa in native._native.isas():
            native._native.use_isa(isa)
            for scale in (1.0, 1e-4, 1e-37, 1e19):  # in range, subnormal, of bf16 too, overflowing
                a, b = torch.randn(19, 33) * scale, torch.randn(33, 70)
                a[3, 5], b[7, 9] = float("inf"), float("nan")
                reference.matmul(a[None], b[None], fmt, kahan, expected)
                got = custom_fp.matmul(a, b, accumulator=fmt, kahan=kahan)
                assert equal_bits(got, expected[0]), (isa, scale)
    finally:
        native._native.use_isa(native._native.isas()[-1])


@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [
        ((3, 4), (4, 5)),
        ((2, 3, 4), (2, 4, 5)),
        ((2, 3, 4), (4, 5)),
        ((3, 4), (2, 4, 5)),
        ((6, 1, 3, 4), (2, 4, 5)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((4,), (4,)),
        ((0, 4), (4, 5)),
        ((3, 0), (0, 5)),
    ],
)
def test_shapes_and_gradients_are_those_of_torch_matmul(a_shape, b_shape):
    a, b = torch.randn(a_shape), torch.randn(b_shape)
    grads = []
    for product in (torch.matmul, lambda x, y: custom_fp.matmul(x, y, accumulator="fp32")):
        x, y = a.clone().requires_grad_(), b.clone().requires_grad_()
        result = product(x, y)
        (result * torch.arange(result.numel()).view(result.shape)).sum().backward()
        grads.append((result.detach(), x.grad, y.grad))
    for expected, got in zip(*grads, strict=True):
        # two orders of summation of at most 30 terms in float32
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_backward_accumulator_is_used():
    a, b = torch.randn(7, 8, requires_grad=True), torch.randn(8, 9, requires_grad=True)
    grad = torch.randn(7, 9)
    custom_fp.matmul(a, b, accumulator="fp32", backward_accumulator="e4m3").backward(grad)
    assert equal_bits(a.grad, custom_fp.matmul(grad, b.detach().mT, accumulator="e4m3"))
    assert equal_bits(b.grad, custom_fp.matmul(a.detach().mT, grad, accumulator="e4m3"))


def test_results_do_not_depend_on_threads():
    a, b = torch.randn(5, 130, 64), torch.randn(5, 64, 100)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = custom_fp.matmul(a, b, accumulator="e4m3")
        torch.set_num_threads(3)
        assert equal_bits(one, custom_fp.matmul(a, b, accumulator="e4m3"))
    finally:
        torch.set_num_threads(threads)


def test_bad_input():
    a = torch.ones(3, 4)
    with pytest.raises(ValueError, match="cannot be multiplied"):
        custom_fp.matmul(a, a, accumulator="e5m2")
    with pytest.raises(TypeError, match="float64"):
        custom_fp.matmul(a.double(), a.double().mT, accumulator="e5m2")
    with pytest.raises(ValueError, match="one device"):
        custom_fp.matmul(a, a.mT.to("meta"), accumulator="e5m2")
