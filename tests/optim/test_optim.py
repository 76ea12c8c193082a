"""Optimizers against their papers' formulas in float64; schedules against values worked out by hand."""

import math

import pytest
import torch

from cpdrun.optim.lamb import LAMB
from cpdrun.optim.lars import LARS
from cpdrun.optim.schedules import Cosine, PiecewiseLinear, Poly, Step

# Six float32 steps of numbers near 1 against float64: a few dozen roundings of 6e-8.
CLOSE = {"rtol": 5e-6, "atol": 5e-7}


LARS_SETTINGS = {
    "lr": 0.5, "momentum": 0.9, "weight_decay": 0.01, "coefficient": 0.02, "adapt_1d": True, "trust_of_zeros": 1.0
}  # fmt: skip
LAMB_SETTINGS = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-6, "weight_decay": 0.02}


def trajectory(optimizer_of, shape):
    torch.manual_seed(0)
    w = torch.nn.Parameter(torch.randn(shape))
    start, optimizer, gradients = w.detach().double().clone(), optimizer_of([w]), []
    for _ in range(6):
        w.grad = torch.randn(shape)
        gradients.append(w.grad.double())
        optimizer.step()
    return start, gradients, w.detach().double()


@pytest.mark.parametrize(("shape", "adapt_1d"), [((4, 3), False), ((5,), False), ((5,), True)])
def test_lars_follows_algorithm_1(shape, adapt_1d):
    settings = LARS_SETTINGS | {"adapt_1d": adapt_1d}
    w, gradients, end = trajectory(lambda p: LARS(p, **settings), shape)
    v = torch.zeros_like(w)
    for g in gradients:
        decay, trust = 0.01, 0.02 * w.norm() / (g.norm() + 0.01 * w.norm())
        if len(shape) == 1 and not adapt_1d:
            decay, trust = 0.0, 1.0
        v = 0.9 * v + 0.5 * trust * (g + decay * w)
        w = w - v
    torch.testing.assert_close(end, w, **CLOSE)


def test_a_zero_bias_changes_only_if_its_trust_is_not_zero():
    for trust_of_zeros in (0.0, 1.0):
        w = torch.nn.Parameter(torch.zeros(5))
        optimizer = LARS([w], **LARS_SETTINGS | {"trust_of_zeros": trust_of_zeros})
        for _ in range(2):
            w.grad = torch.ones(5)
            optimizer.step()
        assert bool((w == 0).all()) == (trust_of_zeros == 0)


def test_lamb_follows_algorithm_2():
    w, gradients, end = trajectory(lambda p: LAMB(p, **LAMB_SETTINGS), (4, 3))
    m = v = torch.zeros_like(w)
    for t, g in enumerate(gradients, 1):
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
        update = (m / (1 - 0.9**t)) / ((v / (1 - 0.99**t)).sqrt() + 1e-6) + 0.02 * w
        w = w - 0.1 * w.norm() / update.norm() * update
    torch.testing.assert_close(end, w, **CLOSE)


@pytest.mark.parametrize(("kind", "settings"), [(LARS, LARS_SETTINGS), (LAMB, LAMB_SETTINGS)])
def test_optimizers_keep_zeros_and_resume_bit_for_bit(kind, settings):
    w = torch.nn.Parameter(torch.zeros(3, 3))
    w.grad = torch.zeros(3, 3)
    kind([w], **settings | {"weight_decay": 0.0}).step()
    assert torch.equal(w, torch.zeros(3, 3))
    weights = []
    for stops in (False, True):
        torch.manual_seed(1)
        w = torch.nn.Parameter(torch.randn(3, 3))
        optimizer = kind([w], **settings)
        for _ in range(4):
            w.grad = torch.randn(3, 3)
            optimizer.step()
            if stops:
                state = optimizer.state_dict()
                optimizer = kind([w], **settings)
                optimizer.load_state_dict(state)
        weights.append(w.detach())
    assert torch.equal(*weights)


NONE = {"warmup_epochs": 0, "warmup_start": 0.1}


@pytest.mark.parametrize(
    ("schedule", "epochs", "factors"),
    [
        (Poly(**NONE, power=0.9, final=0.0, decay_after_warmup=False), 10, {0: 1, 5: math.pow(0.5, 0.9), 10: 0}),
        (
            Poly(warmup_epochs=2, warmup_start=0, power=2, final=0.1, decay_after_warmup=True),
            10,
            {0: 0, 1: 0.5, 2: 1, 6: 0.1 + 0.9 / 4, 10: 0.1},
        ),
        (
            PiecewiseLinear(points=[[0, 0.0], [5, 1.0], [24, 0.0]], **NONE),
            24,
            {0: 0, 2.5: 0.5, 5: 1, 14.5: 0.5, 24: 0, 30: 0},
        ),
        (
            PiecewiseLinear(points=[[0, 0.0], [4, 1.0], [8, 0.0]], warmup_epochs=4, warmup_start=0),
            8,
            {1: 1 / 16, 2: 1 / 4, 4: 1, 6: 0.5},
        ),
        (Cosine(warmup_epochs=2, warmup_start=0.0, final=0.1), 10, {0: 0, 1: 0.5, 2: 1, 6: 0.55, 10: 0.1}),
        (Cosine(**NONE, final=0.0), 5, {0: 1}),
        (
            Step(warmup_epochs=1, warmup_start=0.5, milestones=[4, 8], gamma=0.1),
            10,
            {0: 0.5, 1: 1, 3.99: 1, 4: 0.1, 8: 0.01},
        ),
    ],
)  # fmt: skip
def test_schedules(schedule, epochs, factors):
    assert [schedule(epoch, epochs) for epoch in factors] == pytest.approx([*factors.values()])


def test_points_of_a_schedule_must_be_in_order():
    with pytest.raises(ValueError, match=r"schedule\.points"):
        PiecewiseLinear(points=[[5, 1.0], [0, 0.0]], **NONE)
