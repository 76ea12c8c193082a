"""Compare recipes with their sources: torchao's FP8 layers, TransformerEngine's signs and DeepSeek's cached inputs."""

import copy
import json
from pathlib import Path

import custom_fp
import pytest
import torch
from custom_fp.recipe.quantization_spec import SIGNS
from torch import nn
from torch.nn import functional as F

KNOWN = json.loads((Path(__file__).parent / "float8_linear_vectors.json").read_text())
TRANSFORMER_ENGINE_SIGNS = [1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1]
ALL = {"modules": "*", "format": "fp8_b128_e8m0_rceil"}
NO_RESULT = {"modules": "*", "role": "result", "format": "fp32"}


def bf16(x):
    return custom_fp.quantize(x, "bf16")


def rounded(x, name, axis):
    return custom_fp.quantize(x, name, axis=axis)


def run(model, x, dy):
    """Return the output, the gradient of the input, and the gradients of the parameters."""
    x = x.clone().requires_grad_()
    y = model(x)
    return [y.detach(), *torch.autograd.grad(y, (x, *model.parameters()), dy)]


def torchao_rowwise(x, axis):
    """Round to e4m3fn with power-of-two scales, computed as in torchao.float8.float8_utils.amax_to_scale."""
    amax = x.abs().amax(axis, keepdim=True) if axis is not None else x.abs().max()
    scale = torch.exp2(torch.floor(torch.log2((448 / amax.double().clamp(1e-12)).float())))
    return (x * scale).to(torch.float8_e4m3fn).float() / scale


@pytest.mark.parametrize("name", KNOWN["recipes"])
def test_row_scaled_recipes_equal_torchaos_emulation(name):
    """Compare stored results of torchao with a formula for its emulation, and with our layer under the same recipe."""
    x, w, dy = (torch.tensor(KNOWN[key]).float() for key in ("x", "w", "dy"))
    layer = nn.Linear(*w.shape[::-1], bias=False)
    layer.weight.data = w
    ingredients = {"weight_gradient": "fp32"} if name == "fp8_row_gw_hp" else {}
    custom_fp.apply_recipe(layer, name, **ingredients)
    y, dx, dw = run(layer, x, dy)
    known = {key: torch.tensor(value).float() for key, value in KNOWN["recipes"][name].items()}
    q = torchao_rowwise
    is_row = name == "fp8_row"
    for found, expected in (
        (known["y"], q(x, -1) @ q(w, -1).t()),
        (known["dx"], q(dy, -1) @ q(w, 0 if is_row else None)),
        (known["dw"], q(dy, 0).t() @ q(x, 0) if is_row else dy.t() @ x),
    ):
        assert torch.equal(found, expected)
    assert torch.equal(y, bf16(known["y"])) and torch.equal(dx, bf16(known["dx"]))
    assert torch.equal(dw, known["dw"])


def test_the_weight_gradient_of_gw_hp_is_a_bf16_product():
    torch.manual_seed(0)
    layer, x, dy = nn.Linear(48, 40, bias=False), torch.randn(64, 48), torch.randn(64, 40)
    custom_fp.apply_recipe(layer, "fp8_row_gw_hp")
    assert torch.equal(run(layer, x, dy)[2], bf16(dy).t() @ bf16(x))


def test_the_hadamard_transform_equals_that_of_transformer_engine():
    """TransformerEngine multiplies 16 values by fixed signs and then by the Hadamard matrix.

    Source: get_rht_matrix in pytorch/tensor/nvfp4_tensor.py.
    """
    signs = torch.tensor(TRANSFORMER_ENGINE_SIGNS).float()
    index = torch.arange(16)
    ones = torch.tensor([[bin(i & j).count("1") for j in index.tolist()] for i in index.tolist()])
    expected = torch.diag(signs) @ ((-1.0) ** ones) / 4
    assert torch.equal(custom_fp.hadamard(torch.eye(16), 16, seed=SIGNS), expected)


def test_a_block_scale_that_underflows_becomes_the_smallest_scale():
    """TransformerEngine rounds the scale of a block, amax / 6 / t, to e4m3fn. This scale can become 0.

    Our scale becomes the smallest positive scale instead, so the larger values of the block do not become 0.
    """
    x = torch.zeros(1, 32)
    small = torch.tensor([2.0**-10.5, 2.0**-11.5, 2.0**-13])
    x[0, :3], x[0, 16] = small, 448.0
    t = x.abs().max() / (6 * 448)
    assert (small[0] / 6 / t).to(torch.float8_e4m3fn) == 0
    smallest = 2.0**-9 * t
    assert torch.equal(
        custom_fp.quantize(x, "nvfp4", axis=-1)[0, :3], torch.tensor([2.0, 1.0, 0.5]) * smallest
    )


def two_layers():
    """Return a model that consists of a layer and an output head, an input for it, and the weight of the layer."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 48, bias=False), nn.Linear(48, 5, bias=False))
    return net, torch.randn(32, 64), net[0].weight.detach().clone()


def test_int8_computes_switchback_with_bf16_results():
    net, x, w = two_layers()
    custom_fp.apply_recipe(net, "int8")
    assert torch.equal(
        net[0](x), bf16(F.linear(rounded(x, "int8_row", -1), custom_fp.quantize(w, "int8_tensor")))
    )
    dx, dw = run(net[0], x, dy := torch.randn(32, 48))[1:]
    assert torch.equal(dx, bf16(rounded(dy, "int8_row", -1) @ custom_fp.quantize(w, "int8_tensor")))
    assert torch.equal(dw, bf16(dy).t() @ bf16(x))


def test_ufp4_transforms_all_operands_and_rounds_only_gradients_stochastically():
    net, x, w = two_layers()
    text = custom_fp.apply_recipe(net, "ufp4").rounded["0"]
    assert "input=nvint4 (hadamard 16), weight=nvint4 (hadamard 16), " in text
    assert "output_gradient=nvint4 (stochastic, hadamard 16)" in text
    turned = (rounded(custom_fp.hadamard(t, 16, seed=SIGNS), "nvint4", -1) for t in (x, w))
    assert torch.equal(net[0](x), bf16(F.linear(*turned)))


def test_nvfp4_rtx50_has_no_transform_and_no_stochastic_rounding():
    net, x, w = two_layers()
    applied = custom_fp.apply_recipe(net, "nvfp4_rtx50")
    assert "hadamard" not in str(applied) and "stochastic" not in str(applied)
    dy = torch.randn(32, 48)
    dx, dw = run(net[0], x, dy)[1:]
    assert torch.equal(dx, bf16(rounded(dy, "nvfp4", -1) @ custom_fp.quantize(w, "nvfp4_2d")))
    assert torch.equal(dw, rounded(dy, "nvfp4", 0).t() @ rounded(x, "nvfp4", 0))


@pytest.mark.parametrize("cached", ["fp8_b128_e8m0_rceil", "e5m6"])
def test_the_weight_gradient_reads_cached_inputs(cached):
    torch.manual_seed(0)
    layer, x, dy = nn.Linear(256, 40, bias=False), torch.randn(4, 64, 256), torch.randn(4, 64, 40)
    # Some cached values become subnormal in e4m3fn, where they have fewer significant bits.
    x *= 2.0 ** -torch.randint(16, x.shape)
    w, name = layer.weight.detach().clone(), ALL["format"]
    rules = [
        {**ALL, "role": "input", "product": "weight_gradient", "cached": cached},
        {**ALL, "role": ["input", "weight", "output_gradient"]},
    ]
    applied = custom_fp.apply_recipe(layer, rules)
    assert f"input of weight_gradient={name} (cached in {cached})" in applied.rounded["Linear"]
    y, dx, dw = run(layer, x, dy)
    rows, errors = x.reshape(-1, 256), dy.reshape(-1, 40)
    assert torch.equal(y, F.linear(rounded(x, name, -1), rounded(w, name, -1)))
    assert torch.equal(dx, rounded(dy, name, -1) @ rounded(w, name, 0))
    stored = rounded(rows, cached, -1)
    assert torch.equal(dw, rounded(errors, name, 0).t() @ rounded(stored, name, 0))
    assert not torch.equal(rounded(stored, name, 0), rounded(rows, name, 0))


def test_weight_gradients_of_convolutions_and_emulated_accumulators_read_cached_inputs():
    """The input is cached in e8m1 and then read in bf16.

    bf16 represents all values of e8m1 exactly, so reading in bf16 does not change them. Every kernel must therefore
    compute the weight gradient from the e8m1 values.
    """
    torch.manual_seed(0)
    cached = {
        "modules": "*",
        "role": "input",
        "product": "weight_gradient",
        "format": "bf16",
        "cached": "e8m1",
    }
    sums = {"modules": "*", "role": "accumulator", "format": "fp32"}
    for make, shape in (
        (lambda: nn.Conv1d(6, 4, 3, bias=False), (2, 6, 9)),
        (lambda: nn.Linear(6, 4), (5, 6)),
    ):
        for rules in ([cached], [cached, {**sums, "format": "fp32-exact"}]):
            plain, layer, x = make(), make(), torch.randn(shape)
            plain.weight.data = layer.weight.data
            custom_fp.apply_recipe(plain, rules[1:] or [{**sums, "format": "fp32", "optional": True}])
            custom_fp.apply_recipe(layer, rules)
            dy = torch.randn(layer(x).shape)
            found, expected = run(layer, x, dy)[2], run(plain, custom_fp.quantize(x, "e8m1"), dy)[2]
            assert torch.equal(found, expected)


def test_power_of_two_scales_change_only_the_exponents_of_deepseeks_sums():
    """The accumulator of fp8_block128 returns DeepSeek's sums of e4m3fn codes, multiplied by power-of-two scales."""
    torch.manual_seed(0)
    text = (
        Path(custom_fp.__file__).parent.joinpath("conf/recipe/fp8_block128.yaml").read_text(encoding="utf-8")
    )
    name = "e8m13-block_32-width_13-toward_zero-chunk_128"
    assert name in text
    codes_x, codes_w = (custom_fp.quantize(100 * torch.randn(24, 384), "e4m3fn") for _ in range(2))
    plain = custom_fp.matmul(codes_x, codes_w.t(), accumulator="deepseek_v3")
    for exponent in (-40, 0, 20):
        scaled = custom_fp.matmul(codes_x * 2.0**exponent, codes_w.t(), accumulator=name)
        assert torch.equal(scaled, plain * 2.0**exponent)
    layer = nn.Sequential(nn.Linear(384, 24, bias=False), nn.Linear(24, 5))
    custom_fp.apply_recipe(layer, "fp8_block128", accumulator=name)
    x, w = torch.randn(8, 384), layer[0].weight.detach()
    operands = rounded(x, "fp8_b128_e8m0_rceil", -1), custom_fp.quantize(w, "fp8_block128_e8m0_rceil")
    assert torch.equal(layer[0](x), bf16(custom_fp.matmul(operands[0], operands[1].t(), accumulator=name)))


def test_mxfp8_may_round_the_weights_of_norms():
    """With the scales of OCP MX, all weights between 0.9 and 0.99 become 0.875.

    Divided by the scale, these weights exceed the largest value of e4m3fn, so they saturate.
    """
    net, x = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 4)), torch.randn(8, 64)
    net[1].weight.data.uniform_(0.9, 0.99)
    plain = nn.LayerNorm(64)
    plain.weight.data.fill_(0.875)
    assert "1" not in custom_fp.apply_recipe(copy.deepcopy(net), "mxfp8").rounded
    custom_fp.apply_recipe(net, "mxfp8", norm_weights="mxfp8_e4m3")
    assert torch.equal(net[1](x), plain(x))


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"role": "input"}, "rules[0].cached=e5m6: requires role: input and product: weight_gradient"),
        ({"role": "weight", "product": "forward"}, "rules[0].cached=e5m6: requires role: input"),
        ({"role": "input", "product": "weight_gradient", "cached": "e9m9"}, "rules[0].cached=e9m9: "),
        (
            {"role": "input", "product": "weight_gradient", "aps": True},
            "rules[0]: cached=e5m6 cannot be combined with aps or history",
        ),
        ({"role": "input", "product": "weight_gradient", "format": "fp32"}, "cached=e5m6: has no effect"),
    ],
)
def test_errors(rule, message):
    given = {"modules": "*", "format": "bf16", "cached": "e5m6", **rule}
    with pytest.raises(ValueError) as error:
        custom_fp.apply_recipe(nn.Linear(4, 4), [given])
    assert message in str(error.value)
