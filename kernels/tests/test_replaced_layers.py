"""Layers that quantize_model replaces use the accumulator in every mode. Models without such layers raise errors."""

import custom_fp
import pytest
import torch
from torch import nn


def encoder() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2)


@pytest.mark.parametrize("padded", [False, True])
def test_an_encoder_is_evaluated_in_the_accumulator_too(padded):
    """torch's fused inference path read the replaced layers' weights and gave float32's result, bit for bit."""
    plain, x = encoder().eval(), torch.randn(3, 4, 8)
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
        """Of a subclass: what it computes is its own."""

    for model in (nn.LSTM(3, 4), OwnLinear(3, 4), nn.MultiheadAttention(4, 2), nn.ConvTranspose2d(1, 1, 3)):
        with pytest.raises(ValueError, match=f"no layer of {type(model).__name__} can be replaced"):
            custom_fp.quantize_model(model, accumulator="e5m2")
    with pytest.raises(ValueError, match="all are skipped"):
        custom_fp.quantize_model(nn.Sequential(nn.Linear(2, 2)), accumulator="e5m2", skip=("*",))


def test_a_pattern_of_skip_that_matches_nothing_is_refused():
    with pytest.raises(ValueError, match=r"skip='head' matches none of the layers: 0, 1"):
        custom_fp.quantize_model(
            nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), accumulator="e5m2", skip=("head",)
        )


def test_operands_alone_leave_the_sums_in_float32():
    model, x = nn.Linear(16, 4), torch.randn(5, 16, requires_grad=True)
    rounded = [custom_fp.quantize(value, "e4m3") for value in (x.detach(), model.weight.detach())]
    expected = rounded[0] @ rounded[1].t() + model.bias
    for settings in ({"operands": "e4m3"}, {"operands": "e4m3", "accumulator": None}):
        y = custom_fp.quantize_model(model, **settings)(x)
        assert torch.equal(y, expected)
    backward_alone = custom_fp.quantize_model(model, accumulator=None, backward_accumulator="e3m2")
    y = backward_alone(x)
    assert torch.allclose(y, model(x), atol=1e-5)
    y.sum().backward()
    by_hand = custom_fp.matmul(torch.ones(5, 4), model.weight.detach(), accumulator="e3m2")
    assert torch.equal(x.grad, by_hand)
