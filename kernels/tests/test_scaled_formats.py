"""Formats with scales equal exact rationals, over all scales and boundaries. Special values, axes and random bits.

test_backends.py compares the kernels with the reference, test_scaled_oracles.py with other libraries.
"""

import math
from fractions import Fraction
from itertools import pairwise

import custom_fp
import numpy as np
import pytest
import scaled_oracle
import torch
from backend_choice import in_reference
from custom_fp import ScaledFormat, parse
from custom_fp.formats.scale import SCALES
from custom_fp.scaled.scales import values as scale_values
from hypothesis import given, settings
from hypothesis import strategies as st
from tensors import beside, normal, same_bits, spread

EVERY_SCALE = [
    *("nvfp4", "nvfp4_1level", "nvfp4_ue5m3", "nvint4", "nvfp4_4over6", "mxfp4", "mxfp4_ceil"),
    *("mxfp4_even", "mxfp4_nearest", "mxfp4_rceil", "mxfp6_e3m2", "mxfp8_e4m3_even", "mxint8"),
    *("mxint4_rceil", "fp8_b128", "int8_b128", "int4_b32"),
]
RANDOM = [
    *("mxfp8_e5m2", "mxfp6_e2m3", "mxint4", "mxfp4_amax", "mxfp4_b7", "nvfp4_b5_4over6", "nvfp4_e8m0"),
    *("nvfp4_fp32", "nvfp4_margin1", "nvfp4_4over6", "nvint4"),
]


# ---- exact rationals


def boundaries(fmt: ScaledFormat) -> torch.Tensor:
    """Return blocks for each scale: all elements, midpoints and their neighbors, multiplied by the scale.

    The first value of each block determines its scale.
    """
    known = [float(value) for value in scaled_oracle.elements_of(fmt)]
    near = beside(torch.tensor([*known, *((a + b) / 2 for a, b in pairwise(known))])).clamp(min=0)
    near = torch.cat([near, -near])
    length = fmt.block - 1
    near = torch.nn.functional.pad(near, (0, -near.numel() % length)).view(-1, length)
    blocks = torch.cat([torch.full((near.shape[0], 1), fmt.element.max), near], 1)
    codes = torch.arange(fmt.scale.format.nan_code) if fmt.scale_bits == 8 else torch.arange(-120, 100).exp2()
    scales = scale_values(fmt.scale.format, codes.to(torch.uint8) if fmt.scale_bits == 8 else codes)
    scales = scales[scales > 0]
    found = (blocks[None] * scales[:, None, None]).view(-1, fmt.block)
    return found[found.isfinite().all(1)]  # the largest scales leave float32's range


def check(fmt, x, got, step=1):
    t = scaled_oracle.tensor_scale(fmt, x.abs().max().item()) if fmt.has_tensor_scale else None
    for i in range(0, x.shape[0], step):
        for ours, exact in zip(got[i].tolist(), scaled_oracle.block(fmt, x[i].tolist(), t), strict=True):
            assert ours == exact and math.copysign(1, ours) == math.copysign(1, exact), i


@pytest.mark.parametrize("name", EVERY_SCALE)
def test_every_scale_and_every_boundary(name):
    fmt = parse(name)
    x = boundaries(fmt)
    assert x.shape[0] >= 100
    got, (codes, scales, *_) = custom_fp.quantize(x, fmt, axis=1), custom_fp.encode(x, fmt, axis=1)
    if fmt.scale_bits == 8 and "4over6" not in name:
        assert len(set(scales.view(-1).tolist())) >= fmt.scale.format.nan_code - 12  # all but float32's ends
    with in_reference():
        assert same_bits(custom_fp.quantize(x, fmt, axis=1), got)
        assert same_bits(custom_fp.encode(x, fmt, axis=1)[0], codes)
    check(fmt, x, got, max(1, x.shape[0] * fmt.block // 1500))


@pytest.mark.parametrize("name", RANDOM)
def test_random_blocks_equal_exact_rationals(name):
    fmt = parse(name)
    x = normal(12, fmt.block, seed=1) * torch.exp2(torch.arange(-20.0, 16, 3)[:, None])
    if not fmt.has_tensor_scale:
        x = torch.cat([x, x[:3] * 2.0**-120, x[:3] * 2.0**100])  # past the ends of the scales
    check(fmt, x, custom_fp.quantize(x, fmt, axis=1))


def test_values_of_every_scale_code():
    codes = torch.arange(256, dtype=torch.uint8)
    e8m0, e4m3fn, ue5m3 = (scale_values(SCALES[name], codes) for name in ("e8m0", "e4m3fn", "ue5m3"))
    assert torch.equal(e8m0[:255].double(), torch.arange(-127, 128).double().exp2()) and e8m0[255].isnan()
    assert (
        torch.equal(e4m3fn[:127], codes[:127].view(torch.float8_e4m3fn).float())
        and e4m3fn[127:].isnan().all()
    )
    field, mantissa = codes.long() >> 3, codes.long() & 7
    exact = torch.where(field > 0, (8 + mantissa) * (field - 18).double().exp2(), mantissa * 2.0**-17)
    assert torch.equal(ue5m3[:255].double(), exact[:255]) and ue5m3[255].isnan() and ue5m3[254] == 114688


# ---- any element under any scale


def blocks(seed: int, size: int) -> torch.Tensor:
    """Return blocks of very different magnitudes, one of them zero."""
    x = spread(12, 1, seed=seed, binades=(-40, 40)) * normal(12, size, seed=seed)
    x[3], x[4, 1:] = 0.0, 0.0
    return x


@pytest.mark.parametrize(
    "element",
    ["posit8", "posit6", "takum8", "hif8", "lns4_3", "p3109_k8p3se", "nf4", "dynamic_tree", "e3m4", "int5"],
)
def test_elements_under_mx_scales(element):
    """Elements are rounded to nearest. Posits and logarithmic numbers have boundaries of their own, so only their
    neighbors are checked."""
    fmt, x = parse(f"mx{element}"), blocks(1, 32)
    values = sorted({Fraction(v) for v in fmt.code_values() if math.isfinite(v)})
    for row, got in zip(x.tolist(), custom_fp.quantize(x, fmt, axis=1).tolist(), strict=True):
        largest = max(abs(Fraction(value)) for value in row)
        exponent = scaled_oracle.floor_log2(largest) - fmt.emax if largest else -127
        scale = Fraction(2) ** min(max(exponent, -127), 127)
        for value, found in zip(row, got, strict=True):
            q, rounded = min(max(Fraction(value) / scale, values[0]), values[-1]), Fraction(found) / scale
            below, above = max(v for v in values if v <= q), min(v for v in values if v >= q)
            if element.startswith(("posit", "takum", "lns")):
                assert rounded in (below, above)
            else:
                assert abs(rounded - q) == min(q - below, above - q)


@pytest.mark.parametrize("name", ["posit8_b16", "nf4_b16_amax", "hif8_b16"])
def test_under_float32_scales_the_largest_magnitude_becomes_the_target(name):
    fmt, x = parse(name), blocks(2, 16)
    codes, scales = custom_fp.encode(x, fmt, axis=1)
    values = torch.tensor(fmt.element.code_values())[codes.long()] * scales
    assert torch.equal(values, custom_fp.quantize(x, fmt, axis=1))
    largest = x.abs().amax(1)
    assert torch.equal(scales[:, 0], (largest / fmt.target).clamp(min=2.0**-126))
    step = (largest[:, None] - values.abs().amax(1, keepdim=True)).abs() / largest.clamp(min=1e-30)[:, None]
    assert (step <= 2.0**-20).all()


@pytest.mark.parametrize("name", ["nvposit8", "nvnf4", "nvhif8_2d"])
def test_two_levels_of_scales(name):
    fmt, x = parse(name), blocks(3, 64)
    axis = None if fmt.has_tiles else 1
    codes, scales, tensor_scale = custom_fp.encode(x, fmt, axis=axis)
    e4m3fn = {v for v in parse("e4m3fn").code_values() if 0 < v < math.inf}
    assert set(custom_fp.decode(scales, "e4m3fn").view(-1).tolist()) <= e4m3fn
    expected = max((2.0**-126, float(np.float32(x.abs().max().item()) / np.float32(fmt.target * 448))))
    assert tensor_scale.item() == np.float32(expected)
    decoded = custom_fp.decode((codes, scales, tensor_scale), fmt, axis=axis)
    assert torch.equal(decoded, custom_fp.quantize(x, fmt, axis=axis))


@pytest.mark.parametrize("rounding", ["stochastic", "toward_zero", "to_odd"])
def test_posits_under_scales_are_rounded_in_every_way(rounding):
    x = blocks(6, 32)
    got = custom_fp.quantize(x, "mxposit8", rounding=rounding, seed=1, axis=1)
    scale = torch.exp2(torch.frexp(x.abs().amax(1)).exponent - 1.0 - parse("posit8").emax)[:, None]
    scale[3] = 2.0**-127
    expected = custom_fp.quantize(x / scale, "posit8", rounding=rounding, seed=1, overflow="saturate")
    assert torch.equal(got, expected * scale)


def test_codes_whose_values_are_no_float32_are_not_written_under_scales():
    """A third of takum8's codes have values past the ends of float32."""
    element = parse("takum8")
    held = {*element.positive.codes, *element.negative.codes}
    x = torch.logspace(-38, 38, 4096) * torch.tensor([1.0, -1.0]).repeat(2048)
    assert element.unheld and {*custom_fp.encode(x, "takum8_tensor")[0].tolist()} <= held


# ---- laws of all formats with scales

LAWS = [
    *("mxfp4", "mxfp8_e4m3", "mxint8", "mxfp4_rceil", "mxposit8", "mxnf4", "nvfp4_1level", "fp8_row"),
    *("int8_b128", "takum8_row", "linear_b64", "nf4_b7_e8m0", "int3_b16", "nvfp4", "nvposit8"),
    "nf4_16x16",
]
ROWS = [name for name in LAWS if not (parse(name).has_tensor_scale or parse(name).has_tiles)]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(0, 5) | st.sampled_from([31, 32, 33, 48, 65]), min_size=1, max_size=4).filter(
        lambda shape: torch.Size(shape).numel() < 20_000
    ),
    st.data(),
)
def test_along_an_axis_every_row_is_rounded_like_a_separate_tensor(shape, data):
    axis, fmt = data.draw(st.integers(-len(shape), len(shape) - 1)), data.draw(st.sampled_from(ROWS))
    x = normal(*shape, seed=len(shape))
    got = custom_fp.quantize(x, fmt, axis=axis)
    rows = x.movedim(axis, -1)
    each = (
        [custom_fp.quantize(row.contiguous(), fmt) for row in rows.reshape(-1, rows.shape[-1])]
        if x.numel()
        else [x]
    )
    assert torch.equal(got, torch.stack(each).view(rows.shape).movedim(-1, axis))
    strided = x.expand(2, *shape).movedim(0, -1)[..., 1]
    assert torch.equal(custom_fp.quantize(strided, fmt, axis=axis), got)


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("shape", [(5, 70), (3, 0), (33, 1), (1000,), (1,), (0,), ()], ids=str)
def test_codes_and_bytes_decode_to_the_values(name, shape):
    fmt, x = parse(name), normal(*shape, seed=4)
    if fmt.has_tiles and len(shape) < 2:
        return
    for axis in (None, *range(len(shape))):
        values = custom_fp.quantize(x, fmt, axis=axis)
        codes = custom_fp.encode(x, fmt, axis=axis)
        assert codes[0].shape == x.shape and same_bits(custom_fp.decode(codes, fmt, axis=axis), values)
        data = custom_fp.pack(x, fmt, axis=axis)
        assert data.numel() == custom_fp.packed_size(shape, fmt, axis=axis)
        assert same_bits(custom_fp.unpack(data, fmt, shape, axis=axis), values)


def test_without_an_axis_blocks_are_cut_from_memory():
    x = normal(64, 48)
    flat = custom_fp.quantize(x, "mxfp4")
    assert torch.equal(flat, custom_fp.quantize(x.view(-1), "mxfp4").view_as(x))
    assert (flat != custom_fp.quantize(x, "mxfp4", axis=-1)).any()
    assert torch.equal(custom_fp.quantize(x.view(-1), "mxfp4", axis=0), flat.view(-1))
    for name in ("e4m3", "fp32", "dynamic_tree"):  # no blocks
        assert torch.equal(custom_fp.quantize(x, name, axis=0), custom_fp.quantize(x, name))
    assert torch.equal(
        custom_fp.quantize(x.view(-1), "fp8_row"), custom_fp.quantize(x.view(-1), "fp8_tensor")
    )
    parse("nvfp4").check_flat()


def test_4over6_takes_the_smaller_error():
    x, fmt = normal(512, 16), parse("nvfp4_4over6")
    scales = custom_fp.encode(x, fmt, axis=1)[1].view(-1).to(torch.int32)
    at_4 = (x.abs().amax(1) / 4 / (x.abs().max() / (6 * 256))).to(torch.float8_e4m3fn).view(torch.uint8)
    assert 0.2 < (scales == at_4).float().mean() < 0.8
    errors = [(custom_fp.quantize(x, name, axis=1) - x).square().mean() for name in ("nvfp4", fmt)]
    assert errors[1] < 0.9 * errors[0]


@pytest.mark.parametrize(
    "name",
    ["mxfp8_e4m3", "mxfp6_e3m2", "mxfp4", "mxint8", "nvfp4", "nvint4", "nvfp4_4over6", "fp8_b128", "mxposit8", "nvhif8",
     "linear_b64", "nf4_b64", "int4_affine_b32"],
)  # fmt: skip
def test_only_blocks_with_nan_or_infinity_become_nan(name):
    """The scale of the tensor is that of its finite values."""
    fmt, x = parse(name), normal(4, 256)
    x[0, 0] = 7.0
    for value in (math.nan, math.inf, -math.inf):
        bad = x.clone()
        bad[1, 5], bad[2, 200] = value, value
        got, expected = custom_fp.quantize(bad, fmt, axis=1), custom_fp.quantize(x, fmt, axis=1)
        is_nan = got.isnan()
        assert is_nan[1, : fmt.block].all() and is_nan[2, 200 // fmt.block * fmt.block].all()
        assert is_nan.sum() == 2 * fmt.block and same_bits(got[~is_nan], expected[~is_nan])
    codes, scales, *_ = custom_fp.encode(bad, fmt, axis=1)
    if fmt.kernels == "tiles":
        assert codes[1, : fmt.block].sum() == 0 or "posit" in name
    if fmt.scale.format.name != "fp32":
        assert scales[1, 0] == scales[2, 200 // fmt.block] == fmt.scale.format.nan_code


def test_zeros_and_the_smallest_values():
    for name in ("nvfp4", "fp8_tensor", "int8_channel", "nvfp4_4over6", "mxfp4_rceil"):
        zeros = torch.tensor([[0.0, -0.0] * 16])
        signs = torch.signbit(custom_fp.quantize(zeros, name))
        assert torch.equal(signs, torch.signbit(zeros) & parse(name).has_negative_zero)
        assert custom_fp.quantize(torch.full((2, 16), 2.0**-149), name).isfinite().all()


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4_1level", "int8_channel", "int4_affine_b32"])
def test_stochastic_rounding_uses_an_elements_index_and_has_no_bias(name):
    x = torch.full((1, 64), 0.3)
    x[:, 0] = 5.0  # the scale of the first block
    rule = {"rounding": "stochastic", "axis": 1}
    many = torch.stack([custom_fp.quantize(x, name, seed=seed, **rule) for seed in range(1000)])[:, 0, 1]
    assert many.unique().numel() == 2
    assert (many.mean() - 0.3).abs() < 4 * (many.max() - many.min()) / 2 / math.sqrt(1000)
    y = normal(8, 64)
    whole = custom_fp.quantize(y, name, seed=5, **rule)
    assert torch.equal(whole[3:], custom_fp.quantize(y[3:], name, seed=5, offset=3 * 64, **rule))


@pytest.mark.parametrize("name", ["nvfp4", "nvfp4_4over6", "nvfp4_2d_4over6"])
@pytest.mark.parametrize("axis", [0, 1])
def test_values_that_need_the_second_half_of_their_random_bits(name, axis):
    """The first 16 bits leave about 2**-15 of all undecided: some ten of these."""
    x, how = normal(1000, 352), {"axis": axis, "rounding": "stochastic", "seed": 7, "offset": 2**40 + 5}
    ours = custom_fp.quantize(x, name, **how)
    with in_reference():
        assert same_bits(ours, custom_fp.quantize(x, name, **how))


def test_results_may_be_changed_in_place():
    """As a ReLU with inplace=True changes the result of a Quantizer."""
    x = torch.randn(4, 64, requires_grad=True)
    torch.relu_(custom_fp.Quantizer(forward="mxfp8_e4m3")(x)).sum().backward()
    assert torch.equal(x.grad, (x > 0).float())
    for axis in (None, 0):
        out = x.detach().clone()
        assert custom_fp.quantize(out, "mxfp4", axis=axis, out=out) is out
        assert torch.equal(out, custom_fp.quantize(x, "mxfp4", axis=axis))
