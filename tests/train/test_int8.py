import pytest
import torch
from custom_fp.layers.modules import QuantConv2d, QuantLinear
from torch import nn

from cpdrun.models.normed.norms import RangeEvoNorm, Sum
from cpdrun.train.precision.base import activation_bytes
from cpdrun.train.precision.int8 import Int8, min_max_quantize

BITS = {
    "weight_bits": 8,
    "activation_bits": 8,
    "error_bits": 8,
    "gradient_bits": 8,
    "activation_rounding": "nearest_even",
    "activation_range": "tensor",
    "error_rounding": "stochastic",
    "float_errors_for_weights": True,
    "loss_scale": 1.0,
}
FLOAT = {"weight_bits": None, "activation_bits": None, "error_bits": None, "gradient_bits": None}


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1),
        RangeEvoNorm(4, groups=2, chunks=4, eps=1e-5),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def loss_of(model: nn.Module) -> torch.Tensor:
    x = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    return nn.functional.cross_entropy(model(x), torch.arange(6))


def test_levels_lie_evenly_between_the_ends():
    x = torch.linspace(-1, 3, 1001)
    q = min_max_quantize(x, 3)
    torch.testing.assert_close(q.unique(), torch.linspace(-1, 3, 8))
    assert (q - x).abs().max() <= 4 / 7 / 2 + 1e-6
    assert min_max_quantize(x, None) is x
    assert torch.equal(min_max_quantize(torch.full((4,), 0.3), 8), torch.full((4,), 0.3))
    assert torch.isnan(min_max_quantize(torch.tensor([1.0, torch.inf]), 8)).all()


def test_stochastic_levels_are_unbiased():
    x = torch.randn(50, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    draws = torch.stack([min_max_quantize(x, 4, "stochastic") for _ in range(3000)])
    step = (x.max() - x.min()) / 15
    # The standard deviation of a draw is at most half a step.
    assert ((draws.mean(0) - x).abs() <= 6 * step / 2 / 3000**0.5).all()
    assert (draws - x).abs().max() <= step * (1 + 1e-5)


def test_without_bits_gradients_are_those_of_the_layers_of_torch():
    plain, ours = net(), Int8(**BITS | FLOAT).prepare(net())
    assert isinstance(ours[0], QuantConv2d) and isinstance(ours[3], QuantLinear)
    for model in (plain, ours):
        loss_of(model).backward()
    for (name, p), q in zip(plain.named_parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad, rtol=1e-5, atol=1e-7, msg=name)


@pytest.mark.parametrize(
    "layer", [nn.Linear(12, 5), nn.Conv2d(2, 6, 3, stride=2, padding=1, dilation=2, groups=2)]
)
def test_products_are_those_of_rounded_tensors(layer):
    model = nn.Sequential(layer)
    shape = (4, 12) if isinstance(layer, nn.Linear) else (4, 2, 9, 9)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    weight = layer.weight.detach().clone()
    settings = BITS | {
        "error_rounding": "nearest_even",
        "gradient_bits": None,
        "float_errors_for_weights": False,
    }
    y = Int8(**settings).prepare(model)(x)
    error = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    dx, dw = torch.autograd.grad(y, (x, model[0].weight), error)

    x8, w8 = (min_max_quantize(t.detach(), 8).requires_grad_() for t in (x, weight))
    if isinstance(layer, nn.Linear):
        y8 = nn.functional.linear(x8, w8, layer.bias)
    else:
        y8 = nn.functional.conv2d(x8, w8, layer.bias, 2, 1, 2, 2)
    expected = torch.autograd.grad(y8, (x8, w8), min_max_quantize(error, 8))
    torch.testing.assert_close(y, y8)
    torch.testing.assert_close(dx, expected[0])
    torch.testing.assert_close(dw, expected[1])


def test_the_weights_gradient_has_few_levels_and_may_use_float_errors():
    for float_errors in (True, False):
        model = Int8(**BITS | {"error_bits": 1, "float_errors_for_weights": float_errors}).prepare(net())
        torch.manual_seed(0)
        loss_of(model).backward()
        gradient = model[3].weight.grad
        assert 16 < len(gradient.unique()) <= 256
        plain = net()
        loss_of(plain).backward()
        alike = nn.functional.cosine_similarity(gradient.flatten(), plain[3].weight.grad.flatten(), dim=0)
        assert (alike > 0.99) == float_errors, "errors of one bit spoil the gradient"


def test_norms_read_rounded_values():
    model, seen = Int8(**BITS).prepare(net()), []
    model[1].register_forward_pre_hook(lambda _m, inputs: seen.append(inputs[0]))
    loss_of(model)
    assert len(seen[0].unique()) <= 256


def test_ranges_and_levels_are_those_of_the_authors():
    """UniformQuantize of quantized_training/quantize.py (github.com/aparna-aketi/Low_Precision_DL, commit fab2528) with
    3 bits and stochastic=False, on a CPU: with the ends that its QuantMeasure takes, the means over four samples of
    their smallest and largest values, and with those of the whole tensor."""
    i = torch.arange(24, dtype=torch.float64)
    x = (torch.sin(0.9 * i) * (1 + torch.floor(i / 6))).float().view(4, 6)
    for by_sample, low, high, levels in (
        (True, -2.35053, 2.4138, "355432146652004775100477"),
        (False, -3.93626, 3.84461, "444433245543114665201467"),
    ):
        expected = torch.tensor([low + (high - low) / 7 * int(n) for n in levels]).view(4, 6)
        torch.testing.assert_close(min_max_quantize(x, 3, by_sample=by_sample), expected, rtol=0, atol=2e-5)


def test_activations_are_clipped_and_rounded_stochastically_only_in_training():
    switched = BITS | {
        "activation_rounding": "stochastic",
        "activation_range": "samples",
        "weight_bits": None,
    }
    layer = Int8(**switched).prepare(nn.Sequential(nn.Linear(6, 6, bias=False)))[0]
    layer.weight.data = torch.eye(6)
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)) * torch.tensor([[1.0], [1], [1], [9]])
    torch.manual_seed(0)
    first, second = layer(x), layer(x)
    assert not torch.equal(first, second)
    ends = x.amin(1).mean(), x.amax(1).mean()
    assert first.min() >= ends[0] - 1e-5 and first.max() <= ends[1] + 1e-5 < x.max()
    layer.eval()
    torch.testing.assert_close(layer(x), min_max_quantize(x, 8, by_sample=True))
    assert torch.equal(layer(x), layer(x))


def test_sums_of_branches_read_rounded_values():
    model = nn.Sequential()
    model.add_module("sum", Sum())
    Int8(**BITS | {"activation_bits": 2}).prepare(model)
    a = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    b = torch.linspace(0, 3, 128).view(2, 64)
    torch.testing.assert_close(model.sum(a, b), min_max_quantize(a, 2) + min_max_quantize(b, 2))


def test_memory_counts_weights_and_activations_in_their_bits():
    def memory(model, **bits):
        precision = Int8(**BITS | bits)
        trained = [p for p in precision.prepare(model).parameters() if p.requires_grad]
        return precision.memory(torch.optim.SGD(trained, 0.1), trained)

    eight, full = memory(model := net()), memory(net(), weight_bits=None)
    rounded = (
        36 + 640
    )  # the weights of the convolution and the Linear layer; biases and the norm stay float32
    assert full == {"model_bytes": 4 * (rounded + 4 + 10 + 12), "optimizer_bytes": 0}
    assert eight == {"model_bytes": full["model_bytes"] - 3 * rounded + 16, "optimizer_bytes": 4 * rounded}
    frozen = net()
    frozen[0].requires_grad_(False)
    assert memory(frozen)["optimizer_bytes"] == 4 * 640, "no float32 copy of weights that are not updated"
    x = torch.randn(6, 1, 8, 8)
    values = 6 * 64 + 6 * 64 + 6 * 64  # the inputs of the convolution, the norm and the Linear layer
    assert activation_bytes(model, lambda: model(x), Int8(**BITS).activation_bits) == values
    assert activation_bytes(model, lambda: model(x), None) == 4 * values and model.training


def test_an_unsupported_padding_is_named():
    with pytest.raises(ValueError, match="padding_mode=reflect"):
        Int8(**BITS).prepare(nn.Sequential(nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect")))
