"""Weight updates without a float32 copy, and everything that is stored between steps in one format."""

import custom_fp
import pytest
import torch
from torch import nn

from cpdrun.train.precision.optimizer_steps import WeightUpdate
from cpdrun.train.precision.run_formats import Formats

PURE = {
    **dict.fromkeys(("weights", "activations", "errors", "accumulator", "optimizer_state", "update"), "fp16"),
    "kahan": False,
    "master_weights": False,
    "loss_scale": 1024.0,
    "update_order": "unscale_first",
    "update_rounding": "nearest_even",
    "kahan_weights": False,
    "fp32_norms": False,
    "aps": False,
}


def is_fp16(x):
    return torch.equal(custom_fp.quantize(x, "fp16"), x)


def test_a_stochastic_update_is_unbiased_and_nearest_loses_it():
    n, change = 200_000, 2.0**-13  # an eighth of fp16's unit at 1
    w = torch.ones(n)
    WeightUpdate(["fp16"], "stochastic", False, seed=0).apply_([w], [torch.full((n,), change).double()])
    up = (w > 1).double().mean().item()
    assert set(w.tolist()) == {1.0, 1.0 + 2**-10}
    assert abs(up - 1 / 8) < 5 * (1 / 8 * 7 / 8 / n) ** 0.5  # five standard deviations
    w = torch.ones(n)
    WeightUpdate(["fp16"], "nearest_even", False, seed=0).apply_([w], [torch.full((n,), change).double()])
    assert torch.equal(w, torch.ones(n))


def test_stochastic_draws_depend_on_seed_update_and_parameter():
    def draws(seed, update, parameter):
        rule = WeightUpdate(["fp16"] * (parameter + 1), "stochastic", False, seed=seed)
        rule.updates = update
        weights = [torch.ones(64) for _ in range(parameter + 1)]
        rule.apply_(weights, [torch.full((64,), 2.0**-11).double()] * (parameter + 1))
        return tuple(weights[parameter].tolist())

    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    assert len({draws(*key) for key in keys}) == 4
    assert draws(3, 5, 1) == draws(3, 5, 1)


def test_kahan_weights_recover_updates_below_half_a_unit():
    """A thousand updates of 2^-15 each, a 32nd of the unit at 1: in the end within a unit of the exact sum."""
    torch.manual_seed(0)
    rule = WeightUpdate(["fp16"], "nearest_even", True, seed=0)
    w, exact = torch.ones(100), torch.ones(100).double()
    for _ in range(1000):
        change = 2.0**-15 * (1 + torch.randint(0, 2, (100,))).double()
        rule.apply_([w], [change])
        exact += change
        assert is_fp16(rule.compensations[0])
    assert is_fp16(w)
    assert (w.double() - exact).abs().max() <= 2.0**-10
    assert (w.double() - rule.compensations[0].double() - exact).abs().max() <= 2.0**-13


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize("rule", [{}, {"kahan_weights": True}, {"update_rounding": "stochastic"}])
def test_all_state_between_steps_is_in_the_format(rule):
    model, precision = small_model(), Formats(**PURE | rule)
    model = precision.prepare(model)
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-3)
    for _ in range(4):
        optimizer.zero_grad()
        (model(torch.randn(16, 6)).square().mean() * 1024).backward()
        for p in parameters:
            p.grad /= 1024
        precision.loss_scale.accept(0)
        precision.step(optimizer, parameters)
    kept = [*parameters, *(b for b in model.buffers() if b.is_floating_point())]
    kept += [state["momentum_buffer"] for state in optimizer.state.values()]
    kept += precision.weights.update.compensations
    assert len(kept) == (20 if "kahan_weights" in rule else 14)
    assert all(is_fp16(x.detach()) for x in kept)
    numel = sum(p.numel() for p in parameters)
    copies = 2 if "kahan_weights" in rule else 1
    expected = {"model_bytes": 2 * (numel + 16), "optimizer_bytes": 2 * copies * numel}
    assert precision.memory(optimizer, parameters) == expected


def test_fp32_norms_keeps_normalization_layers_in_fp32():
    model, precision = small_model(), Formats(**PURE | {"fp32_norms": True, "accumulator": "fp32"})
    model = precision.prepare(model)
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(16, 6)).square().mean().backward()
        precision.step(optimizer, parameters)
    norm = model[1]
    for x in (norm.weight, norm.running_mean, optimizer.state[norm.weight]["momentum_buffer"]):
        assert not is_fp16(x.detach())
    assert all(is_fp16(p.detach()) for p in (*model[0].parameters(), *model[3].parameters()))
    memory = precision.memory(optimizer, parameters)
    assert memory["model_bytes"] == 2 * (6 * 8 + 8 + 8 * 3 + 3) + 4 * (16 + 16)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"kahan_weights": True, "master_weights": True},
            r"without a float32 copy. Set precision\.weights and",
        ),
        ({"update_order": "last"}, r"precision\.update_order=last: choose one of unscale_first, rate_first"),
        ({}, r"precision\.update=fp16 rounds every operation of SGD \(optim=sgd\)"),
    ],
)
def test_meaningless_combinations_are_errors(changes, message):
    with pytest.raises(ValueError, match=message):
        Formats(**PURE | changes).check(torch.optim.AdamW([nn.Parameter(torch.zeros(2))]))
