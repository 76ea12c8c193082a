"""Stochastic rounding: the generator against its authors' vectors, and the odds against their definition."""

import math

import custom_fp
import pytest
import torch
from custom_fp import reference
from custom_fp.format import Format

# kat_vectors of Random123 (Salmon et al.): rounds, counter, key, result
KNOWN_ANSWERS = [
    (7, "0 0 0 0", "0 0", "5f6fb709 0d893f64 4f121f81 4f730a48"),
    (7, " ".join(["ffffffff"] * 4), "ffffffff ffffffff", "5207ddc2 45165e59 4d8ee751 8c52f662"),
    (
        7,
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "4dfccaba 190a87f0 c47362ba b6b5242a",
    ),
    (10, "0 0 0 0", "0 0", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    (10, " ".join(["ffffffff"] * 4), "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        10,
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


@pytest.mark.parametrize(("rounds", "counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_known_answers(rounds, counter, key, expected):
    words = [torch.tensor([int(word, 16)]) for word in counter.split()]
    k0, k1 = (int(word, 16) for word in key.split())
    got = reference.philox4x32(words, (k0, k1), rounds)
    assert [f"{int(word):08x}" for word in got] == expected.split()


def test_the_compiled_generator_is_the_same():
    # Half way between 0 and the smallest value of e3m0, the top bit of an element's word decides: up if it is 1.
    n, seed = 100_003, -(2**62) + 12345
    x = torch.full((n,), 0.125)
    up = custom_fp.quantize(x, "e3m0", rounding="stochastic", seed=seed) > 0
    words = reference.random_words(n, 0, seed, torch.device("cpu"))
    assert torch.equal(up, words >> 31 == 1)


@pytest.mark.parametrize("name", ["e5m2", "e4m3fn", "e3m0", "bf16", "e5m10"])
def test_unbiased_within_five_sigma(name):
    fmt, n = Format.parse(name), 1 << 20
    low = 2.0**fmt.emin
    gap = low * fmt.epsilon
    # in the middle of the range, below the smallest normal value and far below the smallest value
    cases = [(1.0, fmt.epsilon), (low, gap), (0.0, gap)]
    for base, spacing in cases:
        for odds in (2.0**-12, 0.1, 0.5, 0.75, 1 - 2.0**-10):
            x = torch.full((n,), base + odds * spacing)
            exact = (x[0].item() - base) / spacing
            up = custom_fp.quantize(x, fmt, rounding="stochastic", seed=3).double().sub(base).div(spacing)
            assert set(up.unique().tolist()) <= {0.0, 1.0}
            sigma = math.sqrt(exact * (1 - exact) / n)
            assert abs(up.mean().item() - exact) <= 5 * sigma + 2.0**-31, (base, odds)


def test_values_of_the_format_stay():
    for name in ("e5m2", "e4m3fn", "e2m1fn", "e1m2"):
        values = torch.tensor([v for v in Format.parse(name).values() if math.isfinite(v)])
        got = custom_fp.quantize(values, name, rounding="stochastic", seed=1)
        assert torch.equal(got.view(torch.int32), values.view(torch.int32))


def test_past_the_largest_value():
    x = torch.full((10_000,), 60000.0)  # between 57344 and 65536, which e5m2 has not
    got = custom_fp.quantize(x, "e5m2", rounding="stochastic", seed=1)
    assert set(got.tolist()) == {57344.0, math.inf}
    got = custom_fp.quantize(x, "e5m2", rounding="stochastic", overflow="saturate", seed=1)
    assert set(got.tolist()) == {57344.0}


def test_seeds():
    x = torch.rand(1000)

    def rounded(seed):
        return custom_fp.quantize(x, "e3m1", rounding="stochastic", seed=seed)

    assert torch.equal(rounded(1), rounded(1)) and not torch.equal(rounded(1), rounded(2))
    assert not torch.equal(rounded(1), rounded(1 + (1 << 32)))
    torch.manual_seed(0)
    first, second = rounded(None), rounded(None)
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    assert torch.equal(first, rounded(None))


def test_an_element_rounds_the_same_alone_and_in_a_longer_tensor():
    x = torch.rand(1000)
    whole = custom_fp.quantize(x, "e3m1", rounding="stochastic", seed=9)
    for n in (1, 15, 16, 63, 64, 65, 500):
        assert torch.equal(custom_fp.quantize(x[:n], "e3m1", rounding="stochastic", seed=9), whole[:n])
