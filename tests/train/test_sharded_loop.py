"""sync=sharded: the bits of sync=all_reduce in fp32, the same for any split and after a resume; bytes; refusals."""

import pytest
import torch
import yaml

from cpdrun.record import read_json
from cpdrun.train.rank import EXIT_PREEMPTED

SHARDED = ("sync=sharded", "world_size=4", "checkpoint.every_epochs=1")


def sha(run):
    return read_json(run.done)["weights_sha256"]


def equal(one, other):
    """Two checkpoints' contents, bit for bit."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        return all(equal(one[key], other[key]) for key in one if key != "train_seconds")
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


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


HARD = (
    "format=e3m0",
    "aps=true",
    "optim=adamw",
    "clip_norm=0.5",
    "sync.gather=e2m1",
    "sync.differences=true",
)
HARD += ("sync.error_feedback=true", "full_precision.layers=['*bias']")


def test_any_split_and_a_resume_have_the_same_bits_and_checkpoints(make_run, train_here, in_ranks):
    one, two, four, stopped = (make_run(*SHARDED, *HARD, f"nproc={n}") for n in (1, 2, 4, 1))
    train_here(one)
    for run, nproc in ((two, 2), (four, 4)):
        assert (ended := in_ranks(run, nproc)).returncode == 0, ended.stderr
    stopped.preempt.touch()
    assert in_ranks(stopped, 2).returncode == EXIT_PREEMPTED
    stopped.preempt.unlink()
    train_here(stopped)
    assert len({sha(run) for run in (one, two, four, stopped)}) == 1
    first, *others = (torch.load(run.checkpoint, weights_only=True) for run in (one, two, four, stopped))
    for run in others:
        for part in ("model", "masters", "optimizer", "precision", "sync"):
            assert equal(first[part], run[part]), part
    assert any(
        (m.view_as(w) != w).any() for m, w in zip(first["masters"], first["model"].values(), strict=False)
    )
    wires = [read_json(run.done)["wire"] for run in (one, two, four)]
    assert len({wire["bytes_per_step_real_worker"] for wire in wires}) == 1
    assert wires[0]["bytes_per_step_sent"] == 0
    assert abs(wires[2]["bytes_per_step_sent"] / wires[2]["bytes_per_step_real_worker"] - 1) < 0.02


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("optim=lars", "optim: LARS needs whole layers"),
        ("optim=lamb", "LAMB needs whole layers"),
        ("precision.weights=bf16", "sync.gather sets the format in which they are used"),
        ("sync.gather=mxfp8_e4m3", "the format of gathered weights must not have its own scales"),
        ("sync.gather=e44", "e44"),
    ],
)
def test_what_cannot_be_sharded_gets_one_line(make_run, typed, said):
    from cpdrun.train.build import build
    from cpdrun.train.instantiate import BuildError

    with pytest.raises(BuildError, match=said):
        build(yaml.safe_load(make_run(*SHARDED, typed).config.read_text()), torch.device("cpu"))
