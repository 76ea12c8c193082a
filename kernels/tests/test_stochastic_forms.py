"""stochastic_fast_N, stochastic_even_N, stochastic_odd_N: gfloat's StochasticFast, Stochastic and StochasticOdd of
the same random bits, for IEEE P3109's formats; their probabilities, exactly, over all random bits; every build of the
kernels draws as the reference does, of numbers a hair beside a tie of the random bits too."""

from fractions import Fraction
from itertools import pairwise
from math import floor

import custom_fp
import gfloat
import numpy as np
import pytest
import torch
from custom_fp import native, reference
from custom_fp.formats.names import parse
from custom_fp.rounding import Form, Rounding, Rule, is_stochastic
from custom_fp.scaled.arithmetic import ScaledReference
from gfloat.formats import Domain, Signedness, format_info_p3109
from torch import Tensor

MODES = {
    Form.CUT: gfloat.RoundMode.StochasticFastest,
    Form.FAST: gfloat.RoundMode.StochasticFast,
    Form.EVEN: gfloat.RoundMode.Stochastic,
    Form.ODD: gfloat.RoundMode.StochasticOdd,
}
NEW = [Form.FAST, Form.EVEN, Form.ODD]


def same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


def steps_between(fmt: custom_fp.NumberFormat, bits: int) -> Tensor:
    """float32: from each value to the next in steps of half a random bit, each with the float32 beside it; and both
    signs, infinities, NaN, what is past the largest."""
    values = np.unique(np.abs(np.array(fmt.values())))
    values = np.append(values[np.isfinite(values)], [fmt.max * 1.5, fmt.max * 3])
    at = np.concatenate([np.linspace(low, high, 2 ** (bits + 1) + 1) for low, high in pairwise(values)])
    at = at.astype(np.float32)
    near = [at, np.nextafter(at, np.float32(np.inf)), np.nextafter(at, np.float32(0))]
    x = torch.from_numpy(np.unique(np.concatenate(near)))
    x = torch.cat([x, torch.tensor([torch.inf, torch.nan])])
    return torch.cat([x, -x]) if fmt.is_signed else x


def p3109(bits: int):
    for precision in range(1, bits + 1):
        for signed, extended in ((s, e) for s in (True, False) for e in (True, False)):
            if signed and precision == bits:
                continue
            sign = Signedness.Signed if signed else Signedness.Unsigned
            domain = Domain.Extended if extended else Domain.Finite
            name = f"p3109_k{bits}p{precision}{'s' if signed else 'u'}{'e' if extended else 'f'}"
            yield parse(name), format_info_p3109(bits, precision, sign, domain)


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize("width", [3, 4, 5])
def test_p3109_is_gfloats_with_the_same_random_bits(width, form):
    """Of every width scripts/checks/check_tables.py does."""
    for fmt, info in p3109(width):
        for bits in (1, 4):
            x = steps_between(fmt, bits).repeat(3)
            words = reference.random_words(len(x), 0, 7, x.device)
            drawn = (words >> 32 - bits).numpy().astype(np.int16)
            for overflow in ("infinity", "saturate"):
                how = {"rounding": form.word(bits), "overflow": overflow, "seed": 7}
                got = custom_fp.quantize(x, fmt, **how)
                theirs = gfloat.round_ndarray(
                    info, x.double().numpy(), MODES[form], overflow == "saturate", drawn, bits
                )
                assert np.array_equal(got.double(), theirs, equal_nan=True), (fmt, how)
                if overflow == "infinity":
                    data = custom_fp.pack(x, fmt, rounding=form.word(bits), seed=7)
                    assert same(custom_fp.unpack(data, fmt, x.shape), got), fmt


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize("name", ["e2m1fn", "e3m2", "e1m2", "p3109_k6p3se"])
def test_the_probabilities_are_those_of_the_definition(name, form):
    """As many R go up as `Form` says. Over distances in steps of a quarter of the last random bit, a quarter of
    which are halves of it, halves to even and to odd have no bias; `fast` has an eighth of it."""
    fmt = parse(name)
    values = sorted({abs(v) for v in np.array(fmt.values())[np.isfinite(fmt.values())].tolist()})
    for bits in (1, 2, 5):
        every = torch.arange(2**bits)[:, None] << 32 - bits
        parts = [Fraction(i, 2 ** (bits + 2)) for i in range(2 ** (bits + 2))]
        ends = [(Fraction(low), Fraction(high)) for low, high in pairwise(values)]
        x_X = torch.tensor([float(low + d * (high - low)) for low, high in ends for d in parts]).double()
        rounded_RxX = reference.round_to_format(x_X, fmt, Rule(form.word(bits)), every)
        up_X = (rounded_RxX > x_X).sum(0).tolist()
        wanted = {
            Form.CUT: lambda n: floor(n),
            Form.FAST: lambda n: floor(n + Fraction(1, 2)),
            Form.EVEN: round,
            Form.ODD: lambda n: round(n + 1) - 1,
        }[form]
        assert up_X == [wanted(d * 2**bits) for _ in ends for d in parts]
        bias = Fraction(sum(up_X), len(up_X)) - sum(parts) / len(parts) * 2**bits  # of the last random bit
        eighth = Fraction(1, 8)
        assert bias == {Form.CUT: -3 * eighth, Form.FAST: eighth, Form.EVEN: 0, Form.ODD: 0}[form]


# ---- the kernels


@pytest.fixture(params=native._native.isas())
def isa(request):
    native._native.use_isa(request.param)
    yield request.param
    native._native.use_isa(native._native.isas()[-1])


def hostile(n: int, bits: int) -> Tensor:
    """float64 of every magnitude; zeros, subnormals, infinities and NaN; at ties of so many random bits, in small
    formats, and beside them by less than float32 could."""
    g = torch.Generator().manual_seed(1)
    x = (torch.randn(n, generator=g) * torch.logspace(-45, 9, n)).double()
    low = 2.0 ** torch.randint(-30, 9, (n,), generator=g)
    tie = low * (
        1 + torch.randint(0, 2 ** (min(bits, 20) + 4), (n,), generator=g) * 2.0 ** -(min(bits, 20) + 3)
    )
    beside = 1 + torch.randint(-1, 2, (n,), generator=g) * 2.0**-40
    x = torch.where(torch.arange(n) % 2 == 0, x, tie * beside)
    x[3:8] = torch.tensor([torch.inf, -torch.inf, torch.nan, -0.0, 1e-45])
    return x


@pytest.mark.parametrize("bits", [1, 8, 15, 16, 17, 29])
@pytest.mark.parametrize("form", NEW)
def test_every_build_draws_as_the_reference(isa, form, bits):
    how = {"rounding": form.word(bits), "seed": 5, "offset": 300}
    n, rule, wide = 2000, Rule(**how), hostile(2000, bits)
    x = wide.float()
    for name in ("e5m2", "e3m0", "bf16", "e5m10", "e4m3fnuz", "ue4m3", "p3109_k6p3se", "posit8"):
        fmt, out = parse(name), torch.empty(n)
        for y in (x, wide):
            reference.quantize(y, fmt, rule, out)
            assert same(custom_fp.quantize(y, fmt, **how), out), (name, y.dtype)
        for kahan in (False, True):
            terms = [x, x.flip(0), torch.relu(x)]
            reference.accumulate(terms, fmt, kahan, rule, out)
            assert same(custom_fp.accumulate(terms, fmt, kahan=kahan, **how), out), (name, kahan)
        packed = torch.empty(custom_fp.packed_size(n, fmt), dtype=torch.uint8)
        reference.pack(x, fmt, 3, rule, packed)
        assert torch.equal(custom_fp.pack(x, fmt, shift=3, **how), packed), name
    for name in ("nvfp4", "mxfp8_e4m3"):
        fmt, out = parse(name), torch.empty(10, 192)
        ScaledReference().quantize(x[:1920].view(10, 192), fmt, rule, out, None)
        assert same(custom_fp.quantize(x[:1920].view(10, 192), fmt, **how), out), name


def test_a_hair_beside_a_tie_of_the_random_bits():
    """d = 2**-9 (1 + 2**-23): a half of 8 random bits and less than 2**-31 more, which a subnormal of e5m2 has."""
    quantum, n = 2.0**-16, 4096
    at = torch.full((n,), quantum * 2.0**-9)
    drawn = reference.random_words(n, 0, 3, at.device) >> 24
    for x, more in ((at, 0), (torch.nextafter(at, torch.ones(())), 1)):
        for form, reaches in ((Form.FAST, 1), (Form.EVEN, more), (Form.ODD, 1)):  # 0 is even: a half is lost
            got = custom_fp.quantize(x, "e5m2", rounding=form.word(8), seed=3)
            assert torch.equal(got > 0, drawn + reaches >= 256), (form, more)
    assert (drawn == 255).any()


# ---- words


def test_the_words():
    assert Rule("stochastic_even_8", seed=1) == Rule(Rounding.STOCHASTIC, seed=1, bits=8, form=Form.EVEN)
    for word in ("stochastic", "stochastic_8", "stochastic_fast_29", "stochastic_odd_1", "to_odd"):
        assert Rule(word).word == word and is_stochastic(word) == (word != "to_odd")


@pytest.mark.parametrize("word", ["stochastic_even_0", "stochastic_fast_30", "stochastic_odd_08"])
def test_a_number_of_bits_that_there_is_not(word):
    form = word.split("_")[1]
    with pytest.raises(
        ValueError, match=f"'{word}'; allowed: stochastic_{form}_1 to stochastic_{form}_29, by"
    ):
        custom_fp.quantize(torch.ones(2), "e5m2", rounding=word)


@pytest.mark.parametrize("word", ["stochastic_even", "stochastic_fastest_8", "stochastic_even_"])
def test_a_form_that_there_is_not(word):
    with pytest.raises(ValueError, match=f"'{word}'; allowed: .*stochastic_odd_1 to stochastic_odd_29"):
        custom_fp.quantize(torch.ones(2), "e5m2", rounding=word)
