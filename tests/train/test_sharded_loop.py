"""sync=sharded: the bits of sync=all_reduce in fp32, the same for any split and after a resume; bytes; refusals."""

import pytest
import torch
import yaml

from cpdrun.record import read_json

SHARDED = ("sync=sharded", "world_size=4", "checkpoint.every_epochs=1")


def sha(run):
    return read_json(run.done)["weights_sha256"]


@pytest.mark.parametrize(
    "typed", [("optim=sgd", "format=fp32", "aps=false"), ("optim=adamw", "format=e4m3")], ids=["fp32", "e4m3"]
)
def test_weights_in_fp32_are_those_of_all_reduce(make_run, train_here, typed):
    """Whose optimizer has every parameter whole."""
    whole, sharded = make_run("world_size=4", *typed), make_run(*SHARDED, *typed)
    train_here(whole)
    train_here(sharded)
    assert sha(whole) == sha(sharded)
    of_whole, of_sharded = (read_json(run.done) for run in (whole, sharded))
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
        ("precision.weights=bf16", "sync.gather sets the format in which they are used"),
        ("sync.gather=mxfp8_e4m3", "weights are gathered in a format without scales"),
        ("sync.gather=e44", "e44"),
    ],
)
def test_what_cannot_be_sharded_gets_one_line(make_run, typed, said):
    from cpdrun.train.build import build
    from cpdrun.train.instantiate import BuildError

    with pytest.raises(BuildError, match=said):
        build(yaml.safe_load(make_run(*SHARDED, typed).config.read_text()), torch.device("cpu"))
