"""`quantize` is exact at every boundary and monotone between them. Its roundings, special values and tensors."""

import itertools
import math
import re
import subprocess
import sys
from pathlib import Path

import custom_fp
import oracle
import pytest
import torch
from custom_fp import Overflow, Rounding, Rule, _native
from custom_fp.formats.scalar import Format
from hypothesis import given, settings
from hypothesis import strategies as st
from tensors import beside, normal, same_bits

SMALL = [
    Format(e, m, family=family)
    for family in ("ieee", "fn")
    for e in range(1, 9)
    for m in range(11 - e)
    if not (family == "fn" and e == 8 and m > 0)
]
TINY = [
    *("e2m1", "e3m0", "e1m2", "e1m0", "e2m1fn", "e2m2fn", "e3m1fo", "e2m0fo", "e2m2fnuz", "e3m0fnuz"),
    *("ue2m2", "ue2m2fn", "ue3m1fo", "ue3m0", "ue3m0fn", "ue1m0fo", "e3m1b-90", "e2m1b120fnuz"),
    *("e4m3b11fn", "e2m2b127", "e4m3b-100", "e1m3b-103", "e5m1b126"),
]
EXACT = [rounding for rounding in Rounding if rounding is not Rounding.STOCHASTIC]


def boundaries(fmt, dtype=torch.float32):
    """Return values, midpoints and their neighbors in dtype, of both signs, up to two steps past the largest value."""
    values = [float(value) for value in oracle.finite_magnitudes(fmt)]
    step = values[-1] - values[-2] if len(values) > 1 else 2.0 ** (fmt.emin - fmt.mantissa_bits)
    values += [values[-1] + step, values[-1] + 2 * step]
    middles = [(a + b) / 2 for a, b in itertools.pairwise(values)]
    x = beside(torch.tensor(values + middles, dtype=torch.float64).to(dtype))
    return torch.cat([x, -x])


def compare_with_oracle(x, fmt, rounding="nearest_even", overflow="infinity"):
    got = custom_fp.quantize(x, fmt, rounding=rounding, overflow=overflow)
    for isa in _native.isas():
        _native.use_isa(isa)
        assert same_bits(custom_fp.quantize(x, fmt, rounding=rounding, overflow=overflow), got), (isa, fmt)
    for value, result in zip(x.tolist(), got.tolist(), strict=True):
        expected = oracle.quantize(value, fmt, rounding, overflow)
        assert oracle.same(result, expected), (fmt, rounding, overflow, value, result, expected)


@pytest.mark.parametrize("exponent_bits", range(1, 9))
def test_exact_on_every_boundary_of_every_small_format(exponent_bits):
    for fmt in SMALL:
        if fmt.exponent_bits == exponent_bits:
            x = boundaries(fmt)
            compare_with_oracle(x[: len(x) // 2], fmt)  # test_monotone... shows that signs do not matter


@pytest.mark.parametrize("name", TINY)
def test_exact_in_every_rounding_and_overflow(name):
    fmt = Format.parse(name)
    x = torch.cat(
        [boundaries(fmt), torch.tensor([math.inf, -math.inf, math.nan, 5e-45, -5e-45, 3e38, -3e38])]
    )
    for rounding, overflow in itertools.product(EXACT, Overflow):
        compare_with_oracle(x, fmt, rounding, overflow)
    for rounding, overflow in itertools.product(("nearest_even", "toward_zero"), ("infinity", "saturate")):
        compare_with_oracle(boundaries(fmt, torch.float64), fmt, rounding, overflow)


@pytest.mark.parametrize("name", ["e4m3fn", "fp32"])
def test_monotone_over_all_float32(name):
    assert _native.count_disorder(Format.parse(name).spec, Rounding.NEAREST_EVEN.mode, False, 2) == 0


def test_float64_is_rounded_once():
    # Just above a midpoint of e5m2, by less than float32 can tell: by way of float32 it would be a tie.
    x = torch.tensor([1.125 + 2.0**-40, 1.375 - 2.0**-40], dtype=torch.float64)
    assert custom_fp.quantize(x, "e5m2").tolist() == [1.25, 1.25]
    assert custom_fp.quantize(x.float(), "e5m2").tolist() == [1.0, 1.5]


def test_rounding_twice_by_way_of_odd_is_rounding_once():
    """fp32 to bf16 to e5m2: three digits fewer. By way of nearest it is not."""
    x = (normal(1 << 15) * torch.logspace(-6, 5, 1 << 15)).clamp(-57344, 57344)
    differs = {}
    for by, to in itertools.product(("to_odd", "nearest_even"), EXACT):
        twice = custom_fp.quantize(custom_fp.quantize(x, "e8m7", rounding=by), "e5m2", rounding=to)
        differs[by, to] = (twice != custom_fp.quantize(x, "e5m2", rounding=to)).sum().item()
    assert not any(differs["to_odd", to] for to in EXACT)
    assert differs["nearest_even", "nearest_even"] and differs["nearest_even", "toward_positive"]


def test_special_values():
    inf, nan = math.inf, math.nan
    x = torch.tensor([nan, -nan, inf, -inf, 1e38, -1e38])
    table = {
        ("e5m2", "infinity"): [nan, nan, inf, -inf, inf, -inf],
        ("e5m2", "saturate"): [nan, nan, 57344, -57344, 57344, -57344],
        ("e4m3fn", "infinity"): [nan] * 6,
        ("e4m3fn", "saturate"): [nan, nan, 448, -448, 448, -448],
        ("e3m0", "infinity"): [inf, inf, inf, -inf, inf, -inf],
        ("e3m0", "saturate"): [inf, inf, 8, -8, 8, -8],
        ("e2m1fn", "infinity"): [6, 6, 6, -6, 6, -6],
        ("e2m1fn", "saturate"): [6, 6, 6, -6, 6, -6],
    }
    for (name, overflow), expected in table.items():
        got = custom_fp.quantize(x, name, overflow=overflow).tolist()
        assert all(map(oracle.same, got, expected)), (name, overflow, got)
    truncated = custom_fp.quantize(x, "e5m2", rounding="toward_zero").tolist()
    assert all(map(oracle.same, truncated, [nan, nan, inf, -inf, 57344, -57344]))
    for rounding, name in itertools.product(
        ("nearest_even", "toward_zero"), ("e5m2", "bf16", "e1m0", "fp32")
    ):
        got = custom_fp.quantize(torch.tensor([-0.0, 0.0]), name, rounding=rounding).tolist()
        assert all(map(oracle.same, got, [-0.0, 0.0]))
    assert torch.signbit(custom_fp.quantize(torch.tensor(-1e-30), "e5m2"))


def test_formats_without_a_sign_and_negative_numbers():
    inf, nan = math.inf, math.nan
    x = torch.tensor([-1.0, -1e-30, -inf, -0.0, 1e9, inf, nan])
    table = {
        ("nearest_even", "infinity"): [nan, 0, nan, 0, nan, nan, nan],
        ("toward_negative", "infinity"): [nan, nan, nan, 0, 448, nan, nan],
        ("toward_positive", "infinity"): [0, 0, nan, 0, nan, nan, nan],
        ("toward_zero", "infinity"): [0, 0, nan, 0, 448, nan, nan],
        ("nearest_even", "saturate"): [0, 0, 0, 0, 448, 448, nan],
        ("to_odd", "propagate"): [0, 0, 0, 0, 448, 448, nan],
    }
    for (rounding, overflow), expected in table.items():
        got = custom_fp.quantize(x, "ue4m3", rounding=rounding, overflow=overflow).tolist()
        assert all(map(oracle.same, got, map(float, expected))), (rounding, overflow, got)
    sums = custom_fp.accumulate([torch.tensor([2.0, 1.0, 1.0]), torch.tensor([-1.0, -2.0, -1.0])], "ue4m3")
    assert all(map(oracle.same, sums.tolist(), [1.0, nan, 0.0]))


def test_one_digit_ties_go_to_the_larger_magnitude():
    # IEEE 754-2019, 4.3.1: 1 and 2 both have an odd digit. Zero has an even one.
    x = torch.tensor([1.5, -1.5, 3.0, 6.0, 0.375, 0.125])
    assert custom_fp.quantize(x, "e3m0").tolist() == [2.0, -2.0, 4.0, 8.0, 0.5, 0.0]


# ---- rules


def test_members_of_the_enumerations_are_as_good_as_their_names():
    x = torch.randn(100)
    for rounding, overflow in itertools.product(Rounding, Overflow):
        words = {"rounding": str(rounding), "overflow": str(overflow)}
        members = {"rounding": rounding, "overflow": overflow}
        assert torch.equal(*(custom_fp.quantize(x, "e2m1", seed=3, **rule) for rule in (words, members)))
    assert Rule("stochastic", "saturate", 3) == Rule(Rounding.STOCHASTIC, Overflow.SATURATE, 3, 0)


def test_rules_have_the_numbers_of_the_kernels():
    header = (Path(custom_fp.__file__).parent / "csrc" / "custom_fp.h").read_text()
    for enum, words in (("Mode", Rounding), ("Overflow", Overflow)):
        numbers = re.findall(rf"enum {enum}[^{{]*{{([^}}]*)}}", header)[0]
        assert " ".join(numbers.split()) == ", ".join(f"{word} = {word.mode}" for word in words)
    assert Rule("stochastic", "saturate", -1, 7).flat == (2, 1, 2**64 - 1, 7, 0xFFFFFFFE)
    assert Rule("stochastic_5", seed=3).flat == (2, 0, 3, 0, 0xF8000000)
    assert Rule().flat[:4] == (0, 0, 0, 0)


# ---- tensors


@st.composite
def tensors(draw):
    """Any shape up to 4 dimensions with zeros, steps and transpositions, and the specials of float32."""
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]))
    x = normal(*[2 * size + 1 for size in shape], seed=draw(st.integers(0, 1000)))
    x = x * 10.0 ** draw(st.integers(-6, 6))
    special = draw(st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-40]))
    x.view(-1)[draw(st.integers(0, x.numel() - 1))] = special
    x = x.to(dtype)
    for dim, size in enumerate(shape):
        x = x.narrow(dim, 1, size) if draw(st.booleans()) else x[(slice(None),) * dim + (slice(1, None, 2),)]
    return x.permute(draw(st.permutations(range(x.dim()))))


@settings(max_examples=100, deadline=None)
@given(tensors(), st.sampled_from(["e5m2", "e4m3fn", "bf16", "e2m1fn", "fp32"]), st.booleans())
def test_any_strides_shapes_and_dtypes(x, name, give_out):
    before = x.clone()
    out = torch.full((*x.shape, 2), 7.0)[..., 0] if give_out else None
    got = custom_fp.quantize(x, name, out=out)
    assert got.dtype is torch.float32 and got.shape == x.shape
    assert torch.equal(x.nan_to_num(1.5), before.nan_to_num(1.5))
    assert out is None or got is out
    for value, result in zip(x.double().reshape(-1).tolist(), got.reshape(-1).tolist(), strict=True):
        assert oracle.same(result, oracle.quantize(value, Format.parse(name)))


# ---- backends


def run(code):
    subprocess.run([sys.executable, "-c", code], timeout=240, check=True)


def test_fork_after_threads_does_not_hang():
    run("""
import os, torch, custom_fp
torch.set_num_threads(2)
x = torch.randn(1 << 20)
a = custom_fp.quantize(x, "e5m2")
child = os.fork()
if child == 0:
    b = torch.empty_like(x)
    custom_fp.native.quantize(x, custom_fp.Format.parse("e5m2"), custom_fp.Rule(), b)
    os._exit(int(bytes(a.numpy().data) != bytes(b.numpy().data)))
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""")


def test_without_the_extension_the_reference_runs_with_one_warning():
    run("""
import sys, warnings
sys.modules["custom_fp._native"] = None
import torch, custom_fp
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(3):
        assert custom_fp.quantize(torch.tensor([1.1]), "e5m2").item() == 1.0
        assert custom_fp.quantize(torch.tensor([1.1]), "mxfp4").item() == 1.0
assert [w for w in caught if "custom_fp" in str(w.message)].__len__() == 1, caught
assert custom_fp.backend() == "reference"
""")


def test_a_device_is_named_as_torch_names_it():
    assert (
        custom_fp.backend("cpu:0")
        == custom_fp.backend(torch.device("cpu"))
        == custom_fp.backend()
        == "native"
    )
    assert custom_fp.backend("meta") == "reference"
