"""Workers that train on their own between outer steps, in the training loop: what is evaluated, sent and stored."""

import math
import re

import pytest
import torch

from cpdrun.record import read_json, read_json_lines
from cpdrun.sweep import plan
from cpdrun.train.preflight.check import check

PLAIN = ("format=fp32", "aps=false", "world_size=4", "batch_size=16", "epochs=1")
STEPS = 1437 // 64
LOCAL = (*PLAIN, "sync=local", "sync.inner_steps=5")


@pytest.fixture
def trained(make_run, train_here):
    def train(*typed):
        run = make_run(*typed)
        assert train_here(run) == 0
        return run, read_json(run.done)

    return train


def test_averaging_after_every_step_of_sgd_is_data_parallelism(trained):
    """They are equal except for rounding. BatchNorm's statistics are worker 0's in both."""
    plain = (*PLAIN, "optim.momentum=0", "data.test_fraction=0.9")
    averaging = ("sync=local", "sync.inner_steps=1", "sync.outer_lr=1", "sync.outer_momentum=0")
    (_, shared), (_, local) = trained(*plain), trained(*plain, *averaging)
    for name in ("train_loss", "test_loss"):
        assert local["metrics"][name] == pytest.approx(shared["metrics"][name], rel=1e-5)
    assert local["wire"] == shared["wire"]


def test_the_weights_of_the_last_outer_step_are_evaluated_and_its_bytes_counted(trained):
    """If no outer step comes before the end of the first of two epochs, its metrics are those of the initial weights.
    The last step of the run is followed by an outer step."""
    settings = ("epochs=2", "norm=evonorm_s0", "model=normed_convnet", "model.width=4")
    run, done = trained(*LOCAL, "sync.inner_steps=40", *settings)
    first, last = list(read_json_lines(run.metrics))
    _, initial = trained(*PLAIN, *settings, "epochs=0")
    assert first["test_loss"] == pytest.approx(initial["metrics"]["test_loss"])
    assert last["test_loss"] < 0.9 * first["test_loss"]
    _, every = trained(*PLAIN, *settings, "max_steps=1")
    outer_steps = math.ceil(2 * STEPS / 40)
    of_one = every["wire"]["bytes_per_step_real_worker"]
    assert done["wire"]["bytes_per_step_real_worker"] == round(of_one * outer_steps / (2 * STEPS))
    state = torch.load(run.checkpoint, weights_only=True)
    agreed = state["sync"]["agreed"]
    assert all(map(torch.equal, agreed, state["workers"][3]["weights"]))
    assert done["memory"]["outer_bytes"] == 2 * 4 * sum(p.numel() for p in agreed)
    assert not first["layers"] and {row["format"] for row in last["layers"].values()} == {"fp32"}


def test_init_from_reads_the_agreed_weights_of_a_finished_run(trained):
    run, done = trained(*LOCAL, "data.test_fraction=0.9")
    _, again = trained(*PLAIN, "data.test_fraction=0.9", "epochs=0", f"init_from={run.checkpoint}")
    assert again["metrics"]["test_loss"] == done["metrics"]["test_loss"]


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (("sync.inner_steps=0",), "sync: inner_steps=0: must be a whole number, at least 1"),
        (("sync.outer_momentum=1",), "sync: outer_momentum=1: must be at least 0 and below 1"),
        (("sync.order=star",), "sync: order='star'"),
        (
            ("compressor=qsgd", "format=e4m3"),
            "sync: format=e4m3: QSGD does not send values in a number format",
        ),
        (("precision.weights=bf16",), "workers that train on their own keep float32 weights"),
        (("recipe=fp8_delayed",), "workers that train on their own take separate optimizer steps"),
    ],
)
def test_invalid_settings_are_named_before_the_run(typed, message):
    (planned,) = plan(["exp=digits_bits", *LOCAL, "seed=0", *typed]).runs
    (problem,) = check([planned.config])["problems"]
    assert re.search(message, problem), problem
