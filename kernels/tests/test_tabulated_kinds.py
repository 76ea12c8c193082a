"""Values and rounding of all kinds of tables, compared with other libraries and rationals; a user-defined kind."""

import json
import math
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import ClassVar

import custom_fp
import numpy as np
import pytest
import torch
from custom_fp.formats.names import KINDS, parse
from custom_fp.formats.tabulated_format import Tabulated
from custom_fp.rounding import Rounding, Rule
from custom_fp.tabulated.rounding import round_to_table

VECTORS = json.loads((Path(__file__).parent / "tabulated_vectors.json").read_text())
WORDS = {
    "nearest_even": "TiesToEven",
    "nearest_away": "TiesToAway",
    "toward_zero": "TowardZero",
    "toward_positive": "TowardPositive",
    "toward_negative": "TowardNegative",
}


@pytest.mark.parametrize("name", [name for name in VECTORS if name != "made_by"])
def test_codes_are_those_of_other_libraries(name):
    """SoftPosit, libtakum and en_dtypes: see the file's made_by. libtakum rounds takum8 by a float32 logarithm, so that
    its inputs keep 2**-12 away from boundaries."""
    x = torch.from_numpy(np.frombuffer(bytes.fromhex(VECTORS[name]["inputs"]), "<f4").copy())
    expected = np.frombuffer(bytes.fromhex(VECTORS[name]["codes"]), "<u2").astype(np.int64)
    fmt = parse(name)
    if name == "hif8":  # which rounds ties away: to a value, then its code
        x = custom_fp.quantize(x, fmt, rounding="nearest_away")
    codes = custom_fp.encode(x, fmt).long()
    assert torch.equal(codes, torch.from_numpy(expected)), x[codes != torch.from_numpy(expected)]


def p3109(bits):
    gfloat = pytest.importorskip("gfloat")
    from gfloat.formats import Domain, Signedness, format_info_p3109

    for precision in range(1, bits + 1):
        for sign, end in ((s, e) for s in "su" for e in "ef"):
            if sign == "s" and precision == bits:
                continue
            signedness = Signedness.Signed if sign == "s" else Signedness.Unsigned
            domain = Domain.Extended if end == "e" else Domain.Finite
            yield (
                gfloat,
                parse(f"p3109_k{bits}p{precision}{sign}{end}"),
                format_info_p3109(bits, precision, signedness, domain),
            )


@pytest.mark.parametrize("bits", [3, 4, 8])
def test_p3109_is_gfloats(bits):
    """Compare all values, and every mode at and next to values and boundaries.

    scripts/checks/check_tables.py does the same for 8 bits.
    """
    for gfloat, fmt, info in p3109(bits):
        values = [gfloat.decode_float(info, code).fval for code in range(1 << bits)]
        assert np.array_equal(fmt.values(), values, equal_nan=True), fmt
        if bits == 8:
            continue
        special = np.array([*fmt.positive.magnitudes, *fmt.positive.boundaries], np.float32)
        near = [
            special,
            np.nextafter(special, np.float32(np.inf)),
            np.nextafter(special, np.float32(0)),
            [1e9, np.inf],
        ]
        x = np.unique(np.concatenate(near).astype(np.float32))
        x = np.concatenate([x, -x]) if fmt.is_signed else x
        for word, mode in WORDS.items():
            for overflow in ("infinity", "saturate"):
                got = custom_fp.quantize(torch.from_numpy(x), fmt, rounding=word, overflow=overflow)
                mode_there = gfloat.RoundMode[mode]
                expected = gfloat.round_ndarray(info, x.astype(float), mode_there, overflow == "saturate")
                assert np.array_equal(got.double(), expected, equal_nan=True), (fmt, word, overflow)


def test_few_random_bits_are_gfloats_fastest():
    gfloat, fmt, info = next(one for one in p3109(4) if one[1].name == "p3109_k4p2se")
    x = torch.linspace(-4, 4, 129, dtype=torch.float64)
    for n in (1, 3):
        for drawn in range(1 << n):
            random = torch.full(x.shape, drawn << 32 - n)
            got = round_to_table(x, fmt, Rule(f"stochastic_{n}", seed=0), random)
            mode = gfloat.RoundMode.StochasticFastest
            expected = [gfloat.round_float(info, v, mode, False, drawn, n) for v in x.tolist()]
            assert got.tolist() == expected


def test_a_format_without_a_sign_below_zero():
    """IEEE P3109: rounded first, then below the smallest value; NaN, or zero where that is kept to."""
    x = torch.tensor([-1e-11, -0.0, -1.0, -math.inf])
    assert str(custom_fp.quantize(x, "p3109_k8p3uf").tolist()) == "[0.0, 0.0, nan, nan]"
    assert custom_fp.quantize(x, "p3109_k8p3uf", overflow="saturate").tolist() == [0.0] * 4
    assert (
        str(custom_fp.quantize(x, "p3109_k8p3ue", rounding="toward_positive").tolist())
        == "[0.0, 0.0, 0.0, nan]"
    )


def test_posits_and_takums_stop():
    for name in ("posit8", "takum8", "takum12", "posit10es0"):
        fmt = parse(name)
        ends = torch.tensor([1e-45, -1e-45, 3.4e38, -3.4e38])
        for word in ("nearest_even", "nearest_away"):
            smallest, largest = fmt.smallest, fmt.max
            assert custom_fp.quantize(ends, fmt, rounding=word).tolist() == [
                smallest,
                -smallest,
                largest,
                -largest,
            ]
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


def test_what_float32_does_not_hold_is_said():
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
    """-4/3 to 1 in thirds, in two's complement: no symmetry, values of any digits, no NaN; past 1 it overflows."""

    LOOKS_LIKE: ClassVar = "thirds"
    name: ClassVar = "thirds"
    code_bits: ClassVar = 3
    beyond: ClassVar = Fraction(4, 3)

    @classmethod
    def named(cls, name):
        return cls() if name == "thirds" else None

    def value_of(self, code):
        return Fraction((code + 4) % 8 - 4, 3)


def test_a_kind_of_ones_own():
    """One class: rounding, codes, bytes, sums and products follow."""
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


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("p3109_k8p8se", "P must be 1 to K"),
        ("p3109_k17p3se", "K must be 2 to 16"),
        ("posit17", "2 to 16 bits"),
        ("posit8es6", "es from 0 to 5"),
        ("takum7", "8 to 16 bits"),
        ("lns9_3", "i must be 2 to 8"),
    ],
)
def test_names_that_no_format_has(name, says):
    with pytest.raises(ValueError, match=says):
        parse(name)


def test_names():
    for name in ("p3109_k8p3se", "posit8", "posit16es1", "takum12", "lns4_3", "hif8"):
        assert parse(name).name == name and parse(name).bits == parse(name).code_bits
    assert parse("binary8p3se") == parse("p3109_k8p3se")
    assert "Tabulated" not in KINDS and {"P3109", "Posit", "Takum", "Logarithmic", "HiFloat8"} <= set(KINDS)


def test_emax_is_where_precision_is_best():
    """With uniform precision, emax is the top binade. In a tapered format, precision there is nearly the best."""
    emax = {"p3109_k8p3se": 15, "lns4_3": 7, "posit8": 7, "posit12": 7, "takum8": 2, "hif8": 7}
    assert {name: parse(name).emax for name in emax} == emax


def test_every_rounding_word_is_taken():
    x = torch.arange(-20, 21) / 10
    rows = {str(word): custom_fp.quantize(x, "posit6", rounding=word, seed=3) for word in Rounding}
    assert torch.equal(rows["toward_positive"], -rows["toward_negative"].flip(0))
    assert (rows["toward_zero"].abs() <= x.abs()).all() and (rows["to_odd"].abs() - x.abs()).abs().max() < 0.5


def test_recipes_take_them():
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
    from custom_fp.recipe.tensor_aps import aps_quantize

    rounded = aps_quantize(x, "takum8") @ custom_fp.quantize(linear.weight, "posit8").T + linear.bias
    assert torch.allclose(linear(x), rounded, atol=1e-6)
