"""Any element goes under any scale. The values are compared with an independent computation by exact fractions."""

import json
import math
from fractions import Fraction

import custom_fp
import numpy as np
import pytest
import torch
from custom_fp import Scale, ScaledFormat, parse
from custom_fp.formats.names import read, spelled

E8M0 = [Fraction(2) ** exponent for exponent in range(-127, 128)]
E4M3 = sorted({Fraction(v) for v in parse("e4m3fn").code_values() if 0 < v < math.inf})
ELEMENTS = [
    "posit8",
    "posit6",
    "takum8",
    "hif8",
    "lns4_3",
    "p3109_k8p3se",
    "nf4",
    "dynamic_tree",
    "e3m4",
    "int5",
]


def blocks(seed: int, size: int) -> torch.Tensor:
    """Blocks of very different magnitudes, one of them zero."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(12, size, generator=g) * torch.exp2(torch.randint(-40, 40, (12, 1), generator=g).float())
    x[3] = 0.0
    x[4, 1:] = 0.0
    return x


def exponent(value: Fraction) -> int:
    """Return floor(log2) of a positive number."""
    found = value.numerator.bit_length() - value.denominator.bit_length()
    return found if value >= Fraction(2) ** found else found - 1


def is_allowed(name: str, element: str, q: Fraction, got: Fraction) -> bool:
    """Return whether `got` is q rounded to nearest, among the two neighbors if q is close to their boundary.

    Posits and logarithmic numbers have a boundary of their own, so that their neighbors are all that is checked.
    """
    values = sorted({Fraction(v) for v in parse(name).code_values() if math.isfinite(v)})
    q = min(max(q, values[0]), values[-1])
    below = max(v for v in values if v <= q)
    above = min(v for v in values if v >= q)
    if element.startswith(("posit", "takum", "lns")):
        return got in (below, above)
    return abs(got - q) == min(q - below, above - q)


@pytest.mark.parametrize("element", ELEMENTS)
def test_elements_under_mx_scales(element):
    name = f"mx{element}"
    fmt, x = parse(name), blocks(1, 32)
    got = custom_fp.quantize(x, name, axis=1)
    for row, values in zip(x.tolist(), got.tolist(), strict=True):
        largest = max(map(abs, map(Fraction, row)))
        scale = E8M0[0]
        if largest:
            scale = Fraction(2) ** min(max(exponent(largest) - fmt.emax, -127), 127)
        for value, found in zip(row, values, strict=True):
            assert is_allowed(name, element, Fraction(value) / scale, Fraction(found) / scale)


@pytest.mark.parametrize("name", ["posit8_b16", "nf4_b16_amax", "hif8_b16"])
def test_elements_under_float32_scales(name):
    """The largest magnitude becomes the target, up to the rounding of the scale."""
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
    codes, scales, of_tensor = custom_fp.encode(x, fmt, axis=axis)
    assert {Fraction(v) for v in custom_fp.decode(scales, "e4m3fn").view(-1).tolist()} <= set(E4M3)
    expected = max((2.0**-126, float(np.float32(x.abs().max().item()) / np.float32(fmt.target * 448))))
    assert of_tensor.item() == np.float32(expected)
    assert torch.equal(
        custom_fp.decode((codes, scales, of_tensor), fmt, axis=axis), custom_fp.quantize(x, fmt, axis=axis)
    )


@pytest.mark.parametrize(
    "name", ["mxposit8", "mxnf4", "nvposit8", "takum8_row", "nf4_16x16", "nf4_b7_e8m0", "int3_b16"]
)
@pytest.mark.parametrize("shape", [(5, 70), (0,), (3, 0), (33,)])
def test_codes_and_bytes_decode_to_the_values(name, shape):
    if len(shape) < 2 and "x" in name[3:]:
        return
    x = torch.randn(shape, generator=torch.Generator().manual_seed(4))
    values = custom_fp.quantize(x, name)
    assert torch.equal(custom_fp.decode(custom_fp.encode(x, name), name), values)
    data = custom_fp.pack(x, name)
    assert data.numel() == custom_fp.packed_size(shape, name)
    assert torch.equal(custom_fp.unpack(data, name, shape), values)


@pytest.mark.parametrize("name", ["mxposit8", "mxnf4", "nvhif8", "nf4_16x16"])
def test_a_block_that_is_not_finite_is_nan(name):
    x = torch.ones(32, 32)
    x[20, 3], x[3, 20] = math.nan, math.inf
    got = custom_fp.quantize(x, name)
    assert got[20, 3].isnan() and got[3, 20].isnan() and got.isfinite().any()


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("block", ["b32", "8x16"])
def test_integers_with_a_zero_point_in_blocks(bits, block):
    name = f"int{bits}_affine_{block}"
    x = torch.rand(16, 32, generator=torch.Generator().manual_seed(5)) + 0.5
    codes, scales, zeros = custom_fp.encode(x, name, axis=None)
    cut = x.view(16, 1, 32) if block == "b32" else x.view(2, 8, 2, 16).transpose(1, 2).reshape(4, 1, 128)
    for part, scale, zero in zip(cut, scales.view(-1).tolist(), zeros.view(-1).tolist(), strict=True):
        high = np.float32(part.max().item())
        assert scale == high / np.float32(2**bits - 1) and zero == 0
    assert codes.max() == 2**bits - 1
    assert torch.equal(custom_fp.decode((codes, scales, zeros), name), custom_fp.quantize(x, name))


@pytest.mark.parametrize("rounding", ["stochastic", "toward_zero", "to_odd"])
def test_posits_under_scales_are_rounded_in_every_way(rounding):
    x = blocks(6, 32)
    got = custom_fp.quantize(x, "mxposit8", rounding=rounding, seed=1, axis=1)
    scale = torch.exp2(torch.frexp(x.abs().amax(1)).exponent - 1.0 - parse("posit8").emax)
    scale[3] = 2.0**-127
    expected = custom_fp.quantize(
        x / scale[:, None], "posit8", rounding=rounding, seed=1, overflow="saturate"
    )
    assert torch.equal(got, expected * scale[:, None])


@pytest.mark.parametrize(
    ("name", "one"),
    [
        ("mxe2m1fn", "mxfp4"),
        ("e4m3fn_b32", "fp8_b32"),
        ("mxe4m3fn", "mxfp8_e4m3"),
        ("nvint4", "nvint4"),
        ("posit8_e8m0_b32", "posit8_b32_e8m0"),
        ("nf4_fp32_b32", "nf4_b32"),
        ("nf4_b32_e8m0_floor", "nf4_b32_e8m0_floor"),
        ("mxlns4_3_b16", "mxlns4_3_b16"),
        ("mxposit8_fp32", "mxposit8_fp32"),
    ],
)
def test_each_combination_has_one_name(name, one):
    assert parse(name).name == one and parse(one) == parse(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mxposit16", "elements of posit16 have 16 bits; allowed: elements of at most 8 bits"),
        ("posit8_e8m0", "the name must include the block; allowed: posit8_tensor"),
        ("mxposit8_even", "rule=even requires values of equally many digits, unlike those of posit8"),
        ("mxue4m3fn", "elements of ue4m3fn have no -0; allowed: formats with a sign"),
        ("mxp3109_k8p1uf", "have no negative values"),
        ("mxe1m0", "elements of e1m0 are always zero"),
        ("int8_affine_e8m0", "rule=minmax requires scales in fp32, not in e8m0"),
        ("mxposit8_word", "'word' is not an option"),
    ],
)
def test_parts_that_do_not_fit_are_refused(name, message):
    with pytest.raises(ValueError, match="no format") as raised:
        parse(name)
    assert message in str(raised.value)


def test_a_format_of_ones_own_is_its_parts():
    mine = ScaledFormat("mine", "posit6", Scale("ue5m3", (4, 4), has_tensor_scale=True))
    assert mine.element == parse("posit6") and mine.block == (4, 4) and mine.scale.rule == "amax"
    assert read(spelled(mine)) == mine and hash(read(spelled(mine))) == hash(mine)
    x = torch.randn(8, 8)
    assert torch.equal(custom_fp.quantize(x, mine), mine.quantize(x))


def test_formats_that_were_spelled_by_their_former_kinds_are_read():
    former = [
        ["BlockFormat", {"name": "a", "element": None, "block": [3, 5], "scale": "e8m0", "rule": "floor"}],
        ["Codebook", {"name": "b", "values": [-1.0, 0.0, 1.0], "block": None}],
        ["Affine", {"name": "c", "bits_of_code": 3, "block": "row"}],
    ]
    block, codebook, affine = (read(json.dumps(each)) for each in former)
    assert block == custom_fp.BlockFormat("a", None, (3, 5)) and affine == custom_fp.Affine("c", 3, "row")
    assert codebook == custom_fp.Codebook("b", (-1.0, 0.0, 1.0))
