"""sync=sharded: the bits of sync=all_reduce if weights are gathered in fp32, its bytes and memory, and its errors."""

import pytest
import torch

from cpdrun.record import read_json
from cpdrun.sweep import plan
from cpdrun.train.build import build
from cpdrun.train.instantiate import BuildError


@pytest.mark.parametrize(
    "typed", [("optim=sgd", "format=fp32", "aps=false"), ("optim=adamw", "format=e4m3")], ids=["fp32", "e4m3"]
)
def test_the_weights_are_those_of_all_reduce(make_run, train_here, typed):
    typed = ("world_size=4", "data.test_fraction=0.9", *typed)
    whole, sharded = make_run(*typed), make_run("sync=sharded", *typed)
    train_here(whole)
    train_here(sharded)
    of_whole, of_sharded = (read_json(run.done) for run in (whole, sharded))
    assert of_whole["weights_sha256"] == of_sharded["weights_sha256"]
    assert of_whole["metrics"] == of_sharded["metrics"]
    assert of_sharded["memory"]["optimizer_bytes"] * 3.9 < of_whole["memory"]["optimizer_bytes"]
    values = sum(m.numel() for m in torch.load(sharded.checkpoint, weights_only=True)["masters"])
    bits = (8 if "format=e4m3" in typed else 32) + 32
    theory = 3 / 4 * values * bits / 8  # and what it takes to agree on shifts, of ten small layers
    assert 1 < of_sharded["wire"]["bytes_per_step_real_worker"] / theory < 1.1


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("optim=lars", "optim: LARS needs whole layers"),
        ("optim=lamb", "LAMB needs whole layers"),
        ("precision.weights=bf16", "To round the weights that a step uses, set sync.gather"),
        ("sync.gather=mxfp8_e4m3", "the format of gathered weights must not have its own scales"),
        ("sync.gather=e44", "e44"),
    ],
)
def test_settings_that_cannot_be_sharded_are_errors(typed, said):
    (planned,) = plan(["exp=digits_bits", "seed=0", "format=e4m3", "aps=true", "sync=sharded", typed]).runs
    with pytest.raises(BuildError, match=said):
        build(planned.config, torch.device("cpu"))
