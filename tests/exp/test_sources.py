"""Experiments that name a source do what its code does: rates, decays and groups against the source's formulas, written
down here from github.com/drcut/CPD (commits ddd9a67 and 9a2c175) and mmsegmentation v0.5."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hydra.utils import instantiate

from cpdrun.sweep import plan
from cpdrun.train.build import build_model, build_optimizer


def first_run(name, *typed):
    return plan([f"exp={name}", *typed]).runs[0].config


def schedule_of(config):
    return instantiate(config["schedule"], _convert_="all")


def test_davidnet_has_the_learning_rates_of_its_authors():
    config = first_run("davidnet_bits")
    workers, images, steps = 8, 512, 12  # 50,000 // 8 // 512
    assert (config["world_size"], config["batch_size"], config["epochs"]) == (workers, images, 24)
    assert 50_000 // (workers * images) == steps
    warm_up = math.ceil(50_000 * 5 / (workers * images))
    ours = schedule_of(config)
    for step in range(24 * steps):
        theirs = np.interp(step / steps, [0, 5, 24], [0, 0.4, 0]) / images
        theirs *= step / warm_up if step <= warm_up else 1.0
        # Their gradient is the sum over all images, ours is the mean.
        rate = config["optim"]["lr"] * ours(step / steps, 24)
        assert rate == pytest.approx(theirs * workers * images, rel=1e-7)


def test_davidnet_takes_the_steps_of_its_authors_on_the_mean_gradient():
    settings = dict(first_run("davidnet_bits")["optim"])
    settings.pop("_target_")
    ours, theirs = (torch.nn.Parameter(torch.ones(5, dtype=torch.float64)) for _ in range(2))
    mine = torch.optim.SGD([ours], **settings)
    other = torch.optim.SGD([theirs], lr=0.4 / 512, momentum=0.9, weight_decay=5e-4 * 512, nesterov=True)
    draws = torch.Generator().manual_seed(0)
    for _ in range(5):
        mean = torch.randn(5, dtype=torch.float64, generator=draws) / 100
        ours.grad, theirs.grad = mean, mean * 4096
        mine.step()
        other.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)


def test_resnet50_decays_no_norms_and_initializes_them_to_1():
    config = first_run("resnet50_bits")
    model = build_model(config, SimpleNamespace(num_classes=1000))
    optimizer = build_optimizer(config, model)(list(model.parameters()))
    norms = {id(p) for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d) for p in m.parameters()}
    for group in optimizer.param_groups:
        decayed = {id(p) for p in group["params"]} - norms
        assert group["weight_decay"] == (1e-4 if decayed else 0.0)
        assert group["nesterov"] and group["momentum"] == 0.9 and group["lr"] == 3.2
        assert decayed in (set(), {id(p) for p in group["params"]})
    assert all((m.weight == 1).all() for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d))
    assert (config["sync"]["order"], config["sync"]["group_size"]) == ("hierarchical", 32)
    ours = schedule_of(config)
    for epoch, lr in ((0, 0.1), (2.5, 1.65), (5, 3.2), (29.9, 3.2), (30, 0.32), (60, 0.032), (80, 0.0032)):
        assert config["optim"]["lr"] * ours(epoch, 90) == pytest.approx(lr)


def test_resnet50_fp16_has_the_recipe_of_resnet50_bits_for_half_its_workers():
    config, source = first_run("resnet50_fp16"), first_run("resnet50_bits")
    assert (config["world_size"], config["emulation"]) == (128, "exact")
    assert config["optim"] == source["optim"] | {"lr": source["optim"]["lr"] / 2}
    start, lr = config["schedule"].pop("warmup_start"), source["schedule"].pop("warmup_start")
    assert start * config["optim"]["lr"] == pytest.approx(lr * source["optim"]["lr"])
    same = (
        "model",
        "data",
        "task",
        "partition",
        "schedule",
        "sync",
        "parameter_groups",
        "batch_size",
        "epochs",
    )
    assert {key: config[key] for key in same} == {key: source[key] for key in same}


def test_fcn_has_the_learning_rates_and_steps_of_its_source():
    config = first_run("fcn_bits")
    ours, steps = schedule_of(config), 2975 // (config["world_size"] * config["batch_size"])
    assert config["world_size"] * config["batch_size"] == 16
    assert config["epochs"] * steps == pytest.approx(40_000, rel=0.001)
    for part in (0.0, 0.3, 1.0):
        theirs = (0.01 - 1e-4) * (1 - part) ** 0.9 + 1e-4
        assert 0.01 * ours(part * config["epochs"], config["epochs"]) == pytest.approx(theirs)


def test_alexnet_warms_up_and_decays_as_a_square():
    config = first_run("alexnet_bits")
    ours = schedule_of(config)
    for epoch, lr in ((0, 0.01), (5, 1.28), (52.5, 0.32), (100, 0.0)):
        assert config["optim"]["lr"] * ours(epoch, 100) == pytest.approx(lr)
    assert config["optim"]["weight_decay"] == 5e-4


@pytest.mark.parametrize("name", ["resnet18_cifar10_bits", "alexnet_bits"])
def test_lars_equals_that_of_the_authors(name):
    """local = |w| / (|g| + d |w|) * .001; m = .9 m + lr local (g + d w); w -= m: for every parameter, zeros too."""
    config = next(r.config for r in plan([f"exp={name}"]).runs if "lars" in r.config["optim"]["_target_"])
    spec = config["optim"]
    lr, d = spec["lr"], spec["weight_decay"]
    starts = [torch.full((4, 3), 0.5), torch.zeros(6), torch.ones(6)]
    parameters = [torch.nn.Parameter(start.clone()) for start in starts]
    optimizer = instantiate(spec, parameters, _convert_="all")
    expected, momenta = [s.double() for s in starts], [torch.zeros_like(s).double() for s in starts]
    draws = torch.Generator().manual_seed(1)
    for _ in range(4):
        for i, p in enumerate(parameters):
            p.grad = torch.randn(p.shape, generator=draws)
            g, w = p.grad.double(), expected[i]
            local = w.norm() / (g.norm() + d * w.norm()) * 0.001
            momenta[i] = 0.9 * momenta[i] + lr * local * (g + d * w)
            expected[i] = w - momenta[i]
        optimizer.step()
    for p, w in zip(parameters, expected, strict=True):
        torch.testing.assert_close(p.detach().double(), w, rtol=2e-6, atol=1e-7)  # a dozen roundings of 6e-8
