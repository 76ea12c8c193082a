"""SGD rounded at every operation: without rounding torch's own, in fp16 numpy's half-precision arithmetic."""

import numpy as np
import pytest
import torch

from cpdrun.optim.rounded_sgd import ORDERS, rounding_to, sgd_update

SETTINGS = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": False}


def steps_of(order, fmt, settings, scale, gradients, w):
    state, rounded = {}, rounding_to(fmt)
    for g in gradients:
        u = sgd_update(w, g, state, settings, scale=scale, order=order, rounded=rounded)
        w = rounded(w.double() - u.double())
    return w, state.get("momentum_buffer")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("changed", [{}, {"nesterov": True}, {"momentum": 0.0, "weight_decay": 0.0}])
def test_updates_without_rounding_are_those_of_torch(order, changed):
    torch.manual_seed(0)
    settings, scale = SETTINGS | changed, 1024.0
    w, gradients = torch.randn(50), [torch.randn(50) for _ in range(6)]
    ours, _ = steps_of(order, None, settings, scale, gradients, w)
    theirs = torch.nn.Parameter(w.clone())
    optimizer = torch.optim.SGD([theirs], **settings)
    for g in gradients:
        theirs.grad = g.clone()
        optimizer.step()
    torch.testing.assert_close(ours, theirs.detach(), rtol=2e-6, atol=1e-6)  # a dozen roundings of 6e-8


def numpys_half_precision(order, settings, scale, gradients, w):
    """The module's three formulas, spelt in float16: numpy rounds every operation once, nearest even."""
    half = np.float16
    lr, m, decay = half(settings["lr"]), half(settings["momentum"]), settings["weight_decay"]
    v, w = None, w.astype(half)
    for g in gradients:
        if order == "unscale_last":
            d = half(g * np.float32(scale)) + half(decay * scale) * w
        else:
            d = half(g) + half(decay) * w
        entering = lr * d if order == "rate_first" else d
        v = entering if v is None else m * v + entering
        u = entering + m * v if settings["nesterov"] else v
        u = u if order == "rate_first" else lr * u
        w = w - (u / half(scale) if order == "unscale_last" else u)
    return w, v


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_updates_in_fp16_are_half_precision_arithmetic_bit_for_bit(order, nesterov):
    torch.manual_seed(1)
    settings, scale = SETTINGS | {"nesterov": nesterov}, 256.0
    w = torch.randn(400).half().float()
    magnitudes = torch.exp2(torch.randint(-26, 3, (400,)).float())  # down to where fp16 has nothing
    gradients = [torch.randn(400) * magnitudes for _ in range(5)]
    ours, momentum = steps_of(order, "fp16", settings, scale, gradients, w)
    theirs, v = numpys_half_precision(order, settings, scale, [g.numpy() for g in gradients], w.numpy())
    assert np.array_equal(ours.numpy(), theirs.astype(np.float32))
    assert np.array_equal(momentum.numpy(), v.astype(np.float32))


def test_small_gradients_survive_if_the_scale_is_divided_out_last():
    g = torch.full((8,), 2.0**-26)  # nothing in fp16; 2^-16 in units of a loss scaled by 2^10
    settings = SETTINGS | {"weight_decay": 0.0, "lr": 1.0, "momentum": 0.99}
    moved = {}
    for order in ORDERS:
        w, _ = steps_of(order, "fp16", settings, 1024.0, [g] * 50, torch.zeros(8))
        moved[order] = bool((w != 0).all())
    assert moved == {"unscale_first": False, "rate_first": False, "unscale_last": True}


def test_momentum_follows_a_loss_scale_that_changes():
    torch.manual_seed(2)
    w, gradients = torch.randn(20), [torch.randn(20) for _ in range(4)]
    ends = []
    for scales in ([1024.0] * 4, [1024.0, 512.0, 512.0, 2048.0]):
        state, at, rounded = {}, w, rounding_to(None)
        for g, scale in zip(gradients, scales, strict=True):
            u = sgd_update(at, g, state, SETTINGS, scale=scale, order="unscale_last", rounded=rounded)
            at = rounded(at.double() - u.double())
        ends.append(at)
    torch.testing.assert_close(
        *ends, rtol=2e-6, atol=1e-7
    )  # only float32 roundings differ; a forgotten scale would be a factor of 2
