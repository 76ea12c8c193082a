"""Values and rounding of all kinds of tables, compared with other libraries and rationals; a user-defined kind."""

import json
import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import ClassVar

import custom_fp
import numpy as np
import pytest
import torch
from custom_fp import native, parse, reference
from custom_fp.formats.tabulated_format import Tabulated
from custom_fp.recipe.tensor_aps import aps_quantize
from custom_fp.rounding import Rounding, Rule
from tensors import beside, normal, same_bits, specials
from test_stochastic import p3109

VECTORS = json.loads((Path(__file__).parent / "tabulated_vectors.json").read_text())
WORDS = {
    "nearest_even": "TiesToEven",
    "nearest_away": "TiesToAway",
    "toward_zero": "TowardZero",
    "toward_positive": "TowardPositive",
    "toward_negative": "TowardNegative",
}


@pytest.mark.parametrize("name", [name for name in VECTORS if name != "made_by"])
def test_codes_equal_other_libraries(name):
    """SoftPosit, libtakum and en_dtypes: see the file's made_by. libtakum rounds takum8 by a float32 logarithm, so its
    inputs keep 2**-12 away from boundaries."""
    x = torch.from_numpy(np.frombuffer(bytes.fromhex(VECTORS[name]["inputs"]), "<f4").copy())
    expected = np.frombuffer(bytes.fromhex(VECTORS[name]["codes"]), "<u2").astype(np.int64)
    fmt = parse(name)
    if name == "hif8":  # which rounds ties away: to a value, then its code
        x = custom_fp.quantize(x, fmt, rounding="nearest_away")
    codes = custom_fp.encode(x, fmt).long()
    assert torch.equal(codes, torch.from_numpy(expected)), x[codes != torch.from_numpy(expected)]


@pytest.mark.parametrize("bits", [3, 4, 8])
def test_p3109_equals_gfloat(bits):
    """Compare all values, and every rounding at and next to values and boundaries (scripts/checks/check_tables.py does
    the latter for 8 bits)."""
    gfloat = pytest.importorskip("gfloat", reason="gfloat is an optional oracle")
    for fmt, info in p3109(bits):
        values = [gfloat.decode_float(info, code).fval for code in range(1 << bits)]
        assert np.array_equal(fmt.values(), values, equal_nan=True), fmt
        if bits == 8:
            continue
        at = beside(
            torch.tensor([*map(float, fmt.positive.magnitudes), *map(float, fmt.positive.boundaries)])
        )
        x = torch.cat([at.clamp(min=0), torch.tensor([1e9, math.inf])]).unique()
        x = torch.cat([x, -x]) if fmt.is_signed else x
        for (word, mode), overflow in product(WORDS.items(), ("infinity", "saturate")):
            got = custom_fp.quantize(x, fmt, rounding=word, overflow=overflow)
            mode = gfloat.RoundMode[mode]
            expected = gfloat.round_ndarray(info, x.double().numpy(), mode, overflow == "saturate")
            assert np.array_equal(got.double(), expected, equal_nan=True), (fmt, word, overflow)


def test_a_format_without_a_sign_below_zero():
    """IEEE P3109: x is rounded first. What is then below zero becomes NaN, or zero if values saturate."""
    x = torch.tensor([-1e-11, -0.0, -1.0, -math.inf])
    assert str(custom_fp.quantize(x, "p3109_k8p3uf").tolist()) == "[0.0, 0.0, nan, nan]"
    assert custom_fp.quantize(x, "p3109_k8p3uf", overflow="saturate").tolist() == [0.0] * 4
    up = custom_fp.quantize(x, "p3109_k8p3ue", rounding="toward_positive")
    assert str(up.tolist()) == "[0.0, 0.0, 0.0, nan]"


def test_posits_and_takums_never_become_zero_or_infinite():
    for name in ("posit8", "takum8", "takum12", "posit10es0"):
        fmt = parse(name)
        ends = torch.tensor([1e-45, -1e-45, 3.4e38, -3.4e38])
        for word in ("nearest_even", "nearest_away"):
            expected = [fmt.smallest, -fmt.smallest, fmt.max, -fmt.max]
            assert custom_fp.quantize(ends, fmt, rounding=word).tolist() == expected
        assert custom_fp.quantize(torch.tensor([math.inf]), fmt).isnan().all()
        data = custom_fp.pack(ends[:1], fmt, shift=-2000)
        assert custom_fp.unpack(data, fmt, 1) == fmt.smallest


def test_logarithms_round_in_the_logarithm():
    fmt = parse("lns4_3")
    values = torch.tensor(fmt.values())
    assert fmt.values()[0] == 0.0 or fmt.nan_code == 0b11000000
    steps = torch.arange(-63, 64, dtype=torch.float64) / 8
    assert torch.allclose(custom_fp.quantize(2.0**steps, fmt).double(), 2.0**steps, rtol=2.0**-23, atol=0)
    for distance in (0.499, 0.501):
        nearest = 2.0 ** ((steps + (distance > 0.5) / 8).clamp(max=63 / 8))
        got = custom_fp.quantize(2.0 ** (steps + distance / 8), fmt, overflow="saturate").double()
        assert torch.allclose(got, nearest, rtol=2.0**-23, atol=0)
    assert values.isnan().sum() == 1 and (values == 0).sum() == 1


def test_values_that_no_float32_holds_are_counted():
    """takum12 reaches 2**254; p3109_k13p2se has every exponent of 11 bits."""
    for name in ("takum12", "p3109_k13p2se"):
        fmt = parse(name)
        values = torch.tensor(fmt.values())
        assert fmt.unheld > 0 and values[1] > 0 and not values.isinf().all()
        finite = values[values.isfinite()]
        assert torch.equal(custom_fp.quantize(finite, fmt), finite)
    assert parse("posit12").unheld == parse("p3109_k8p1ue").unheld == 0


@dataclass(frozen=True)
class Thirds(Tabulated):
    """-4/3 to 1 in thirds, in two's complement: not symmetric, values of any digits, no NaN, overflow past 1."""

    LOOKS_LIKE: ClassVar = "thirds"
    name: ClassVar = "thirds"
    code_bits: ClassVar = 3
    beyond: ClassVar = Fraction(4, 3)

    @classmethod
    def named(cls, name):
        return cls() if name == "thirds" else None

    def value_of(self, code):
        return Fraction((code + 4) % 8 - 4, 3)


def test_a_user_defined_kind_is_one_class():
    """Rounding, codes, bytes, sums and products follow from it."""
    fmt = Thirds()
    x = torch.tensor([-9.0, -1.2, -0.5, -0.1, 0.1, 0.2, 0.9, 5.0])
    got = fmt.quantize(x)
    assert torch.allclose(got, torch.tensor([-4, -4, -2, 0, 0, 1, 3, 3]) / 3, rtol=2.0**-22)
    assert fmt.encode(x).tolist() == [4, 4, 6, 0, 0, 1, 3, 3]
    assert torch.equal(fmt.unpack(fmt.pack(x), 8), got) and fmt.packed_size(8) == 3
    assert torch.equal(custom_fp.accumulate([got[4:6], got[5:7]], fmt), fmt.quantize(got[4:6] + got[5:7]))
    assert custom_fp.matmul(x[5:7, None], x[None, 6:], accumulator=fmt).shape == (2, 2)
    assert fmt.has_nan is fmt.has_inf is False and fmt.is_signed
    up = fmt.quantize(torch.full((4000,), 0.5), rounding="stochastic", seed=1)
    assert abs(float((up > 0.5).float().mean()) - 0.5) < 0.04
    assert fmt.quantize(torch.tensor([math.nan])).tolist() == [1.0]


def test_emax_is_where_precision_is_best():
    """With uniform precision, emax is the top binade. In a tapered format, precision there is nearly the best."""
    emax = {"p3109_k8p3se": 15, "lns4_3": 7, "posit8": 7, "posit12": 7, "takum8": 2, "hif8": 7}
    assert {name: parse(name).emax for name in emax} == emax


def test_every_rounding_has_its_direction():
    x = torch.arange(-20, 21) / 10
    rows = {str(word): custom_fp.quantize(x, "posit6", rounding=word, seed=3) for word in Rounding}
    assert torch.equal(rows["toward_positive"], -rows["toward_negative"].flip(0))
    assert (rows["toward_zero"].abs() <= x.abs()).all() and (rows["to_odd"].abs() - x.abs()).abs().max() < 0.5


def test_recipes_take_tables():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    rules = [
        {"modules": "*", "role": "weight", "format": "posit8"},
        {"modules": "*", "role": "input", "format": "takum8", "aps": True},
        {"modules": "*", "role": "output_gradient", "format": "p3109_k8p3se", "rounding": "stochastic"},
    ]
    custom_fp.apply_recipe(model, {"rules": rules})
    x = torch.randn(5, 8)
    model(x).sum().backward()
    assert model[0].weight.grad.norm() > 0
    linear = model[0]
    rounded = aps_quantize(x, "takum8") @ custom_fp.quantize(linear.weight, "posit8").T + linear.bias
    assert torch.allclose(linear(x), rounded, atol=1e-6)


@pytest.mark.parametrize(
    "name",
    [
        *("p3109_k8p3se", "p3109_k6p2uf", "posit2", "posit13", "takum9", "lns4_3", "hif8", "takum8"),
        *("posit16", "p3109_k8p4uf"),
    ],
)
def test_rounding_by_the_upper_16_bits_equals_the_reference(name, isa):
    """Every pattern of the upper 16 bits with several lower bits, boundaries and their neighbors; products of factors
    that come near them, near the ends of binades, under float32's range and over it."""
    fmt, rule, g = parse(name), Rule(), torch.Generator().manual_seed(2)
    tops = torch.arange(1 << 16) << 16
    low = torch.cat([tops, tops + 1, tops - 1, tops + torch.randint(1 << 16, (1 << 16,), generator=g)])
    halves = fmt.positive, fmt.negative
    near = [float(v) for half in halves for v in (*half.magnitudes, *half.boundaries)]
    near = torch.cat([beside(torch.tensor(near[:2000])), specials()])
    x = torch.cat([low.to(torch.int32).view(torch.float32), near, -near])
    got, expected = torch.empty_like(x), torch.empty_like(x)
    reference.quantize(x, fmt, rule, expected)
    native.quantize(x, fmt, rule, got)
    assert same_bits(got, expected)
    native.accumulate([x], fmt, False, rule, got)
    assert same_bits(got, expected)
    a = near[torch.randint(len(near), (300,), generator=g)]
    near_one = 1 + torch.tensor([0.0, 1, -1, 3, 1 << 12]) * 2.0**-23
    b = torch.cat(
        [normal(40), *(near_one * 2.0**k for k in (0, -1, 9, -70)), torch.tensor([0.0, -0.0, 3e38])]
    )
    got, expected = (torch.empty(1, 300, len(b)) for _ in range(2))
    native.matmul(a[None, :, None], b[None, None], fmt, False, got)
    reference.matmul(a[None, :, None], b[None, None], fmt, False, expected)
    assert same_bits(got, expected)
