"""`quantize` is exact at every boundary, monotone between them, and the same on every instruction set."""

import itertools
import math
import subprocess
import sys

import custom_fp
import oracle
import pytest
import torch
from custom_fp import native, reference
from custom_fp.formats.scalar import Format
from custom_fp.rounding import Rounding, Rule
from hypothesis import given, settings
from hypothesis import strategies as st

_native = native._native

SMALL = [
    Format(e, m, family=family)
    for family in ("ieee", "fn")
    for e in range(1, 9)
    for m in range(11 - e)
    if not (family == "fn" and e == 8 and m > 0)
]
LARGE = [
    Format.parse(name) for name in ("fp32", "bf16", "fp16", "tf32", "e5m23", "e6m22", "e7m21", "e3m11fn")
]
CUSTOM = [Format.parse(name) for name in ("e4m3b11fn", "e4m3b-100", "e2m2b127", "e1m3b-103", "e5m2b126")]
RULES = [(r, o) for r in ("nearest_even", "toward_zero") for o in ("infinity", "saturate")]


def bits(x):
    return x.view(torch.int32)


def boundaries(fmt, dtype):
    """Values, midpoints and their neighbours in dtype, of both signs, with one step past the largest value."""
    values = [float(value) for value in oracle.finite_magnitudes(fmt)]
    step = values[-1] - values[-2] if len(values) > 1 else 2.0 ** (fmt.emin - fmt.mantissa_bits)
    values += [values[-1] + step, values[-1] + 2 * step]
    middles = [(a + b) / 2 for a, b in itertools.pairwise(values)]
    x = torch.tensor(values + middles, dtype=torch.float64).to(dtype)
    infinity = torch.tensor(math.inf, dtype=dtype)
    x = torch.cat([x, x.nextafter(infinity), x.nextafter(-infinity)])
    return torch.cat([x, -x])


def assorted(n=1 << 14):
    """All bit patterns alike, normal values at three scales, and specials."""
    g = torch.Generator().manual_seed(0)
    patterns = torch.randint(-(2**31), 2**31, (n,), generator=g).to(torch.int32).view(torch.float32)
    normal = [torch.randn(n // 4, generator=g) * scale for scale in (1, 1e-3, 1e30, 1e-38)]
    specials = torch.tensor([0.0, math.inf, math.nan, 2.0**-149, 2.0**-126, 3.4028234663852886e38])
    return torch.cat([patterns, *normal, specials, -specials])


def compare_with_oracle(x, fmt, rounding="nearest_even", overflow="infinity"):
    got = custom_fp.quantize(x, fmt, rounding=rounding, overflow=overflow).tolist()
    for value, result in zip(x.tolist(), got, strict=True):
        expected = oracle.quantize(value, fmt, rounding, overflow)
        assert oracle.same(result, expected), (fmt, rounding, overflow, value, result, expected)


@pytest.mark.parametrize("exponent_bits", range(1, 9))
def test_exact_on_every_boundary_of_every_small_format(exponent_bits):
    for fmt in SMALL:
        if fmt.exponent_bits == exponent_bits:
            x = boundaries(fmt, torch.float32)
            compare_with_oracle(x[: len(x) // 2], fmt)  # test_monotone... shows that signs do not matter


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exact_in_every_rounding_and_overflow(dtype):
    for fmt in [fmt for fmt in SMALL if fmt.bits <= 7] + CUSTOM:
        for rounding, overflow in RULES:
            compare_with_oracle(boundaries(fmt, dtype), fmt, rounding, overflow)


@pytest.mark.parametrize(
    "name",
    ["e5m2", "e4m3", "e4m3fn", "e3m0", "e2m1fn", "e3m2fn", "e1m2", "e8m0fn", "bf16", "fp16", "e5m23", "fp32"],
)
def test_monotone_over_all_float32(name):
    spec = Format.parse(name).spec
    assert _native.count_disorder(spec, Rounding.NEAREST_EVEN.mode, False, 2) == 0


@pytest.mark.parametrize("fmt", [*SMALL[::7], *LARGE, *CUSTOM], ids=str)
def test_native_equals_reference_on_every_instruction_set(fmt):
    x = assorted()
    got, expected = torch.empty_like(x), torch.empty_like(x)
    try:
        for rounding, overflow in [*RULES, ("stochastic", "infinity"), ("stochastic", "saturate")]:
            rule = Rule(rounding, overflow, 99, 1000)
            for dtype in (torch.float32, torch.float64):
                reference.quantize(x.to(dtype), fmt, rule, expected)
                for isa in _native.isas():
                    _native.use_isa(isa)
                    native.quantize(x.to(dtype), fmt, rule, got)
                    assert torch.equal(bits(got), bits(expected)), (isa, rounding, overflow, dtype)
    finally:
        _native.use_isa(_native.isas()[-1])


def test_float64_is_rounded_once():
    # Just above a midpoint of e5m2, by less than float32 can tell: by way of float32 it would be a tie.
    x = torch.tensor([1.125 + 2.0**-40, 1.375 - 2.0**-40], dtype=torch.float64)
    assert custom_fp.quantize(x, "e5m2").tolist() == [1.25, 1.25]
    assert custom_fp.quantize(x.float(), "e5m2").tolist() == [1.0, 1.5]


def test_specials():
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


def test_negative_zero_and_underflow_keep_their_sign():
    for rounding in ("nearest_even", "toward_zero"):
        for name in ("e5m2", "bf16", "e3m0", "e1m0", "fp32", "e4m3fn"):
            got = custom_fp.quantize(torch.tensor([-0.0, 0.0]), name, rounding=rounding)
            assert torch.signbit(got).tolist() == [True, False]
            assert got.abs().sum() == 0
    assert torch.signbit(custom_fp.quantize(torch.tensor(-1e-30), "e5m2"))


def test_one_digit_ties_go_to_the_larger_magnitude():
    # IEEE 754-2019, 4.3.1: 1 and 2 both have an odd digit. Zero has an even one.
    x = torch.tensor([1.5, -1.5, 3.0, 6.0, 0.375, 0.125])
    assert custom_fp.quantize(x, "e3m0").tolist() == [2.0, -2.0, 4.0, 8.0, 0.5, 0.0]


def test_flush_to_zero_of_the_caller_does_not_matter():
    x = torch.tensor([2.0**-149, -(2.0**-130), 2.0**-127])
    expected = custom_fp.quantize(x, "bf16")
    assert expected.tolist() == [0.0, -(2.0**-130), 2.0**-127]
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    try:
        assert torch.equal(bits(custom_fp.quantize(x, "bf16")), bits(expected))
        assert (x * 1.0).count_nonzero() == 0  # the caller's setting is back
    finally:
        torch.set_flush_denormal(False)


# ---- tensors ---------------------------------------------------------------------------------------------------


@st.composite
def tensors(draw):
    """Any shape up to 4 dimensions with zeros, steps and transpositions, and the specials of float32."""
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]))
    x = torch.empty([2 * size + 1 for size in shape])
    g = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    x = x.copy_(torch.randn(x.shape, generator=g) * 10.0 ** draw(st.integers(-6, 6)))
    special = draw(st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-40]))
    if x.numel():
        x.view(-1)[draw(st.integers(0, x.numel() - 1))] = special
    x = x.to(dtype)
    for dim, size in enumerate(shape):
        x = x.narrow(dim, 1, size) if draw(st.booleans()) else x[(slice(None),) * dim + (slice(1, None, 2),)]
    return x.permute(draw(st.permutations(range(x.dim()))))


@settings(max_examples=200, deadline=None)
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


def test_results_do_not_depend_on_threads():
    x = torch.randn(1 << 20)
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(custom_fp.quantize(x, "e4m3", rounding="stochastic", seed=5))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_in_place_by_out():
    x = torch.randn(1000)
    expected = custom_fp.quantize(x, "e5m2")
    assert custom_fp.quantize(x, "e5m2", out=x) is x
    assert torch.equal(x, expected)


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (TypeError, lambda x: custom_fp.quantize(x.int(), "e5m2")),
        (TypeError, lambda x: custom_fp.quantize(x.to(torch.complex64), "e5m2")),
        (TypeError, lambda x: custom_fp.quantize([1.0], "e5m2")),
        (ValueError, lambda x: custom_fp.quantize(x, "e9m2")),
        (ValueError, lambda x: custom_fp.quantize(x, "e5m2", rounding="up")),
        (ValueError, lambda x: custom_fp.quantize(x, "e5m2", overflow="wrap")),
        (TypeError, lambda x: custom_fp.quantize(x, "e5m2", out=x.double())),
        (ValueError, lambda x: custom_fp.quantize(x, "e5m2", out=x[:2])),
        (ValueError, lambda x: custom_fp.quantize(x, "e5m2", out=x.to("meta"))),
    ],
)
def test_bad_input_is_a_clear_error(error, call):
    with pytest.raises(error):
        call(torch.ones(4))


def test_fork_after_threads_does_not_hang():
    code = """
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
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=240, check=False).returncode == 0


def test_without_the_extension_the_reference_runs_with_one_warning():
    code = """
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
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=240, check=False).returncode == 0
    assert custom_fp.backend() == "native"


@pytest.mark.parametrize("device", ["e4m3", "", "gpu", None, Format.parse("e4m3")])
def test_what_is_no_device_has_no_backend(device):
    with pytest.raises(
        ValueError, match=r"is not a device; allowed: PyTorch devices, such as 'cpu', 'cuda' or 'cuda:1'"
    ):
        custom_fp.backend(device)


def test_a_device_is_named_as_torch_names_it():
    assert custom_fp.backend("cpu:0") == custom_fp.backend(torch.device("cpu")) == "native"
    assert custom_fp.backend("meta") == "reference"
