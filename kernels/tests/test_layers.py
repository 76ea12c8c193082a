"""Layers that round the operands of their three products, and add in an accumulator.

They are compared with torch's layers on operands that are rounded beforehand, and with `matmul`.
"""

import custom_fp
import pytest
import torch
from custom_fp.layers import products
from custom_fp.layers.modules import replace_layers_
from custom_fp.layers.products import Arithmetic, Nearest
from tensors import normal
from torch import nn

CONVOLUTIONS = [
    (nn.Conv1d, (2, 4, 11), {"kernel_size": 3, "stride": 2, "padding": 1, "groups": 2}),
    (nn.Conv1d, (4, 11), {"kernel_size": 3, "dilation": 2, "bias": False}),
    (nn.Conv2d, (2, 4, 9, 8), {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 2), "groups": 4}),
    (nn.Conv2d, (2, 4, 9, 8), {"kernel_size": 3, "padding": "same", "padding_mode": "reflect"}),
    (nn.Conv3d, (2, 4, 5, 6, 7), {"kernel_size": 2, "stride": 2, "padding": 1, "groups": 2}),
]


@pytest.mark.parametrize(("plain", "shape", "arguments"), CONVOLUTIONS)
def test_convolutions_equal_torchs_in_float32(plain, shape, arguments):
    layer = plain(4, 8, **arguments)
    twin = getattr(custom_fp, f"Quant{plain.__name__}")(4, 8, accumulator="fp32", **arguments)
    twin.load_state_dict(layer.state_dict())
    x = torch.randn(shape)
    results = []
    for module in (layer, twin):
        x_module = x.clone().requires_grad_()
        result = module(x_module)
        (result * torch.arange(result.numel()).view(result.shape).cos()).sum().backward()
        results.append([result, x_module.grad, *(p.grad for p in module.parameters())])
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)  # another order of float32 sums


def test_linear_computes_the_products_that_it_names():
    backward = {"backward_accumulator": "e5m7", "gradients": "e5m2"}
    layer = custom_fp.QuantLinear(6, 3, accumulator="e5m10", operands="e4m3", **backward)
    x, grad = torch.randn(4, 6, requires_grad=True), torch.randn(4, 3)
    y = layer(x)
    y.backward(grad)
    q_x, q_w = custom_fp.quantize(x.detach(), "e4m3"), custom_fp.quantize(layer.weight.detach(), "e4m3")
    q_grad = custom_fp.quantize(grad, "e5m2")
    assert torch.equal(y, custom_fp.matmul(q_x, q_w.t(), accumulator="e5m10") + layer.bias)
    assert torch.equal(x.grad, custom_fp.matmul(q_grad, q_w, accumulator="e5m7"))
    assert torch.equal(layer.weight.grad, custom_fp.matmul(q_x.t(), q_grad, accumulator="e5m7").t())
    assert torch.equal(layer.bias.grad, grad.sum(0))


@pytest.mark.parametrize(("forward", "backward"), [("e4m3", "e5m2"), ("nf4", "mxfp8_e5m2"), (None, None)])
def test_quantizer(forward, backward):
    x, grad = torch.randn(20, requires_grad=True), torch.randn(20)
    y = custom_fp.Quantizer(forward=forward, backward=backward)(x)
    y.backward(grad)
    assert torch.equal(y, custom_fp.quantize(x.detach(), forward or "fp32"))
    assert torch.equal(x.grad, custom_fp.quantize(grad, backward or "fp32"))


# ---- whole models


def network():
    shared = nn.Linear(8, 8)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2 * 36, 8), shared, nn.ReLU(), shared)


def test_quantize_model():
    model = network()
    swapped = custom_fp.quantize_model(model, accumulator="e5m10", operands="e4m3", skip=("2",))
    assert type(model[0]) is nn.Conv2d  # the model itself is unchanged
    kinds = [type(module).__name__ for module in swapped]
    assert kinds == ["QuantConv2d", "Flatten", "Linear", "QuantLinear", "ReLU", "QuantLinear"]
    assert swapped[3] is swapped[5] and list(swapped.state_dict()) == list(model.state_dict())
    assert "accumulator=fp16" in repr(swapped)

    parameters = list(model.parameters())
    assert custom_fp.quantize_model_(model, accumulator="e5m10") is model
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    assert isinstance(custom_fp.quantize_model(nn.Linear(2, 2), accumulator="e5m10"), custom_fp.QuantLinear)


def test_layers_compile_and_vmap():
    model = custom_fp.quantize_model(network(), accumulator="e5m10", operands="e4m3", gradients="e5m2")
    model[2].arithmetic = Arithmetic(
        {("input", "forward"): Nearest("e4m3"), ("weight", "forward"): Nearest("e3m2")}
    )
    x = torch.randn(2, 1, 8, 8)
    assert torch.equal(torch.compile(model, fullgraph=True, backend="aot_eager")(x), model(x))
    weight = model[0].weight.detach()

    def loss(weight, sample):
        return torch.func.functional_call(model, {"0.weight": weight}, (sample[None],)).sum()

    per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weight, x)
    for i in range(2):
        assert torch.equal(per_sample[i], torch.func.grad(loss)(weight, x[i]))


@pytest.mark.parametrize("padded", [False, True])
def test_an_encoder_uses_the_accumulator_in_evaluation_too(padded):
    """torch's fused inference path read the replaced layers' weights and gave float32's result, bit for bit."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    plain, x = nn.TransformerEncoder(layer, 2).eval(), torch.randn(3, 4, 8)
    mask = torch.tensor([[False] * 4, [False] * 3 + [True], [False] * 4]) if padded else None
    emulated = custom_fp.quantize_model(plain, accumulator="e3m2").eval()
    evaluated = [emulated(x, src_key_padding_mask=mask)]  # with gradients: never fused
    with torch.no_grad():
        evaluated.append(emulated(x, src_key_padding_mask=mask))
        float32 = plain(x, src_key_padding_mask=mask)
    seen = slice(None) if mask is None else ~mask
    assert torch.allclose(evaluated[0][seen], evaluated[1][seen], atol=0.3)  # attention itself may be fused
    assert (evaluated[1][seen] - float32[seen]).abs().max() > 0.01


def test_a_model_without_a_layer_to_replace_is_refused():
    class OwnLinear(nn.Linear):
        """A subclass may compute anything."""

    for model in (nn.LSTM(3, 4), OwnLinear(3, 4), nn.MultiheadAttention(4, 2), nn.ConvTranspose2d(1, 1, 3)):
        with pytest.raises(ValueError, match=f"no layer of {type(model).__name__} can be replaced"):
            custom_fp.quantize_model(model, accumulator="e5m2")


def test_operands_alone_leave_the_sums_in_float32():
    model, x = nn.Linear(16, 4), torch.randn(5, 16, requires_grad=True)
    rounded = [custom_fp.quantize(value, "e4m3") for value in (x.detach(), model.weight.detach())]
    for settings in ({"operands": "e4m3"}, {"operands": "e4m3", "accumulator": None}):
        y = custom_fp.quantize_model(model, **settings)(x)
        assert torch.equal(y, rounded[0] @ rounded[1].t() + model.bias)
    y = custom_fp.quantize_model(model, accumulator=None, backward_accumulator="e3m2")(x)
    assert torch.allclose(y, model(x), atol=1e-5)
    y.sum().backward()
    assert torch.equal(x.grad, custom_fp.matmul(torch.ones(5, 4), model.weight.detach(), accumulator="e3m2"))


# ---- each operand of each product

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


@pytest.mark.parametrize(
    ("name", "calls"),  # x, w and the error: rounded for both products of each, or once
    [("e4m3", 3), ("fp8_tensor", 3), ("int8_affine", 3), ("dynamic_map", 3), ("nvfp4_2d", 3), ("int4_affine_8x8", 3),
     ("mxfp8_e4m3", 6), ("int8_affine_channel", 6), ("nf4_b64", 6)],
)  # fmt: skip
def test_an_operand_is_rounded_as_often_as_its_blocks_differ(name, calls, monkeypatch):
    """An operand that two products round in the same way is rounded once, with the same bits as rounding it twice."""
    seen = []

    def counted(x, fmt, **how):
        seen.append(how.get("axis"))
        return custom_fp.quantize(x, fmt, **how)

    monkeypatch.setattr(products, "quantize", counted)
    layer = custom_fp.QuantLinear(40, 24, bias=False, operands=name, gradients=name)
    x, error = normal(48, 40).requires_grad_(), normal(48, 24, seed=1)
    y = layer(x)
    y.backward(error)
    assert len(seen) == calls

    def along(t, axis):
        return custom_fp.quantize(t.detach(), name, axis=axis)

    w = layer.weight
    assert torch.equal(y, along(x, 1) @ along(w, 1).t())
    assert torch.equal(x.grad, along(error, 1) @ along(w, 0))
    assert torch.equal(w.grad, along(error, 0).t() @ along(x, 0))


def test_tiles_of_other_shapes_are_cut_for_each_product():
    """(2, 20, 40): forward tiles lie in one of the two matrices, those of the weight's gradient in all 40 rows."""
    layer = custom_fp.QuantLinear(40, 24, bias=False, operands="nvfp4_2d", gradients="nvfp4_2d")
    x = normal(2, 20, 40).requires_grad_()
    layer(x).sum().backward()
    ones = custom_fp.quantize(torch.ones(40, 24), "nvfp4_2d")
    rows = custom_fp.quantize(x.detach().view(40, 40), "nvfp4_2d")
    assert torch.equal(layer.weight.grad, ones.t() @ rows)
