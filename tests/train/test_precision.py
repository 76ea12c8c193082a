"""Precision by the short keys: weights, activations, errors, optimizer state, loss scales and their memory."""

import custom_fp
import pytest
import torch
from torch import nn

from cpdrun.models.convnet import ConvNet
from cpdrun.record import read_json
from cpdrun.train.precision.base import loss_scale_of
from cpdrun.train.precision.optimizer_steps import Float32Weights
from cpdrun.train.precision.run_formats import Formats

FP32 = {
    "weights": "fp32",
    "activations": "fp32",
    "errors": "fp32",
    "accumulator": "fp32",
    "kahan": False,
    "optimizer_state": "fp32",
    "master_weights": True,
    "loss_scale": 1.0,
    "update": "fp32",
    "update_order": "unscale_first",
    "update_rounding": "nearest_even",
    "kahan_weights": False,
    "fp32_norms": False,
    "aps": False,
}


def representable(x: torch.Tensor, fmt: str) -> bool:
    return torch.equal(custom_fp.quantize(x, fmt), x)


def convnet():
    torch.manual_seed(0)
    return ConvNet(in_channels=1, num_classes=10, width=4, dropout=0.0)


def test_fp32_changes_no_module_and_copies_nothing():
    model = convnet()
    before = {name: (module, dict(module._forward_hooks)) for name, module in model.named_modules()}
    precision = Formats(**FP32)
    assert precision.prepare(model) is model
    assert {name: (module, dict(module._forward_hooks)) for name, module in model.named_modules()} == before
    assert type(precision.weights) is Float32Weights


def test_weights_are_rounded_and_the_master_copy_keeps_small_updates():
    w = nn.Parameter(torch.ones(4))
    model = nn.Module()
    model.w = w
    for master_weights, moved in ((True, True), (False, False)):
        with torch.no_grad():
            w.fill_(1.0)
        precision = Formats(**FP32 | {"weights": "e5m2", "master_weights": master_weights})
        precision.prepare(model)
        optimizer = torch.optim.SGD([w], lr=1.0)
        for _ in range(6):
            w.grad = torch.full((4,), 0.03)  # a quarter of 0.125, the spacing of e5m2 below 1
            precision.step(optimizer, [w])
            assert representable(w.detach(), "e5m2")
        assert bool((w < 1).all()) == moved


@pytest.mark.parametrize(
    "formats", [("e4m3", "e3m2"), ("mxfp8_e4m3", "mxfp4"), ("dynamic_tree", "linear_b4")]
)
def test_activations_and_errors_are_rounded_at_every_layer(formats):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    seen, errors = [], []

    def watch_before_rounding(_module, _inputs, output):
        output.register_hook(errors.append)

    for module in model:
        module.register_forward_hook(watch_before_rounding)
    Formats(**FP32 | {"activations": formats[0], "errors": formats[1]}).prepare(model)
    for module in model:
        module.register_forward_hook(lambda _m, _i, output: seen.append(output.detach()))
    model(torch.randn(5, 8)).square().sum().backward()
    assert len(seen) == 3 and all(representable(x, formats[0]) for x in seen)
    assert len(errors) == 3 and all(representable(e, formats[1]) for e in errors)


def test_formats_with_scales_are_errors_where_they_are_not_supported():
    for key in ("accumulator", "update"):
        with pytest.raises(ValueError, match=rf"precision\.{key}=mxfp4: a format with scales"):
            Formats(**FP32 | {key: "mxfp4"})
    with pytest.raises(ValueError, match=r"precision\.weights=mxfp4 has scales.*master_weights=true"):
        Formats(**FP32 | {"weights": "mxfp4", "master_weights": False})


def test_memory_counts_the_scales_of_a_format():
    model = nn.Linear(32, 2)
    precision = Formats(**FP32 | {"weights": "mxfp4"})
    precision.prepare(model)
    memory = precision.memory(torch.optim.SGD(model.parameters(), lr=1.0), list(model.parameters()))
    assert memory == {"model_bytes": (2 + 64 // 2) + (1 + 4), "optimizer_bytes": 4 * 66}


@pytest.mark.parametrize("norm", ["batch_norm", "group_norm", "range_bn", "range_evonorm"])
def test_norms_of_every_kind_stay_in_fp32(norm, make_run, train_here):
    run = make_run(
        "model=normed_convnet", f"norm={norm}", "model.width=4", "precision=mxfp8", "epochs=1", "max_steps=1"
    )
    train_here(run)
    model_bytes = read_json(run.done)["memory"]["model_bytes"]
    weights = torch.load(run.checkpoint, weights_only=False)["model"]
    in_fp32 = {name for name, w in weights.items() if name.startswith("features") and w.dim() < 4}
    expected = sum(
        4 * w.numel() if name in in_fp32 else custom_fp.packed_size(w.numel(), "mxfp8_e4m3")
        for name, w in weights.items()
        if w.is_floating_point()
    )
    assert in_fp32 and model_bytes == expected


@pytest.mark.parametrize("fmt", ["e5m2", "mxfp8_e4m3", "dynamic_map"])
def test_optimizer_state_is_rounded(fmt):
    model = nn.Linear(4, 4)
    precision = Formats(**FP32 | {"optimizer_state": fmt})
    precision.prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        model(torch.randn(2, 4)).sum().backward()
        precision.step(optimizer, list(model.parameters()))
    momenta = [state["momentum_buffer"] for state in optimizer.state.values()]
    assert len(momenta) == 2 and all(representable(m, fmt) for m in momenta)


def test_a_dynamic_loss_scale_skips_and_halves_then_doubles():
    scale = loss_scale_of("dynamic")
    assert scale.value == 65536 and not scale.accept(nonfinite=3) and scale.value == 32768
    assert all(scale.accept(0) for _ in range(2000)) and scale.value == 65536
    fixed = loss_scale_of(128.0)
    assert fixed.accept(nonfinite=3) and fixed.value == 128
    with pytest.raises(ValueError, match=r"precision\.loss_scale"):
        loss_scale_of("none")


def test_a_fixed_power_of_two_scale_changes_no_bit_in_fp32(make_run, train_here):
    typed = ("format=fp32", "aps=false", "epochs=1", "max_steps=4")
    runs = [make_run(*typed, f"precision.loss_scale={scale}") for scale in (1, 1024)]
    assert [train_here(run) for run in runs] == [0, 0]
    assert len({read_json(run.done)["weights_sha256"] for run in runs}) == 1


def test_training_with_an_accumulator_of_few_bits_learns(make_run, train_here):
    run = make_run("precision.accumulator=e5m10", "epochs=1", "world_size=1")
    assert train_here(run) == 0
    assert read_json(run.done)["metrics"]["test_accuracy"] > 0.15
