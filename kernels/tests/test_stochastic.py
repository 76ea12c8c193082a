"""Stochastic rounding: the generator gives its authors' test vectors, and probabilities are as defined."""

import math

import custom_fp
import pytest
import torch
from custom_fp import native, reference
from custom_fp.formats.scalar import Format
from custom_fp.rounding import Rule

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


def test_which_element_reads_which_half_of_a_word():
    words = reference.random_words(128, 0, 0, torch.device("cpu"))
    first = [int(word) >> 16 for word in words[::16]]  # lane 0 of group 0: counter 0, key 0
    assert "".join(f"{half:04x}" for half in first) == "".join(KNOWN_ANSWERS[0][3].split())
    zero = torch.zeros(1, dtype=torch.int64)
    second = reference.philox4x32([zero + 5, zero, zero, zero + 1], (0, 0))  # lane 5: the other halves
    assert [int(word) & 0xFFFF for word in words[5::32]] == [int(word) >> 16 for word in second]


def test_the_compiled_generator_is_the_same():
    # Half way between 0 and the smallest value of e3m0, the top bit of an element's word decides: up if it is 1.
    n, seed = 100_003, -(2**62) + 12345
    x = torch.full((n,), 0.125)
    up = custom_fp.quantize(x, "e3m0", rounding="stochastic", seed=seed) > 0
    words = reference.random_words(n, 0, seed, torch.device("cpu"))
    assert torch.equal(up, words >> 31 == 1)


@pytest.mark.parametrize("name", ["e5m2", "e4m3fn", "e3m0", "e5m6", "bf16", "e5m10"])
@pytest.mark.parametrize("base", ["normal", "below the smallest"])
def test_where_the_first_half_leaves_it_undecided(name, base):
    """Distances that, with an element's first 16 random bits, come out one short of a carry, or just at it."""
    fmt, n, seed = Format.parse(name), 40_000, 11
    device = torch.device("cpu")
    upper = reference.random_words(n, 0, seed, device) >> 16
    g = torch.Generator().manual_seed(0)
    nearly = (
        0xFFFF - upper + torch.randint(-1, 3, (n,), generator=g)
    )  # in 2**-16 of the distance between two values
    fraction = (nearly + torch.rand(n, generator=g)) / 2**16
    spacing = fmt.epsilon if base == "normal" else 2.0 ** (fmt.emin - fmt.mantissa_bits)
    x = ((base == "normal") + fraction.clamp(0, 1).double() * spacing).float()
    expected, got = torch.empty(n), torch.empty(n)
    reference.quantize(x, fmt, Rule("stochastic", seed=seed), expected)
    try:
        for isa in native._native.isas():
            native._native.use_isa(isa)
            custom_fp.quantize(x, fmt, rounding="stochastic", seed=seed, out=got)
            assert torch.equal(got, expected), isa
            in_place = x.clone()
            custom_fp.quantize(in_place, fmt, rounding="stochastic", seed=seed, out=in_place)
            assert torch.equal(in_place, expected), isa
    finally:
        native._native.use_isa(native._native.isas()[-1])


def test_odds_finer_than_the_first_half():
    n, odds = 1 << 24, 2.0**-19
    x = torch.full((n,), 1 + 0.25 * odds)
    up = int((custom_fp.quantize(x, "e5m2", rounding="stochastic", seed=4) > 1).sum())
    assert abs(up - n * odds) <= 5 * math.sqrt(n * odds)


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


def test_a_part_is_rounded_as_in_the_whole():
    x = torch.rand(1000)
    for rounding in ("nearest_even", "stochastic"):
        whole = custom_fp.quantize(x, "e3m1", rounding=rounding, seed=9)
        codes = custom_fp.encode(whole, "e3m1")
        for start, stop in ((0, 1), (1, 2), (127, 129), (128, 1000), (300, 301), (513, 999)):
            part = custom_fp.quantize(x[start:stop], "e3m1", rounding=rounding, seed=9, offset=start)
            assert torch.equal(part, whole[start:stop])
            packed = custom_fp.pack(x[start:stop], "e3m1", rounding=rounding, seed=9, offset=start)
            assert torch.equal(packed, custom_fp.pack(custom_fp.decode(codes[start:stop], "e3m1"), "e3m1"))
    far = 2**40 + 77  # counters of more than 32 bits
    expected = torch.empty(1000)
    reference.quantize(x, Format.parse("e3m1"), Rule("stochastic", seed=9, offset=far), expected)
    assert torch.equal(custom_fp.quantize(x, "e3m1", rounding="stochastic", seed=9, offset=far), expected)
    with pytest.raises(ValueError, match="offset is -5"):
        custom_fp.quantize(x, "e3m1", rounding="stochastic", offset=-5)
