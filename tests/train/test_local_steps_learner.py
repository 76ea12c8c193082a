"""Workers that train on their own between outer steps, in the loop: the record, resuming, splits over ranks."""

import math
import re
from pathlib import Path

import pytest
import torch

from cpdrun.record import read_json, read_json_lines
from cpdrun.sweep import plan
from cpdrun.train.preflight.check import check
from cpdrun.train.rank import EXIT_PREEMPTED

PLAIN = ("format=fp32", "aps=false", "world_size=4", "batch_size=16", "epochs=1")
STEPS = 1437 // 64
LOCAL = (*PLAIN, "sync=local", "sync.inner_steps=5")
EVERYTHING = (
    *LOCAL,
    "data=custom",
    "data._target_=own_digits.AugmentedDigits",
    "+data.test_fraction=0.2",
    "model.dropout=0.2",
    "optim=adamw",
    "partition=skewed",
)


@pytest.fixture
def trained(make_run, train_here):
    def train(*typed):
        run = make_run(*typed)
        assert train_here(run) == 0
        return run, read_json(run.done)

    return train


def test_averaging_after_every_step_of_sgd_is_data_parallelism(trained):
    """Equal but for rounding, until rounding has grown; BatchNorm's statistics are worker 0's in both."""
    plain = (*PLAIN, "optim.momentum=0")
    averaging = ("sync=local", "sync.inner_steps=1", "sync.outer_lr=1", "sync.outer_momentum=0")
    (_, shared), (_, local) = trained(*plain), trained(*plain, *averaging)
    for name in ("train_loss", "test_loss"):
        assert local["metrics"][name] == pytest.approx(shared["metrics"][name], rel=1e-5)
    assert local["wire"] == shared["wire"]


def test_what_is_evaluated_and_sent(trained):
    """Where no outer step comes before the end of the first of two epochs, its metrics are those of the initial
    weights; the last step of all is followed by one."""
    settings = ("epochs=2", "norm=evonorm_s0", "model=normed_convnet", "model.width=4")
    run, done = trained(*LOCAL, "sync.inner_steps=40", *settings)
    first, last = list(read_json_lines(run.metrics))
    _, initial = trained(*PLAIN, *settings, "epochs=0")
    assert first["test_loss"] == pytest.approx(initial["metrics"]["test_loss"])
    assert last["test_loss"] < 0.9 * first["test_loss"]
    _, every = trained(*PLAIN, *settings)
    outer_steps = math.ceil(2 * STEPS / 40)
    of_one = every["wire"]["bytes_per_step_real_worker"]
    assert done["wire"]["bytes_per_step_real_worker"] == round(of_one * outer_steps / (2 * STEPS))
    assert done["memory"]["outer_bytes"] == 2 * 4 * sum(p.numel() for p in _weights(run))
    assert not first["layers"] and {row["format"] for row in last["layers"].values()} == {"fp32"}


def _weights(run):
    state = torch.load(run.checkpoint, weights_only=True)
    assert all(map(torch.equal, state["sync"]["agreed"], state["workers"][3]["weights"]))
    return state["sync"]["agreed"]


def test_every_split_of_four_workers_ends_with_the_same_bits(make_run, in_ranks, train_here, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    done, rows = [], []
    for nproc in (1, 2, 4):
        run = make_run(*EVERYTHING, "format=e4m3", "aps=true", f"nproc={nproc}")
        if nproc == 1:
            assert train_here(run) == 0
        else:
            result = in_ranks(run, nproc)
            assert result.returncode == 0, result.stderr
        done.append(read_json(run.done))
        rows.append([{**row, "train_seconds": 0} for row in read_json_lines(run.metrics)])
    assert len({d["weights_sha256"] for d in done}) == 1
    assert rows[0] == rows[1] == rows[2]
    assert [d["wire"]["bytes_per_step_sent"] > 0 for d in done] == [False, True, True]


def test_stopped_within_a_phase_on_two_ranks_it_goes_on_on_one(
    make_run, in_ranks, trained, train_here, monkeypatch
):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    typed = (*EVERYTHING, "compressor=top_k", "statistics.every_steps=3")
    run, straight = trained(*typed)
    stopped = make_run(*typed)
    stopped.preempt.touch()
    assert in_ranks(stopped, 2).returncode == EXIT_PREEMPTED
    assert torch.load(stopped.checkpoint, weights_only=True)["progress"]["step"] == 2
    assert train_here(stopped) == EXIT_PREEMPTED, "and once more, behind the first outer step's half"
    stopped.preempt.unlink()
    assert train_here(stopped) == 0
    other = read_json(stopped.done)
    assert straight["weights_sha256"] == other["weights_sha256"]
    assert straight["metrics"] == other["metrics"] and straight["wire"] == other["wire"]
    one, two = (list(read_json_lines(r.metrics)) for r in (run, stopped))
    assert [row["layers"] for row in one] == [row["layers"] for row in two]


def test_a_finished_run_s_agreed_weights_are_where_init_from_looks(trained):
    run, done = trained(*LOCAL)
    _, again = trained(*PLAIN, "epochs=0", f"init_from={run.checkpoint}")
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
        (("recipe=fp8_delayed",), "workers that train on their own have no common steps"),
    ],
)
def test_bad_settings_are_named_before_the_run(typed, message):
    (planned,) = plan(["exp=digits_bits", *LOCAL, "seed=0", *typed]).runs
    (problem,) = check([planned.config])["problems"]
    assert re.search(message, problem), problem
