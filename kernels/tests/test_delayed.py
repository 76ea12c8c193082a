"""Delayed scaling: scales come from the largest magnitudes of previous steps; an optimizer's step ends each step."""

import custom_fp
import pytest
import torch
from custom_fp.recipe.delayed_scaling import Delayed, History
from custom_fp.recipe.quantization_spec import QuantizationSpec
from torch import nn

RULE = {"modules": "*", "role": ["input", "weight", "output_gradient"], "format": "fp8_tensor", "history": 2}


def by_amax(x, amax):
    """fp8_tensor's own steps, with a largest value that is given."""
    scale = torch.tensor(amax / 448.0, dtype=torch.float32)
    return custom_fp.quantize((x.clamp(-amax, amax) * (1 / scale)).clamp(-448, 448), "e4m3fn") * scale


def test_scales_come_from_the_previous_steps():
    torch.manual_seed(0)
    layer = nn.Linear(4, 3, bias=False)
    w = layer.weight.detach().clone()
    applied = custom_fp.apply_recipe(layer, [RULE])
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.0)
    largest = []
    for amax in (2.0, 8.0, 1.0, 0.5, 4.0):
        x = torch.randn(6, 4)
        x = x * (amax / x.abs().max())
        x[0, 0] = amax
        y = layer(x)
        before = max(largest[-2:], default=amax)
        expected = by_amax(x, before) @ by_amax(w, w.abs().max().item()).t()
        assert torch.equal(y, expected)
        with torch.no_grad():
            layer.eval()(100 * x)  # enters nothing
            assert torch.equal(layer(x), expected if largest else layer(x))
        layer.train()
        y.sum().backward()
        optimizer.step()
        largest.append(amax)
    assert applied.state_dict()[":input"].tolist() == [4.0, 0.5]
    assert str(layer).count("fp8_tensor (history 2)") == 3
    other = nn.Linear(4, 3, bias=False)
    other.load_state_dict(layer.state_dict())
    later = custom_fp.apply_recipe(other, [RULE])
    later.load_state_dict(applied.state_dict())
    x = torch.randn(2, 4)
    assert torch.equal(other(x), layer(x))


def test_infinity_and_nan_stay_visible_and_are_not_recorded():
    history = History(3)
    rounding = Delayed(QuantizationSpec("fp8_tensor", history=3), history)
    x = torch.tensor([1.0, 2.0, torch.inf])
    assert rounding(x).isnan().all() and history.seen == 2.0
    assert rounding(torch.tensor([torch.nan])).isnan().all() and history.seen == 2.0
    assert rounding(torch.zeros(0)).shape == (0,) and torch.equal(rounding(torch.zeros(2)), torch.zeros(2))
    x = torch.randn(5, requires_grad=True)
    rounding(x).sum().backward()
    assert torch.equal(x.grad, torch.ones(5))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"history": 0}, "rules[0].history=0: must be a number of steps, 1 to 65536"),
        (
            {"format": "mxfp8_e4m3"},
            "history=2: requires a format with one scale for the tensor, such as fp8_tensor, not mxfp8_e4m3",
        ),
        ({"format": "e4m3"}, "requires a format with one scale for the tensor, such as fp8_tensor, not e4m3"),
        ({"role": "result"}, "history=2: only operands can have a history "),
        ({"hadamard": 16}, "history=2 cannot be combined with hadamard=16; remove one of them"),
    ],
)
def test_errors(given, message):
    with pytest.raises(ValueError) as error:
        custom_fp.apply_recipe(nn.Linear(2, 2), [RULE | given])
    assert message in str(error.value)
