"""Accumulators whose operands have scales of blocks: codes and scales found in values, and sums against rationals and
between backends."""

import math
from dataclasses import replace

import custom_fp
import dot_oracle
import oracle
import pytest
import torch
from custom_fp import Accumulator
from custom_fp.accumulators import encodings, reference
from custom_fp.accumulators.machines import MACHINES
from tensors import same_bits, spread
from torch.nn.functional import cross_entropy

native = pytest.importorskip("custom_fp.accumulators.native")

WORDS = [
    "fp32-of_mxfp6_e3m2-block_32-width_25-toward_zero",
    "e5m7-of_mxfp4_b16_mxfp8_e5m2_b16-block_5-width_9-chunk_20",
    "fp16-of_mxfp8_e4m3-block_16-width_14-stochastic_4",
    "fp32-of_nvfp4_nvfp4_2d-block_64-width_35-group_16-toward_zero",
    "bf16-of_nvfp4_1level-block_32-width_6-group_4",
    "fp32-of_mxfp4_b16-block_64-width_35-group_16-toward_zero",
]
SCALED = [name for name in MACHINES if Accumulator.parse(name).scales] + WORDS
FORMATS = [
    *("mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e2m3", "mxfp4", "mxfp4_b16", "nvfp4_1level", "nvfp4"),
    "nvfp4_2d",
]


def operands(how, batch=(1, 1), rows=3, depth=90, columns=4, seed=0):
    """Rounded along the terms; subnormal codes, zeros, a block of zeros and one of NaN among them."""
    a, b = spread(batch[0], rows, depth, seed=seed), spread(batch[1], depth, columns, seed=seed + 1)
    a[:, 0, :33], a[:, 1, 40], b[:, 70, 1] = 0.0, math.nan, math.nan
    return [custom_fp.quantize(x, f, axis=i) for x, f, i in zip((a, b), how.operands, (2, 1), strict=True)]


def found(x, name, axis, how="fp32-of_{0}-block_64-width_35"):
    fmt = custom_fp.parse(name)
    how = Accumulator.parse(how.format(name) + "-group_16" * (fmt.scale.format.name == "e4m3fn"))
    return encodings.find(x, fmt, axis, how)


def by_reference(a, b, how, seed=5):
    out = torch.empty(max(a.shape[0], b.shape[0]), a.shape[1], b.shape[2])
    reference.matmul(a, b, how, replace(how.rule, seed=seed), out)
    return out


@pytest.mark.parametrize("name", SCALED)
def test_names_are_read_back(name):
    how = Accumulator.parse(name)
    assert how == Accumulator.parse(how.name) == Accumulator.parse(how.spelling)
    assert how.scales in (16, 32) and not set(how.spelling) & set(" ,=()[]{}:*?/'\"")


@pytest.mark.parametrize("name", FORMATS)
def test_codes_and_scales_are_found_in_rounded_values(name):
    fmt = custom_fp.parse(name)
    for seed, shape in enumerate([(1, 7, 100), (2, 33, 64), (1, 40, 3)]):
        for factor in (1.0, 1e-9, 3e7):
            x = spread(*shape, seed=seed) * factor
            x[:, 2:6] = x[:, 2:6].relu()
            x[0, 0, 0] = math.nan
            for axis in (1, 2):
                codes, scales, *of_tensor = custom_fp.encode(x, fmt, axis=axis)
                got = found(custom_fp.quantize(x, fmt, axis=axis), name, axis)
                values = scales.int() - 127
                if fmt.scale.format.name != "e8m0":
                    values = custom_fp.decode(scales, fmt.scale.format.name)
                    values = (torch.frexp(values).exponent - 1).clamp(min=-6)
                is_nan = scales == fmt.scale.format.nan_code
                if fmt.has_tiles:
                    values, is_nan = (
                        v.repeat_interleave(16, 3 - axis).narrow(3 - axis, 0, shape[3 - axis])
                        for v in (values, is_nan)
                    )
                assert torch.equal(torch.where(is_nan, 0, got.scales), torch.where(is_nan, 0, values.int()))
                assert [got.of_tensor] == of_tensor or (got.of_tensor is None and not of_tensor)
                if of_tensor:
                    without = custom_fp.decode((codes, scales, torch.tensor(1.0)), fmt, axis=axis)
                    assert torch.equal(got.values.nan_to_num(7.0), without.nan_to_num(7.0))


def test_every_scale_of_nvfp4_is_found():
    """Every value of ue4m3, under different largest magnitudes: the smallest scales leave the largest code open."""
    met, wanted = set(), torch.arange(1, 127).to(torch.uint8)
    scale = custom_fp.decode(wanted, "e4m3fn")
    for largest in (5.7, 6.0, 6.3):
        x = torch.linspace(-1.0, 1.0, 16) * (scale * largest)[:, None]
        scales = custom_fp.encode(x, "nvfp4_1level", axis=1)[1]
        values = custom_fp.quantize(x, "nvfp4_1level", axis=1)
        met.update(scales.flatten().tolist())
        exponents = (torch.frexp(custom_fp.decode(scales, "e4m3fn")).exponent - 1).clamp(min=-6)
        assert torch.equal(found(values[None], "nvfp4_1level", 2).scales[0], exponents)
    assert met == set(range(1, 127))


@pytest.mark.parametrize("name", ["nvfp4", "nvfp4_2d"])
def test_values_of_few_blocks_or_rounded_stochastically_are_accepted(name):
    for seed in range(30):
        x = spread(1, 1 + seed % 3, 16, seed=seed)
        values = custom_fp.quantize(x, name, axis=2, rounding="stochastic", seed=seed)
        got = found(values, name, 2)
        again = got.values.double() * got.of_tensor.double()
        assert torch.allclose(again, values.double(), rtol=2.0**-22, atol=0)


def test_reference_equals_rational_arithmetic():
    for name in SCALED:
        how = Accumulator.parse(name)
        if how.is_stochastic:
            continue
        a, b = operands(how)
        of_a, of_b = (
            encodings.find(x, fmt, axis, how)
            for x, fmt, axis in zip((a, b), how.operands, (2, 1), strict=True)
        )
        x, y = of_a.values.clone(), of_b.values
        x[0, 2] = x[0, 2].nan_to_num()
        out = torch.empty(1, 3, 4)
        vectors = encodings.Operands(x, y, of_a.scales, of_b.scales)
        reference.product(vectors, how, how.rule, out)
        for i in range(3):
            for j in range(4):
                scales = of_a.scales[0, i].tolist(), of_b.scales[0, :, j].tolist()
                want = dot_oracle.dot(x[0, i].tolist(), y[0, :, j].tolist(), how, scales=scales)
                assert oracle.same(out[0, i, j].item(), want), (name, i, j, want)


def test_native_equals_the_reference():
    for name in SCALED:
        how = Accumulator.parse(name)
        for batch in ((1, 1), (2, 1), (1, 2), (2, 2)):
            a, b = operands(how, batch, columns=70, depth=90)
            want = by_reference(a, b, how)
            for isa in native._native.isas():
                native._native.use_isa(isa)
                assert same_bits(custom_fp.matmul(a, b, accumulator=how, seed=5), want), (name, isa)
        assert want.isnan().any() and want.isfinite().any()


def test_values_that_are_subnormal_in_float32_have_their_own_exponent():
    """Under the smallest scale, beside factors that bring the product back."""
    for name in ("b200_mxfp8", "b200_mxfp8_e5m2", "b200_mxfp4"):
        how = Accumulator.parse(name)
        a, b = spread(1, 5, 128) * 2.0**-126, spread(1, 128, 7, seed=1) * 2.0**100
        a, b = (
            custom_fp.quantize(x, f, axis=i) for x, f, i in zip((a, b), how.operands, (2, 1), strict=True)
        )
        assert ((a != 0) & (a.abs() < 2.0**-126)).any()
        want = by_reference(a, b, how)
        for isa in native._native.isas():
            native._native.use_isa(isa)
            assert same_bits(custom_fp.matmul(a, b, accumulator=how), want), (name, isa)
        found_a, found_b = (
            encodings.find(x, f, i, how) for x, f, i in zip((a, b), how.operands, (2, 1), strict=True)
        )
        scales = found_a.scales[0, 0].tolist(), found_b.scales[0, :, 0].tolist()
        exact = dot_oracle.dot(a[0, 0].tolist(), b[0, :, 0].tolist(), how, scales=scales)
        assert oracle.same(want[0, 0, 0].item(), exact)


def test_scales_of_tensors_multiply_the_sum():
    a, b = spread(6, 160), spread(160, 5, seed=1)
    *of_a, t = custom_fp.encode(a, "nvfp4", axis=1)
    *of_b, u = custom_fp.encode(b, "nvfp4", axis=0)
    one = torch.tensor(1.0)
    without = [custom_fp.decode((*of, one), "nvfp4", axis=axis) for of, axis in ((of_a, 1), (of_b, 0))]
    inner = custom_fp.matmul(
        *without, accumulator="fp32-of_nvfp4_1level-block_64-width_35-group_16-toward_zero"
    )
    values = custom_fp.quantize(a, "nvfp4", axis=1), custom_fp.quantize(b, "nvfp4", axis=0)
    assert same_bits(custom_fp.matmul(*values, accumulator="b200_nvfp4"), inner * (t * u))


def test_codes_and_scales_are_aligned_not_their_values():
    """A subnormal code of a block whose largest is 448 counts by 2**-6, and is cut off as that; a zero by its scale."""
    a, b = torch.zeros(1, 64), torch.zeros(64, 1)
    a[0, 0], b[0, 0] = 1.0, 2.0**-20  # 2**-20, first
    a[0, 32], a[0, 33] = 448.0, 2.0**-9
    b[33, 0] = 448.0
    got = custom_fp.matmul(a, b, accumulator="b200_mxfp8")
    assert got.item() == 2.0**-20 + 448.0 * 2.0**-9
    a[0, 33] = 0.0  # the block adds nothing; its zero times 448 has the exponent 8 - 126
    assert custom_fp.matmul(a, b, accumulator="b200_mxfp8").item() == 2.0**-20
    b[32:] *= 2.0**100  # and now 100 more, which leaves nothing of 2**-20 above 2**(-18 - 25)
    assert custom_fp.matmul(a, b, accumulator="b200_mxfp8").item() == 2.0**-20
    a[0, 32:] *= 2.0**60  # 42 - 25 = 17
    assert custom_fp.matmul(a, b, accumulator="b200_mxfp8").item() == 0.0


@pytest.mark.parametrize("name", SCALED)
def test_values_of_other_formats_are_refused(name):
    how = Accumulator.parse(name)
    a, b = operands(how)
    for wrong in (spread(1, 3, 90), torch.full((1, 3, 90), math.inf)):
        with pytest.raises(
            ValueError, match=f"must have values of {how.operands[0]}, in blocks along its last dimension"
        ):
            custom_fp.matmul(wrong, b, accumulator=how)
    with pytest.raises(ValueError, match=r"second operand .*second to last dimension.*axis=-2"):
        custom_fp.matmul(a, spread(1, 90, 4), accumulator=how)


@pytest.mark.parametrize(
    ("fmt", "machine"), [("mxfp8_e4m3", "b200_mxfp8"), ("mxfp4", "b200_mxfp4"), ("nvfp4", "b200_nvfp4")]
)
def test_a_model_is_trained(fmt, machine):
    """All three products of Linear and Conv layers, whose operands the rules round along what each sums over."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        *(torch.nn.Conv2d(2, 6, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(96, 10))
    )
    x, y = torch.randn(24, 2, 6, 6), torch.randint(0, 10, (24,))
    rules = [{"modules": "*", "role": ["input", "weight", "output_gradient"], "format": fmt}]
    custom_fp.apply_recipe(model, [*rules, {"modules": "*", "role": "accumulator", "format": machine}])
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.2), []
    for _ in range(5):
        losses.append(cross_entropy(model(x), y))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0] - 0.05


def test_a_layer_with_operands_of_other_formats_is_refused():
    for given, says in (
        ({}, "float32"),
        ({"operands": "mxfp8_e5m2", "gradients": "mxfp8_e4m3"}, "mxfp8_e5m2"),
    ):
        with pytest.raises(
            ValueError, match=f"forward product requires the input in mxfp8_e4m3, but it is in {says}"
        ):
            custom_fp.QuantLinear(64, 8, accumulator="b200_mxfp8", **given)
    with pytest.raises(ValueError, match="input_gradient product requires the output_gradient in mxfp8_e5m2"):
        custom_fp.QuantLinear(
            *(64, 8),
            accumulator="b200_mxfp8",
            backward_accumulator="b200_mxfp8_e5m2_by_e4m3",
            operands="mxfp8_e4m3",
        )
