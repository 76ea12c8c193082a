"""Each operand of each product of a layer has its own rounding, compared with products rounded step by step."""

import custom_fp
import pytest
import torch
from custom_fp.layers.modules import replace_layers_
from custom_fp.layers.products import Arithmetic, Nearest
from torch import nn

FORMATS = {  # six roundings, no two alike
    ("input", "forward"): "e4m3",
    ("input", "weight_gradient"): "e5m2",
    ("weight", "forward"): "e3m2",
    ("weight", "input_gradient"): "e2m3",
    ("output_gradient", "input_gradient"): "e5m10",
    ("output_gradient", "weight_gradient"): "e3m4",
}
ROUNDINGS = {key: Nearest(fmt) for key, fmt in FORMATS.items()}
LAYERS = [
    (lambda: nn.Linear(6, 5), (4, 3, 6)),
    (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), (2, 4, 9)),
    (lambda: nn.Conv2d(2, 4, (3, 2), dilation=(1, 2), padding="same", padding_mode="reflect"), (2, 2, 6, 5)),
    (lambda: nn.Conv3d(2, 2, 2, padding=1, padding_mode="circular"), (2, 2, 3, 4, 3)),
]


def run(layer, x, error):
    x = x.detach().clone().requires_grad_()
    y = layer(x)
    dx, dw = torch.autograd.grad(y, (x, layer.weight), error)
    return y.detach(), dx, dw


@pytest.mark.parametrize(("make", "shape"), LAYERS)
def test_every_operand_of_every_product_is_rounded_by_its_own_rule(make, shape):
    torch.manual_seed(0)
    layer, x = make(), torch.randn(shape)
    error = torch.randn(layer(x).shape)
    w = layer.weight.detach().clone()

    def product(role_of_x, role_of_w, role_of_error, wanted):
        """One of the three, by torch's layer on operands rounded beforehand."""
        with torch.no_grad():
            layer.weight.copy_(custom_fp.quantize(w, FORMATS[role_of_w]) if role_of_w else w)
        given = custom_fp.quantize(x, FORMATS[role_of_x]) if role_of_x else x
        of_error = custom_fp.quantize(error, FORMATS[role_of_error]) if role_of_error else error
        result = run(layer, given, of_error)[wanted]
        with torch.no_grad():
            layer.weight.copy_(w)
        return result

    expected = [
        product(("input", "forward"), ("weight", "forward"), None, 0),
        product(None, ("weight", "input_gradient"), ("output_gradient", "input_gradient"), 1),
        product(("input", "weight_gradient"), None, ("output_gradient", "weight_gradient"), 2),
    ]
    found = run(replace_layers_(layer, {layer: Arithmetic(ROUNDINGS)}), x, error)
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e, rtol=1e-5, atol=1e-5)  # another kernel may sum in another order
    summed = Arithmetic(ROUNDINGS, dict.fromkeys(("forward", "input_gradient", "weight_gradient"), "fp32"))
    for f, e in zip(run(replace_layers_(layer, {layer: summed}), x, error), expected, strict=True):
        torch.testing.assert_close(f, e, rtol=1e-4, atol=1e-4)


def test_every_product_has_an_accumulator_of_its_own():
    torch.manual_seed(0)
    sums = {"forward": "e5m3", "input_gradient": "e5m4", "weight_gradient": "e5m5"}
    layer, x, error = nn.Linear(7, 3, bias=False), torch.randn(5, 7), torch.randn(5, 3)
    w = layer.weight.detach()
    y, dx, dw = run(replace_layers_(layer, {layer: Arithmetic(accumulators=sums)}), x, error)
    assert torch.equal(y, custom_fp.matmul(x, w.t(), accumulator="e5m3"))
    assert torch.equal(dx, custom_fp.matmul(error, w, accumulator="e5m4"))
    assert torch.equal(dw, custom_fp.matmul(x.t(), error, accumulator="e5m5").t())
    forward_alone = Arithmetic(accumulators={"forward": "e5m3"})
    assert torch.equal(run(replace_layers_(layer, {layer: forward_alone}), x, error)[1], error @ w)


def test_results_are_rounded_and_a_layer_without_arithmetic_is_torchs():
    torch.manual_seed(0)
    layer, x, error = nn.Linear(9, 4), torch.randn(6, 9), torch.randn(6, 4)
    plain = run(layer, x, error)
    rounded = Arithmetic({("result", p): Nearest("e3m1") for p in ("input_gradient", "weight_gradient")})
    y, dx, dw = run(replace_layers_(layer, {layer: rounded}), x, error)
    torch.testing.assert_close(y, plain[0])
    assert torch.equal(dx, custom_fp.quantize(plain[1], "e3m1")) and dw.unique().numel() < 24
    for one, other in zip(run(replace_layers_(layer, {layer: Arithmetic()}), x, error), plain, strict=True):
        assert torch.equal(one, other)


def test_per_product_roundings_vmap():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(32, 3))
    model = replace_layers_(model, {model[0]: Arithmetic(ROUNDINGS), model[2]: Arithmetic(ROUNDINGS)})
    x = torch.randn(2, 1, 6, 6)
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def loss(weights, sample):
        return torch.func.functional_call(model, weights, (sample[None],)).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, x)
    for i in range(2):
        for name, g in torch.func.grad(loss)(weights, x[i]).items():
            torch.testing.assert_close(each[name][i], g, rtol=1e-4, atol=1e-4)
