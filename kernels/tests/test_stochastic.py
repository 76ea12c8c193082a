"""Stochastic rounding: the generator gives its authors' test vectors, and probabilities are as defined.

The forms with few random bits equal gfloat's StochasticFastest, StochasticFast, Stochastic and StochasticOdd of the
same random bits, for the formats of IEEE P3109. test_backends.py compares the kernels with the reference.
"""

import math
from fractions import Fraction
from itertools import pairwise, product
from math import floor

import custom_fp
import numpy as np
import pytest
import torch
from custom_fp import _native, reference
from custom_fp.formats.names import parse
from custom_fp.formats.scalar import Format
from custom_fp.recipe.parsing import read_rule
from custom_fp.recipe.quantization_spec import QuantizationSpec
from custom_fp.rounding import Form, Rounding, Rule, is_stochastic
from tensors import beside, same_bits

CPU = torch.device("cpu")
# kat_vectors of Random123 (Salmon et al.): rounds, counter, key, result
PI = "243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0"
KNOWN_ANSWERS = [
    (7, "0 0 0 0", "0 0", "5f6fb709 0d893f64 4f121f81 4f730a48"),
    (7, " ".join(["ffffffff"] * 4), "ffffffff ffffffff", "5207ddc2 45165e59 4d8ee751 8c52f662"),
    (7, *PI, "4dfccaba 190a87f0 c47362ba b6b5242a"),
    (10, "0 0 0 0", "0 0", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    (10, " ".join(["ffffffff"] * 4), "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (10, *PI, "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


@pytest.mark.parametrize(("rounds", "counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_known_answers(rounds, counter, key, expected):
    words = [torch.tensor([int(word, 16)]) for word in counter.split()]
    k0, k1 = (int(word, 16) for word in key.split())
    got = reference.philox4x32(words, (k0, k1), rounds)
    assert [f"{int(word):08x}" for word in got] == expected.split()


def test_which_element_reads_which_half_of_a_word():
    words = reference.random_words(128, 0, 0, CPU)
    first = [int(word) >> 16 for word in words[::16]]  # lane 0 of group 0 reads counter 0 with key 0
    assert "".join(f"{half:04x}" for half in first) == "".join(KNOWN_ANSWERS[0][3].split())
    zero = torch.zeros(1, dtype=torch.int64)
    second = reference.philox4x32([zero + 5, zero, zero, zero + 1], (0, 0))  # lane 5: the other halves
    assert [int(word) & 0xFFFF for word in words[5::32]] == [int(word) >> 16 for word in second]


def test_the_compiled_generator_is_the_same():
    # Half way between 0 and the smallest value of e3m0, the top bit of an element's word decides: up if it is 1.
    n, seed = 100_003, -(2**62) + 12345
    up = custom_fp.quantize(torch.full((n,), 0.125), "e3m0", rounding="stochastic", seed=seed) > 0
    assert torch.equal(up, reference.random_words(n, 0, seed, CPU) >> 31 == 1)


@pytest.mark.parametrize("name", ["e5m2", "e4m3fn", "e3m0", "bf16", "e5m10"])
def test_values_that_the_first_half_of_the_random_bits_leaves_undecided(name):
    """Distances that, with the 16 bits that kernels read first, are about one short of a carry."""
    fmt, n, seed, g = Format.parse(name), 40_000, 11, torch.Generator().manual_seed(0)

    def nearly(stream):
        upper = reference.random_words(n, stream, seed, CPU) >> 16
        return (
            (0xFFFF - upper + torch.randint(-1, 3, (n,), generator=g) + torch.rand(n, generator=g)) / 2**16
        ).clamp(0, 1)

    first, second = (
        nearly(0).double(),
        (nearly(4) * fmt.epsilon).float(),
    )  # stream 4: the second term of a sum
    many = list(torch.randn(4, n, generator=g) * fmt.max / 8)
    rule, how = Rule("stochastic", seed=seed), {"rounding": "stochastic", "seed": seed}
    for base, spacing in ((1.0, fmt.epsilon), (0.0, 2.0 ** (fmt.emin - fmt.mantissa_bits))):
        x, expected = (base + first * spacing).float(), torch.empty(n)
        reference.quantize(x, fmt, rule, expected)
        for isa in _native.isas():
            _native.use_isa(isa)
            assert same_bits(custom_fp.quantize(x, fmt, **how), expected), isa
            in_place = x.clone()
            assert same_bits(custom_fp.quantize(in_place, fmt, out=in_place, **how), expected), isa
    for terms, kahan in (([torch.ones(n), second], False), ([-torch.ones(n), -second], False), (many, True)):
        reference.accumulate(terms, fmt, kahan, rule, expected)
        for isa in _native.isas():
            _native.use_isa(isa)
            assert same_bits(custom_fp.accumulate(terms, fmt, kahan=kahan, **how), expected), isa


def test_odds_finer_than_the_first_half():
    n, odds = 1 << 24, 2.0**-19
    x = torch.full((n,), 1 + 0.25 * odds)
    up = int((custom_fp.quantize(x, "e5m2", rounding="stochastic", seed=4) > 1).sum())
    assert abs(up - n * odds) <= 5 * math.sqrt(n * odds)


@pytest.mark.parametrize("name", ["e5m2", "e4m3fn", "e3m0", "bf16", "e5m10"])
def test_unbiased_within_five_sigma(name):
    fmt, n = Format.parse(name), 1 << 18
    low = 2.0**fmt.emin
    gap = low * fmt.epsilon
    # in the middle of the range, below the smallest normal value and far below the smallest value
    for base, spacing in ((1.0, fmt.epsilon), (low, gap), (0.0, gap)):
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
        assert same_bits(custom_fp.quantize(values, name, rounding="stochastic", seed=1), values)


def test_values_past_the_largest_one():
    x = torch.full((10_000,), 60000.0)  # between 57344 and 65536, which e5m2 does not have
    for overflow, expected in (("infinity", {57344.0, math.inf}), ("saturate", {57344.0})):
        got = custom_fp.quantize(x, "e5m2", rounding="stochastic", overflow=overflow, seed=1)
        assert set(got.tolist()) == expected


def test_seeds():
    x = torch.rand(1000)

    def rounded(seed):
        return custom_fp.quantize(x, "e3m1", rounding="stochastic", seed=seed)

    assert torch.equal(rounded(1), rounded(1)) and not torch.equal(rounded(1), rounded(2))
    assert not torch.equal(rounded(1), rounded(1 + (1 << 32)))
    assert torch.equal(rounded(2**64 - 1), rounded(-1)) and torch.equal(rounded(2**63), rounded(-(2**63)))
    torch.manual_seed(0)
    first, second = rounded(None), rounded(None)
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    assert torch.equal(first, rounded(None))


def test_a_part_is_rounded_as_in_the_whole():
    x, fmt = torch.rand(1000), Format.parse("e3m1")
    for rounding in ("nearest_even", "stochastic"):
        whole = custom_fp.quantize(x, fmt, rounding=rounding, seed=9)
        for start, stop in ((0, 1), (0, 15), (0, 65), (1, 2), (127, 129), (128, 1000), (513, 999)):
            how = {"rounding": rounding, "seed": 9, "offset": start}
            assert torch.equal(custom_fp.quantize(x[start:stop], fmt, **how), whole[start:stop])
            packed = custom_fp.pack(x[start:stop], fmt, **how)
            assert torch.equal(packed, custom_fp.pack(whole[start:stop], fmt))
    far, expected = 2**40 + 77, torch.empty(1000)  # counters of more than 32 bits
    reference.quantize(x, fmt, Rule("stochastic", seed=9, offset=far), expected)
    assert torch.equal(custom_fp.quantize(x, fmt, rounding="stochastic", seed=9, offset=far), expected)


# ---- few random bits


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize("name", ["e2m1fn", "e3m0", "e3m2", "e1m2", "p3109_k6p3se"])
def test_probabilities_are_exact_over_all_random_bits(name, form):
    """As many random numbers go up as `Form` says. Over distances in steps of a quarter of the last random bit, a
    quarter of which are halves of it, halves to even and to odd have no bias; `fast` has an eighth of it."""
    fmt = parse(name)
    values = sorted({abs(v) for v in np.array(fmt.values())[np.isfinite(fmt.values())].tolist()})
    ends = [(Fraction(low), Fraction(high)) for low, high in pairwise(values)]
    wanted = {
        Form.CUT: floor,
        Form.FAST: lambda n: floor(n + Fraction(1, 2)),
        Form.EVEN: round,
        Form.ODD: lambda n: round(n + 1) - 1,
    }[form]
    for bits in (1, 2, 5, 12) if form is Form.CUT and len(values) < 16 else (1, 2, 5):
        every = torch.arange(2**bits)[:, None] << 32 - bits
        parts = [Fraction(i, 2 ** (min(bits, 5) + 2)) for i in range(2 ** (min(bits, 5) + 2))]
        x_X = torch.tensor([float(low + d * (high - low)) for low, high in ends for d in parts]).double()
        for sign in (1.0, -1.0):
            rounded_RxX = reference.round_to_format(sign * x_X, fmt, Rule(form.word(bits)), every).abs()
            up_X = (rounded_RxX > x_X).sum(0).tolist()
            assert up_X == [wanted(d * 2**bits) for _ in ends for d in parts]
        assert set(rounded_RxX.unique().tolist()) <= set(values)
        if bits <= 5:
            bias = (
                Fraction(sum(up_X), len(up_X)) - sum(parts) / len(parts) * 2**bits
            )  # of the last random bit
            eighth = Fraction(1, 8)
            assert bias == {Form.CUT: -3 * eighth, Form.FAST: eighth, Form.EVEN: 0, Form.ODD: 0}[form]


def p3109(bits):
    from gfloat.formats import Domain, Signedness, format_info_p3109

    for precision, sign, end in product(range(1, bits + 1), Signedness, Domain):
        is_signed = sign is Signedness.Signed
        if not (is_signed and precision == bits):
            letters = f"{'s' if is_signed else 'u'}{'e' if end is Domain.Extended else 'f'}"
            yield parse(f"p3109_k{bits}p{precision}{letters}"), format_info_p3109(bits, precision, sign, end)


def steps_between(fmt, bits):
    """Return float32 values from each value to the next in steps of half a random bit, each with its neighbors; both
    signs, infinity, NaN, and values past the largest one."""
    values = np.unique(np.abs(np.array(fmt.values())))
    values = np.append(values[np.isfinite(values)], [fmt.max * 1.5, fmt.max * 3])
    at = np.concatenate([np.linspace(low, high, 2 ** (bits + 1) + 1) for low, high in pairwise(values)])
    x = beside(torch.from_numpy(at.astype(np.float32))).clamp(min=0).unique()
    x = torch.cat([x, torch.tensor([torch.inf, torch.nan])])
    return torch.cat([x, -x]) if fmt.is_signed else x


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize("width", [3, 4, 5])
def test_p3109_equals_gfloat_with_the_same_random_bits(width, form):
    """Only three widths are compared here. scripts/checks/check_tables.py compares every width."""
    gfloat = pytest.importorskip("gfloat", reason="gfloat is an optional oracle")
    modes = {
        Form.CUT: "StochasticFastest",
        Form.FAST: "StochasticFast",
        Form.EVEN: "Stochastic",
        Form.ODD: "StochasticOdd",
    }
    mode = gfloat.RoundMode[modes[form]]
    for (fmt, info), bits in product(p3109(width), (1, 4)):
        x = steps_between(fmt, bits).repeat(3)
        drawn = (reference.random_words(len(x), 0, 7, CPU) >> 32 - bits).numpy().astype(np.int16)
        for overflow in ("infinity", "saturate"):
            how = {"rounding": form.word(bits), "overflow": overflow, "seed": 7}
            got = custom_fp.quantize(x, fmt, **how)
            theirs = gfloat.round_ndarray(info, x.double().numpy(), mode, overflow == "saturate", drawn, bits)
            assert np.array_equal(got.double(), theirs, equal_nan=True), (fmt, how)
        data = custom_fp.pack(x, fmt, **how)
        assert same_bits(custom_fp.unpack(data, fmt, x.shape), got), fmt


def test_scalar_formats_equal_gfloat_with_the_same_random_bits():
    gfloat = pytest.importorskip("gfloat", reason="gfloat is an optional oracle")
    for name, info in (("e2m1fn", "ocp_e2m1"), ("e4m3fn", "ocp_e4m3"), ("e5m2", "ocp_e5m2")):
        fmt, g = Format.parse(name), torch.Generator().manual_seed(0)
        x = torch.cat([torch.randn(60, generator=g) * scale for scale in (1.0, fmt.max / 2, 2.0**fmt.emin)])
        x = x.clamp(-fmt.max, fmt.max)
        for bits in (1, 3, 8):
            r = torch.randint(0, 2**bits, x.shape, generator=g)
            got = reference.round_to_format(
                x.double(), fmt, Rule(f"stochastic_{bits}", "saturate"), r << 32 - bits
            )
            mode, info_of = gfloat.RoundMode.StochasticFastest, getattr(gfloat.formats, f"format_info_{info}")
            theirs = [
                gfloat.round_float(info_of, v, mode, sat=True, srbits=bit, srnumbits=bits)
                for v, bit in zip(x.tolist(), r.tolist(), strict=True)
            ]
            assert got.tolist() == theirs


def test_a_value_next_to_a_tie_of_the_random_bits():
    """Test the tie d = 2**-9, half a unit of 8 random bits, and the next value, d = 2**-9 (1 + 2**-23).

    Only values below the smallest subnormal of e5m2 can be less than 2**-31 above the tie.
    """
    quantum, n = 2.0**-16, 4096
    at = torch.full((n,), quantum * 2.0**-9)
    drawn = reference.random_words(n, 0, 3, CPU) >> 24
    for x, more in ((at, 0), (torch.nextafter(at, torch.ones(())), 1)):
        for form, reaches in ((Form.FAST, 1), (Form.EVEN, more), (Form.ODD, 1)):  # EVEN rounds the tie to 0
            got = custom_fp.quantize(x, "e5m2", rounding=form.word(8), seed=3)
            assert torch.equal(got > 0, drawn + reaches >= 256), (form, more)
    assert (drawn == 255).any()


def test_31_random_bits_are_all_of_them():
    x = torch.randn(2000) * torch.logspace(-45, 9, 2000)
    for name in ("e5m2", "nvfp4", "int8_channel"):
        few, every, other = (
            custom_fp.quantize(x.view(4, 500), name, rounding=word, seed=1)
            for word in ("stochastic_31", "stochastic", "stochastic_2")
        )
        assert same_bits(few, every) and not same_bits(few, other), name


def test_names():
    assert Rule("stochastic_even_8", seed=1) == Rule(Rounding.STOCHASTIC, seed=1, bits=8, form=Form.EVEN)
    for word in ("stochastic", "stochastic_8", "stochastic_fast_29", "stochastic_odd_1", "to_odd"):
        assert Rule(word).word == word and is_stochastic(word) == (word != "to_odd")
    rule = {"modules": "*", "role": "weight", "format": "nvfp4", "rounding": "stochastic_6"}
    spec = read_rule("rules[0]", rule).rounding
    assert (
        spec == QuantizationSpec("nvfp4", rounding_mode="stochastic_6")
        and str(spec) == "nvfp4 (stochastic_6)"
    )
    assert spec.nearest == QuantizationSpec("nvfp4")
