"""Stochastic rounding with few random bits: its probabilities are those of the definition, exactly, over all random
bits; every build of the kernels draws as the reference does; gfloat's StochasticFastest is the same rounding."""

from fractions import Fraction
from itertools import pairwise
from math import floor

import custom_fp
import gfloat
import pytest
import torch
from custom_fp import native, reference
from custom_fp.formats.scalar import Format
from custom_fp.recipe.parsing import read_rule
from custom_fp.recipe.quantization_spec import QuantizationSpec
from custom_fp.rounding import Rule, is_stochastic
from custom_fp.scaled.arithmetic import ScaledReference
from gfloat.formats import format_info_ocp_e2m1, format_info_ocp_e4m3, format_info_ocp_e5m2

SOME = ["stochastic_1", "stochastic_4", "stochastic_15", "stochastic_16", "stochastic_17", "stochastic_24"]


def between(fmt: Format, points: int) -> tuple[torch.Tensor, list[tuple[float, float]]]:
    """Float32 values of the whole range, on the grid of few bits and off it, and the two that each is between."""
    values = sorted({abs(v) for v in fmt.values() if abs(v) <= fmt.max})
    found, ends = [], []
    for low, high in pairwise(values):
        for i in range(points):
            for x in (low + (high - low) * i / points, low + (high - low) * (i / points + 2.0**-14)):
                found.append(x)
                ends.append((low, high))
    return torch.tensor(found, dtype=torch.float32), ends


@pytest.mark.parametrize("name", ["e2m1fn", "e3m0", "e3m2", "e1m2"])
def test_the_probabilities_are_exact(name):
    fmt = Format.parse(name)
    x_X, ends = between(fmt, 12)
    assert all(low <= x < high for x, (low, high) in zip(x_X.tolist(), ends, strict=True))
    distances = [
        (Fraction(x) - Fraction(low)) / (Fraction(high) - Fraction(low))
        for x, (low, high) in zip(x_X.tolist(), ends, strict=True)
    ]
    for bits in range(1, 13):
        every = torch.arange(2**bits)[:, None] << 32 - bits
        for sign in (1.0, -1.0):
            rounded_RxX = reference.round_to_format(
                sign * x_X.double(), fmt, Rule(f"stochastic_{bits}"), every
            )
            up_X = (rounded_RxX.abs() > x_X.double()).sum(0)
            assert set(rounded_RxX.abs().unique().tolist()) <= {v for pair in ends for v in pair}
            assert up_X.tolist() == [floor(d * 2**bits) for d in distances], bits
    lost = sum((d - Fraction(floor(d * 2**6), 2**6)) for d in distances) / len(distances)
    assert 0 < lost < Fraction(1, 2**6)  # toward zero, by half of 2**-6 where distances are uniform


@pytest.mark.parametrize(
    ("name", "info"),
    [("e2m1fn", format_info_ocp_e2m1), ("e4m3fn", format_info_ocp_e4m3), ("e5m2", format_info_ocp_e5m2)],
)
def test_it_is_the_fastest_of_gfloat(name, info):
    fmt = Format.parse(name)
    g = torch.Generator().manual_seed(0)
    x = torch.cat([torch.randn(60, generator=g) * scale for scale in (1.0, fmt.max / 2, 2.0**fmt.emin)])
    x = x.clamp(-fmt.max, fmt.max)
    for bits in (1, 3, 8):
        r = torch.randint(0, 2**bits, x.shape, generator=g)
        got = reference.round_to_format(
            x.double(), fmt, Rule(f"stochastic_{bits}", "saturate"), r << 32 - bits
        )
        mode = gfloat.RoundMode.StochasticFastest
        theirs = [
            gfloat.round_float(info, v, mode, sat=True, srbits=bit, srnumbits=bits)
            for v, bit in zip(x.tolist(), r.tolist(), strict=True)
        ]
        assert got.tolist() == theirs


@pytest.fixture(params=native._native.isas())
def isa(request):
    native._native.use_isa(request.param)
    yield request.param
    native._native.use_isa(native._native.isas()[-1])


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


def hostile(n: int) -> torch.Tensor:
    """Of every magnitude; zeros and values of small formats, subnormals, infinities and NaN."""
    g = torch.Generator().manual_seed(1)
    x = torch.randn(n, generator=g) * torch.logspace(-45, 9, n)
    x[::3], x[1::7], x[2::11] = 0.0, 1.5, 2.0**-15
    x[40:45] = torch.tensor([torch.inf, -torch.inf, torch.nan, -0.0, 1e-45])
    return x


@pytest.mark.parametrize("rounding", SOME)
def test_every_build_draws_as_the_reference(isa, rounding):
    rule = Rule(rounding, seed=5, offset=300)
    how = {"rounding": rounding, "seed": 5, "offset": 300}
    x, n = hostile(3000), 3000
    finite = torch.relu(
        torch.randn(3000, generator=torch.Generator().manual_seed(2))
    )  # half of it zeros: quick
    for name in ("e5m2", "e3m0", "bf16", "e5m10"):
        fmt, out = Format.parse(name), torch.empty(n)
        for terms in ([x, x.flip(0), finite], [finite, -finite, finite.flip(0)]):
            reference.quantize(terms[0], fmt, rule, out)
            assert same(custom_fp.quantize(terms[0], fmt, **how), out), name
            assert same(custom_fp.quantize(terms[0].double(), fmt, **how), out), name
            for kahan in (False, True):
                reference.accumulate(terms, fmt, kahan, rule, out)
                assert same(custom_fp.accumulate(terms, fmt, kahan=kahan, **how), out), (name, kahan)
        packed = torch.empty(custom_fp.packed_size(n, fmt), dtype=torch.uint8)
        reference.pack(x, fmt, 3, rule, packed)
        assert torch.equal(custom_fp.pack(x, fmt, shift=3, **how), packed), name


@pytest.mark.parametrize("rounding", ["stochastic_3", "stochastic_16", "stochastic_20"])
def test_formats_with_scales_draw_as_the_reference(isa, rounding):
    rule, how = Rule(rounding, seed=5, offset=7), {"rounding": rounding, "seed": 5, "offset": 7}
    x = hostile(3072).view(24, 128)
    for name in ("mxfp4", "nvfp4", "nvfp4_4over6", "nvint4", "mxfp8_e4m3"):
        fmt, out = custom_fp.parse(name), torch.empty(24, 128)
        for axis in (None, 0):
            ScaledReference().quantize(x, fmt, rule, out, axis)
            assert same(custom_fp.quantize(x, fmt, axis=axis, **how), out), (name, axis)


def test_all_of_them_are_as_many_as_it_has_without_a_number():
    x = hostile(2000)
    for name in ("e5m2", "nvfp4", "int8_channel"):
        few, all_, other = (
            custom_fp.quantize(x.view(4, 500), name, rounding=word, seed=1)
            for word in ("stochastic_31", "stochastic", "stochastic_2")
        )
        assert same(few, all_) and not same(few, other), name


def test_a_rule_takes_it():
    rule = read_rule(
        "rules[0]", {"modules": "*", "role": "weight", "format": "nvfp4", "rounding": "stochastic_6"}
    )
    assert (
        rule.rounding == QuantizationSpec("nvfp4", rounding_mode="stochastic_6")
        and str(rule.rounding) == "nvfp4 (stochastic_6)"
    )
    assert rule.rounding.nearest == QuantizationSpec("nvfp4") and is_stochastic("stochastic_6")


@pytest.mark.parametrize("word", ["stochastic_0", "stochastic_32", "stochastic_08", "stochastic_"])
def test_a_bad_number_of_bits_is_one_line(word):
    allowed = "stochastic_1 to stochastic_31"
    for make in (
        lambda: custom_fp.quantize(torch.ones(2), "e5m2", rounding=word),
        lambda: custom_fp.accumulate([torch.ones(2)], "e5m2", rounding=word),
        lambda: read_rule("rules[0]", {"modules": "*", "role": "weight", "format": "e5m2", "rounding": word}),
    ):
        with pytest.raises(ValueError) as error:
            make()
        assert word in str(error.value) and allowed in str(error.value) and "\n" not in str(error.value)
