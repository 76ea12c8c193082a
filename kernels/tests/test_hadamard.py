"""The random Hadamard transform compared with scipy's matrix in exact arithmetic, and its laws.

test_backends.py compares the kernels with the reference.
"""

import math

import custom_fp
import numpy as np
import pytest
import torch
from custom_fp import reference
from scipy.linalg import hadamard as matrix
from tensors import normal, same_bits

SEED = 2**63 + 11
EPSILON = 2.0**-24  # relative error of one float32 rounding


@pytest.mark.parametrize("size", [2, 16, 64, 512])
def test_the_matrix_is_scipys(size):
    """With whole numbers, every sum is exact. Only the product with size**-.5 is rounded."""
    x = torch.randint(-1000, 1000, (6, size), generator=torch.Generator().manual_seed(1)).float()
    scale = np.float32(size**-0.5)
    sums = x.numpy().astype(np.int64) @ matrix(size)
    assert np.array_equal(custom_fp.hadamard(x, size).numpy(), sums.astype(np.float32) * scale)

    signs = custom_fp.hadamard(torch.eye(size) * size, size, seed=5)[:, 0].sign()
    assert 0 < (signs < 0).sum() < size or size == 2
    signed = (x * signs).numpy().astype(np.int64) @ matrix(size)
    assert np.array_equal(custom_fp.hadamard(x, size, seed=5).numpy(), signed.astype(np.float32) * scale)


def test_every_block_has_the_signs_of_the_generator():
    words = reference.random_words(512, reference.HADAMARD, SEED, torch.device("cpu"))
    first = torch.zeros(1024)
    first[::512] = 1  # H of each block is ones, so the inverse leaves the signs
    spread = custom_fp.hadamard(first, 512, seed=SEED, inverse=True)
    assert torch.equal(spread.sign(), (1.0 - 2 * (words >> 31)).repeat(2).float())
    assert not torch.equal(spread, custom_fp.hadamard(first, 512, seed=SEED + 1, inverse=True))


def test_known_answers():
    """Signs that earlier runs used, and a block worked out by hand."""
    first = torch.eye(16)[0] * 4
    drawn = {seed: custom_fp.hadamard(first, seed=seed, inverse=True).tolist() for seed in (0, 2)}
    signs = {seed: "".join("+-"[value < 0] for value in values) for seed, values in drawn.items()}
    assert signs == {0: "-+------++++++++", 2: "+++--+++---+--+-"}
    assert custom_fp.hadamard(torch.tensor([1.0, 2.0, 3.0, 5.0]), 4).tolist() == [5.5, -1.5, -2.5, 0.5]


@pytest.mark.parametrize("size", [1, 4, 16, 64, 1024])
def test_the_inverse_is_exact_for_whole_multiples_of_a_power_of_two(size):
    most = 2**24 // size
    x = torch.randint(-most, most + 1, (4, size), generator=torch.Generator().manual_seed(2)) * 2.0**-40
    there = custom_fp.hadamard(x, size, seed=SEED)
    assert same_bits(custom_fp.hadamard(there, size, seed=SEED, inverse=True), x + 0.0)


@pytest.mark.parametrize("size", [2, 16, 32, 256])
def test_inverse_and_dot_products_within_the_bound_of_their_roundings(size):
    """A transform of size 2**k consists of k butterflies and a product, and has k + 2 rounding errors.

    Each is at most 2**-24, relative to the norm of a block, including the error of the constant. The error of
    a transform and its inverse is thus at most 2 (k + 2) 2**-24 |x|, and that of a dot product 2 (k + 2)
    2**-24 |x| |y|. The bound is a tenth larger, which allows for products of errors.
    """
    x, y = normal(50, size), normal(50, size, seed=1)
    bound = 2.2 * (math.log2(size) + 2) * EPSILON
    there, other = (custom_fp.hadamard(each, size, seed=3) for each in (x, y))
    back = custom_fp.hadamard(there, size, seed=3, inverse=True)
    assert ((back.double() - x.double()).norm(dim=1) <= bound * x.double().norm(dim=1)).all()
    apart = (there.double() * other.double()).sum(1) - (x.double() * y.double()).sum(1)
    assert (apart.abs() <= bound * x.double().norm(dim=1) * y.double().norm(dim=1)).all()
    assert there.abs().max() > 0 and not torch.equal(there, x)


def test_along_any_axis_and_the_rest_of_the_axis_stays():
    x = normal(5, 37, 6)
    for axis in (0, 1, 2, -2):
        there = custom_fp.hadamard(x, 4, seed=1, axis=axis)
        last = custom_fp.hadamard(x.movedim(axis, -1).contiguous(), 4, seed=1).movedim(-1, axis)
        assert same_bits(there, last)
        whole = x.shape[axis] // 4 * 4
        rest = axis, whole, x.shape[axis] - whole
        assert same_bits(there.narrow(*rest), x.narrow(*rest))
    assert same_bits(custom_fp.hadamard(x, 64), x)
    assert custom_fp.hadamard(torch.tensor(3.0), 16) == 3
    assert custom_fp.hadamard(torch.empty(0, 4), 4).shape == (0, 4)


def test_types_strides_and_out():
    x = normal(33, 64)
    expected, wide = custom_fp.hadamard(x, 32, seed=1), x.double() * (1 + 2.0**-40)
    assert same_bits(custom_fp.hadamard(wide, 32), custom_fp.hadamard(custom_fp.quantize(wide, "fp32"), 32))
    assert same_bits(custom_fp.hadamard(x.t(), 32, seed=1, axis=0), expected.t())
    assert same_bits(custom_fp.hadamard(x.bfloat16(), 16), custom_fp.hadamard(x.bfloat16().float(), 16))
    into = x.clone()
    assert custom_fp.hadamard(into, 32, seed=1, out=into) is into and same_bits(into, expected)


def test_gradients_are_the_transposed_matrix():
    x, weights = normal(3, 8, 5).double().requires_grad_(), normal(3, 8, 5, seed=1)
    custom_fp.hadamard(x, 4, seed=9, axis=1).mul(weights).sum().backward()
    expected = custom_fp.hadamard(weights, 4, seed=9, axis=1, inverse=True)
    assert x.grad.dtype is torch.float64 and torch.equal(x.grad, expected.double())
    once = torch.func.grad(lambda u: custom_fp.hadamard(u, 4).pow(2).sum())
    twice = torch.func.grad(lambda v: once(v).sum())
    torch.testing.assert_close(twice(weights[0, 0, :4].clone()), torch.full((4,), 2.0))
    given = (weights,), (weights * 2,)
    value, moved = torch.func.jvp(lambda v: custom_fp.hadamard(v, 4, seed=9, axis=1), *given)
    assert same_bits(value * 2, moved)
    each = torch.vmap(torch.func.grad(lambda v: (custom_fp.hadamard(v, 4, seed=9) ** 2).sum()))(
        normal(3, 12, 8)
    )
    torch.testing.assert_close(each, 2 * normal(3, 12, 8))


def test_outliers_are_spread_and_infinity_and_nan_stay_visible():
    x = torch.zeros(2, 16)
    x[0, 3], x[1, 5] = 16.0, math.inf
    there = custom_fp.hadamard(x)
    assert (there[0].abs() == 4).all() and not there[1].isfinite().any()
    nan = custom_fp.hadamard(torch.full((16,), -math.nan))
    assert (nan.view(torch.int32) == 0x7FC00000).all()
