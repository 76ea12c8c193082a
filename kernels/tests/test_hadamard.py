"""The random Hadamard transform compared with scipy's matrix in exact arithmetic and with the reference; its laws."""

import math

import custom_fp
import numpy as np
import pytest
import torch
from custom_fp import _native, reference
from custom_fp.operators import table as operators
from scipy.linalg import hadamard as matrix
from torch._subclasses.fake_tensor import FakeTensorMode

SEED = 2**63 + 11
EPSILON = 2.0**-24  # of one float32 rounding


def same(a, b):
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


def in_torch(monkeypatch):
    function = operators.function
    monkeypatch.setattr(
        operators, "function", lambda name, *of: getattr(reference, name, None) or function(name, *of)
    )


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 32, 128, 1024])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_compiled_equals_the_reference_on_every_instruction_set(size, axis, monkeypatch):
    shape = [3, 2, 21]
    shape[axis] = 2 * size + 5
    x = normal(*shape)
    x.view(-1)[::37] = torch.tensor(-0.0)
    hostile = x.clone()
    hostile.view(-1)[[0, 9]] = torch.tensor([math.nan, -math.inf])
    hostile.view(-1)[20:24] = torch.tensor([3e38, 3e38, 1e-45, -1e-45])
    cases = [
        (source, seed, inverse)
        for source in (x, hostile)
        for seed in (None, SEED)
        for inverse in (False, True)
    ]

    def all_cases():
        return [
            custom_fp.hadamard(source, size, seed=seed, axis=axis, inverse=inverse)
            for source, seed, inverse in cases
        ]

    found = {}
    for isa in _native.isas():
        _native.use_isa(isa)
        found[isa] = all_cases()
    in_torch(monkeypatch)
    for expected in (found_by_torch := all_cases()):
        assert expected.shape == x.shape
    for isa, results in found.items():
        assert all(map(same, results, found_by_torch)), isa


@pytest.mark.parametrize("size", [2, 16, 64, 512])
def test_the_matrix_is_scipy_s(size):
    """Whole numbers: every sum is exact, and the one rounding is that of the product with size**-.5."""
    x = torch.randint(-1000, 1000, (6, size), generator=torch.Generator().manual_seed(1)).float()
    scale = np.float32(size**-0.5)
    sums = x.numpy().astype(np.int64) @ matrix(size)
    assert np.array_equal(custom_fp.hadamard(x, size).numpy(), sums.astype(np.float32) * scale)

    signs = custom_fp.hadamard(torch.eye(size) * size, size, seed=5)[:, 0].sign()
    assert 0 < (signs < 0).sum() < size or size == 2
    signed = (x * signs).numpy().astype(np.int64) @ matrix(size)
    assert np.array_equal(custom_fp.hadamard(x, size, seed=5).numpy(), signed.astype(np.float32) * scale)


def test_signs_are_those_of_the_generator_and_the_same_in_every_block():
    words = reference.random_words(512, reference.HADAMARD, SEED, torch.device("cpu"))
    first = torch.zeros(1024)
    first[::512] = 1  # H of each block: ones; so that back, the signs are left
    spread = custom_fp.hadamard(first, 512, seed=SEED, inverse=True)
    assert torch.equal(spread.sign(), (1.0 - 2 * (words >> 31)).repeat(2).float())
    assert not torch.equal(spread, custom_fp.hadamard(first, 512, seed=SEED + 1, inverse=True))


def test_known_answers():
    """Signs that runs of long ago were made with, and a block worked out by hand."""
    first = torch.eye(16)[0] * 4
    drawn = {seed: custom_fp.hadamard(first, seed=seed, inverse=True).tolist() for seed in (0, 2)}
    signs = {seed: "".join("+-"[value < 0] for value in values) for seed, values in drawn.items()}
    assert signs == {0: "-+------++++++++", 2: "+++--+++---+--+-"}
    assert custom_fp.hadamard(torch.tensor([1.0, 2.0, 3.0, 5.0]), 4).tolist() == [5.5, -1.5, -2.5, 0.5]


@pytest.mark.parametrize("size", [1, 4, 16, 64, 1024])
def test_back_is_exact_for_whole_multiples_of_a_power_of_two(size):
    most = 2**24 // size
    x = torch.randint(-most, most + 1, (4, size), generator=torch.Generator().manual_seed(2)) * 2.0**-40
    there = custom_fp.hadamard(x, size, seed=SEED)
    assert same(custom_fp.hadamard(there, size, seed=SEED, inverse=True), x + 0.0)


@pytest.mark.parametrize("size", [2, 16, 32, 256])
def test_back_and_dot_products_within_the_bound_of_their_roundings(size):
    """k butterflies and a product: k + 1 roundings of relative error 2**-24 each in the norm of a block, and that of
    the constant; so |error| <= 2 (k + 2) 2**-24 |x| there and back, and of a dot product 2 (k + 2) 2**-24 |x| |y|; a
    tenth more for products of the roundings."""
    x, y = normal(50, size), normal(50, size, seed=1)
    bound = 2.2 * (math.log2(size) + 2) * EPSILON
    there, other = (custom_fp.hadamard(each, size, seed=3) for each in (x, y))
    back = custom_fp.hadamard(there, size, seed=3, inverse=True)
    assert ((back.double() - x.double()).norm(dim=1) <= bound * x.double().norm(dim=1)).all()
    apart = (there.double() * other.double()).sum(1) - (x.double() * y.double()).sum(1)
    assert (apart.abs() <= bound * x.double().norm(dim=1) * y.double().norm(dim=1)).all()
    assert there.abs().max() > 0 and not torch.equal(there, x)


def test_along_any_axis_and_what_is_left_of_it_stays():
    x = normal(5, 37, 6)
    for axis in (0, 1, 2, -2):
        there = custom_fp.hadamard(x, 4, seed=1, axis=axis)
        last = custom_fp.hadamard(x.movedim(axis, -1).contiguous(), 4, seed=1).movedim(-1, axis)
        assert same(there, last)
        whole = x.shape[axis] // 4 * 4
        assert same(
            there.narrow(axis, whole, x.shape[axis] - whole), x.narrow(axis, whole, x.shape[axis] - whole)
        )
    assert same(custom_fp.hadamard(x, 64), x)
    assert custom_fp.hadamard(torch.tensor(3.0), 16) == 3 and custom_fp.hadamard(
        torch.empty(0, 4), 4
    ).shape == (0, 4)


def test_types_strides_out_and_threads():
    x = normal(33, 64)
    expected = custom_fp.hadamard(x, 32, seed=1)
    wide = x.double() * (1 + 2.0**-40)
    assert same(
        custom_fp.hadamard(wide, 32, seed=1), custom_fp.hadamard(custom_fp.quantize(wide, "fp32"), 32, seed=1)
    )
    assert same(custom_fp.hadamard(x.t(), 32, seed=1, axis=0), expected.t())
    assert same(custom_fp.hadamard(x.bfloat16(), 16), custom_fp.hadamard(x.bfloat16().float(), 16))
    into = x.clone()
    assert custom_fp.hadamard(into, 32, seed=1, out=into) is into and same(into, expected)
    large = normal(700_016)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = custom_fp.hadamard(large, seed=4)
        columns = custom_fp.hadamard(large.view(16, -1), seed=4, axis=0)
        torch.set_num_threads(3)
        assert same(custom_fp.hadamard(large, seed=4), alone)
        assert same(custom_fp.hadamard(large.view(16, -1), seed=4, axis=0), columns)
    finally:
        torch.set_num_threads(threads)


def test_gradients_are_the_transposed_matrix():
    x, weights = normal(3, 8, 5).double().requires_grad_(), normal(3, 8, 5, seed=1)
    custom_fp.hadamard(x, 4, seed=9, axis=1).mul(weights).sum().backward()
    expected = custom_fp.hadamard(weights, 4, seed=9, axis=1, inverse=True)
    assert x.grad.dtype is torch.float64 and torch.equal(x.grad, expected.double())
    twice = torch.func.grad(
        lambda v: torch.func.grad(lambda u: custom_fp.hadamard(u, 4).pow(2).sum())(v).sum()
    )
    torch.testing.assert_close(twice(weights[0, 0, :4].clone()), torch.full((4,), 2.0))
    value, moved = torch.func.jvp(
        lambda v: custom_fp.hadamard(v, 4, seed=9, axis=1), (weights,), (weights * 2,)
    )
    assert same(value * 2, moved)


def test_under_torch_s_transforms():
    def transform(x):
        return custom_fp.hadamard(x, 4, seed=9, axis=0), custom_fp.hadamard(x, 8, axis=-1, inverse=True)

    x = normal(3, 12, 8)
    for dim in (0, 2):
        batch = x.movedim(0, dim)
        for got, each in zip(
            torch.vmap(transform, in_dims=dim)(batch), zip(*map(transform, x), strict=True), strict=True
        ):
            assert same(got, torch.stack(each))
    assert same(torch.vmap(lambda v: custom_fp.hadamard(v, 2))(normal(4)), normal(4))
    slopes = torch.vmap(torch.func.grad(lambda v: (transform(v)[0] ** 2).sum()))(x)
    torch.testing.assert_close(slopes, 2 * x)
    torch._dynamo.reset()
    leaf = x.clone().requires_grad_()
    compiled = torch.compile(transform, fullgraph=True, backend="aot_eager")
    for got, expected in zip(compiled(leaf), transform(x), strict=True):
        assert same(got.detach(), expected)
    compiled(leaf)[0].sum().backward()
    assert same(leaf.grad, custom_fp.hadamard(torch.ones_like(x), 4, seed=9, axis=0, inverse=True))
    with FakeTensorMode():
        assert custom_fp.hadamard(torch.empty(5, 16, dtype=torch.float16)).dtype is torch.float32


def test_outliers_are_spread_and_what_is_not_finite_stays_in_sight():
    x = torch.zeros(2, 16)
    x[0, 3] = 16.0
    x[1, 5] = math.inf
    there = custom_fp.hadamard(x)
    assert (there[0].abs() == 4).all() and not there[1].isfinite().any()
    nan = custom_fp.hadamard(torch.full((16,), -math.nan))
    assert (nan.view(torch.int32) == 0x7FC00000).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: custom_fp.hadamard(x, 12), "must be a power of two; got 12"),
        (lambda x: custom_fp.hadamard(x, 0), "got 0"),
        (lambda x: custom_fp.hadamard(x, 16.0), "got 16.0"),
        (lambda x: custom_fp.hadamard(x, axis=2), r"axis is 2; allowed for shape \[2, 16\]: -2 to 1"),
        (lambda x: custom_fp.hadamard(x, axis=1.0), "axis is 1.0; it must be an integer"),
        (lambda x: custom_fp.hadamard(x, axis=None), "hadamard requires an axis"),
        (lambda x: custom_fp.hadamard(x, seed=0.5), "seed is 0.5"),
        (lambda x: custom_fp.hadamard(x.int()), "expected a float32"),
    ],
)  # fmt: skip
def test_errors_say_what_is_wrong(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call(normal(2, 16))
