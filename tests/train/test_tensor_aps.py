"""APS for weights, activations and errors, compared with exact arithmetic, and its effect on a run."""

import math
from fractions import Fraction

import custom_fp
import pytest
import torch
from custom_fp import Format
from custom_fp.layers.products import round_gradient
from custom_fp.recipe.quantization_spec import QuantizationSpec
from custom_fp.recipe.tensor_aps import aps_quantize, quantize_on_device
from test_precision import FP32
from torch import nn

from cpdrun.record import read_json
from cpdrun.train.precision.run_formats import Formats


def by_hand(x: torch.Tensor, fmt: str) -> list[Fraction]:
    """Q(x 2^shift) 2^-shift with the exponent found by doubling, each element by exact rationals."""
    values = [Fraction(v) for v in x.flatten().tolist()]
    largest, exponent = max(abs(v) for v in values), 0
    while largest and Fraction(2) ** exponent < largest:
        exponent += 1
    while largest and Fraction(2) ** (exponent - 1) >= largest:
        exponent -= 1
    factor = Fraction(2) ** (Format.parse(fmt).emax - exponent)
    shifted = torch.tensor([float(v * factor) for v in values], dtype=torch.float64)
    return [Fraction(v) / factor for v in custom_fp.quantize(shifted, fmt).tolist()]


@pytest.mark.parametrize("fmt", ["e4m3", "e5m2", "e3m0", "e4m3fn", "bf16"])
@pytest.mark.parametrize("scale", [1.0, 3e-7, 2.0**20, 1e-38])
def test_the_shift_fills_the_format(fmt, scale):
    x = torch.randn(200, generator=torch.Generator().manual_seed(1)) * scale
    found = aps_quantize(x, fmt)
    assert torch.equal(found, quantize_on_device(x, fmt))
    exact = torch.tensor([float(v) for v in by_hand(x, fmt)], dtype=torch.float64)
    assert torch.equal(found, exact.float())
    largest = x.abs().argmax()
    assert abs(found[largest] / x[largest] - 1) <= 0.5  # e3m0 has powers of two alone
    assert torch.equal(aps_quantize(found, fmt), found), "a second rounding changes nothing"


@pytest.mark.parametrize("largest", [1.0, 1.0 + 2**-23, 1.5, 2.0**-149, 2.0**-126, 3.4e38])
def test_powers_of_two_subnormals_and_huge_values_keep_their_shift_exact(largest):
    x = torch.tensor([largest, largest / 4, 0.0, -0.0])
    found = aps_quantize(x, "e5m2")
    assert torch.equal(found, quantize_on_device(x, "e5m2"))
    expected = torch.tensor([float(v) for v in by_hand(x, "e5m2")], dtype=torch.float64).float()
    assert torch.equal(found, expected)
    assert math.copysign(1, found[3]) == -1


def test_values_that_are_not_finite_stay_and_do_not_affect_the_shift():
    x = torch.tensor([1e-5, math.inf, -2e-5, math.nan, 0.0])
    found, alone = aps_quantize(x, "e4m3"), aps_quantize(torch.tensor([1e-5, -2e-5]), "e4m3")
    assert found[1] == math.inf and found[3].isnan()
    assert torch.equal(found[[0, 2]], alone) and (alone != 0).all()
    assert torch.equal(quantize_on_device(x, "e4m3").nan_to_num(7.0), found.nan_to_num(7.0))
    for x in (torch.zeros(3), torch.ones(0)):
        assert torch.equal(aps_quantize(x, "e4m3"), x)


def test_forward_and_backward_have_shifts_of_their_own_under_vmap_too():
    def quantizer(x_F):
        return aps_quantize(round_gradient(x_F, QuantizationSpec("e5m2", aps=True)), "e4m3")

    x = torch.randn(3, 16, generator=torch.Generator().manual_seed(2)) * torch.tensor([[1e-6], [1.0], [1e5]])

    def loss(x_F):
        return (quantizer(x_F) * torch.arange(16.0) * 1e-9).sum()

    grads = torch.func.vmap(torch.func.grad(loss))(x)
    for row, grad in zip(x, grads, strict=True):
        assert torch.equal(grad, aps_quantize(torch.arange(16.0) * 1e-9, "e5m2"))
        assert torch.equal(torch.func.grad(loss)(row), grad)
    rows = torch.func.vmap(quantizer)(x)
    assert torch.equal(rows, torch.stack([aps_quantize(row, "e4m3") for row in x]))


def test_layers_and_weights_of_a_model_are_shifted():
    torch.manual_seed(0)
    model, seen = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)), []
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1e-4)
    settings = FP32 | {"weights": "e4m3", "activations": "e4m3", "errors": "e5m2", "aps": True}
    precision = Formats(**settings)
    masters = [p.detach().clone() for p in model.parameters()]
    precision.prepare(model)
    memory = precision.memory(torch.optim.SGD(model.parameters(), lr=1.0), list(model.parameters()))
    assert memory["model_bytes"] == sum(p.numel() for p in masters) + 4
    pairs = zip(model.parameters(), masters, strict=True)
    assert all(torch.equal(p, aps_quantize(m, "e4m3")) and bool(p.any()) for p, m in pairs)
    model[2].register_forward_hook(lambda _m, _i, output: seen.append(output.detach()))
    model(torch.randn(5, 8)).sum().backward()
    assert seen[0].any() and torch.equal(aps_quantize(seen[0], "e4m3"), seen[0])
    assert all(p.grad.any() for p in model.parameters())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activations": "mxfp8_e4m3"}, r"activations=mxfp8_e4m3 has its own scales.*aps=false"),
        (
            {"weights": "e4m3", "master_weights": False},
            r"precision\.aps=true .*precision\.master_weights=true",
        ),
    ],
)
def test_formats_with_scales_of_their_own_are_an_error(changes, message):
    with pytest.raises(ValueError, match=message):
        Formats(**FP32 | {"aps": True} | changes)


def test_training_with_4_bit_activations_needs_their_shift(make_run, train_here):
    four_bits = ("format=fp32", "aps=false", "epochs=2", "world_size=2", "batch_size=32")
    four_bits += ("precision.activations=e3m0", "precision.errors=e3m0")
    shifted, plain = (make_run(*four_bits, f"precision.aps={aps}") for aps in ("true", "false"))
    for run in (shifted, plain):
        assert train_here(run) == 0
    one, other = (read_json(run.done)["metrics"]["test_accuracy"] for run in (shifted, plain))
    assert one > other + 0.2
