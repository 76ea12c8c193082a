"""Biased layers with rounded results, compared with torch.autocast, which rounds after adding the bias."""

import custom_fp
import pytest
import torch
from torch import nn

SHAPES = {"linear": (8, 24), "conv1d": (2, 4, 12), "conv2d": (2, 4, 7, 7)}


@pytest.fixture(params=SHAPES)
def layer_and_input(request):
    torch.manual_seed(0)
    layers = {
        "linear": nn.Linear(24, 16),
        "conv1d": nn.Conv1d(4, 6, 3, padding=1),
        "conv2d": nn.Conv2d(4, 6, 3, groups=2),
    }
    return layers[request.param], torch.randn(SHAPES[request.param])


def gradients(layer, x, context):
    """Return the output of a layer, and the gradients of its input and parameters for a gradient in bf16."""
    x = x.clone().requires_grad_()
    with context:
        y = layer(x)
    grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    return [y, *torch.autograd.grad(y, [x, *layer.parameters()], grad.to(y.dtype))]


def test_bf16_equals_autocast(layer_and_input):
    """Values are multiples of 1/8, so float32 sums are exact in any order.

    Some processors have their own kernels for convolutions in bf16. These round the bias first, so biases are bf16
    values here. Their gradient of the input can be off by a unit in the last place, so float32 is used for it.
    """
    layer, x = layer_and_input
    with torch.no_grad():
        layer.weight.copy_((layer.weight * 64).round() / 8)
        layer.bias.copy_(layer.bias.bfloat16())
    x = (x * 8).round() / 8
    expected = gradients(layer, x, torch.autocast("cpu", torch.bfloat16))
    if not isinstance(layer, nn.Linear):
        expected[1] = gradients(layer, x, torch.autocast("cpu", enabled=False))[1].bfloat16()
    custom_fp.apply_recipe(layer, "bf16")
    found = gradients(layer, x, torch.autocast("cpu", enabled=False))
    for ours, theirs in zip(found[:2] + found[3:], expected[:2] + expected[3:], strict=True):
        assert torch.equal(ours, theirs.float())
    assert torch.equal(found[0], found[0].bfloat16().float())


@pytest.mark.parametrize("accumulator", [None, "e8m12"])
def test_results_of_biased_layers_are_values_of_the_format(layer_and_input, accumulator):
    layer, x = layer_and_input
    rules = [{"modules": "*", "role": "result", "format": "e4m3fn"}]
    if accumulator:
        rules.append({"modules": "*", "role": "accumulator", "format": accumulator})
    custom_fp.apply_recipe(layer, rules)
    y, dx, dw, db = gradients(layer, x, torch.autocast("cpu", enabled=False))
    # With an accumulator, the input's gradient of a convolution is a float32 sum over windows that overlap.
    has_windows = accumulator is not None and not isinstance(layer, nn.Linear)
    for result in (y, dw, db) if has_windows else (y, dx, dw, db):
        assert torch.equal(result, custom_fp.quantize(result, "e4m3fn"))


def test_without_a_rule_for_the_result_the_bias_is_added_in_float32():
    layer = nn.Linear(24, 16)
    x, rules = torch.randn(8, 24), [{"modules": "*", "role": "weight", "format": "e4m3"}]
    expected = nn.functional.linear(x, custom_fp.quantize(layer.weight, "e4m3")) + layer.bias
    custom_fp.apply_recipe(layer, rules)
    assert torch.equal(layer(x), expected)
