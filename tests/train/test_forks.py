"""Short runs from a checkpoint: the state of the optimizer, the losses of the steps, and the schedule."""

import pytest
import torch

from cpdrun.config.errors import ConfigError
from cpdrun.record import read_json_lines
from cpdrun.sweep import plan
from cpdrun.train.build import BuildError, build
from cpdrun.train.preflight.check import check

CPU = torch.device("cpu")
TINY = ("model.width=4", "data.test_fraction=0.9", "format=fp32", "aps=false")
ADAMW = ("optim=adamw", "optim.lr=0.003")


@pytest.fixture
def trained(make_run, train_here):
    """A checkpoint of a run with AdamW."""
    run = make_run("epochs=1", "schedule=constant", *TINY, *ADAMW)
    assert train_here(run) == 0
    return run.checkpoint


def config_of(*typed):
    (run,) = plan(["exp=digits_bits", "seed=0", "device=cpu", *TINY, *typed]).runs
    return run.config


def test_the_optimizer_starts_with_its_state_in_the_checkpoint(trained):
    typed = (f"init_from={trained}", *ADAMW, "optim.weight_decay=0.5")
    saved = torch.load(trained, weights_only=True)["optimizer"]["state"]
    optimizer = build(config_of(*typed, "init_optimizer=true"), CPU).optimizer
    for i, parameter in enumerate(optimizer.param_groups[0]["params"]):
        state = optimizer.state[parameter]
        assert state["step"] == saved[i]["step"] > 0
        assert torch.equal(state["exp_avg"], saved[i]["exp_avg"])
        assert torch.equal(state["exp_avg_sq"], saved[i]["exp_avg_sq"])
    assert optimizer.param_groups[0]["weight_decay"] == 0.5  # settings are those of the run
    assert not build(config_of(*typed), CPU).optimizer.state


def test_two_halves_with_the_state_of_the_optimizer_are_one_run(make_run, train_here):
    """With batches that do not depend on the epoch, continuing gives the weights of the whole run, bit for bit."""
    typed = (*TINY, *ADAMW, "schedule=constant", "world_size=1", "batch_size=179")  # one batch: all samples
    whole, half = make_run("max_steps=4", *typed), make_run("max_steps=2", *typed)
    assert train_here(whole) == train_here(half) == 0
    start = (f"init_from={half.checkpoint}", "max_steps=2", *typed)
    forks = [make_run(*start, "init_optimizer=true"), make_run(*start)]
    assert [train_here(fork) for fork in forks] == [0, 0]
    losses = [[row["train_loss"] for row in read_json_lines(run.metrics)] for run in (whole, *forks)]
    assert losses[1] == pytest.approx(losses[0][2:], rel=1e-5)
    assert losses[2][1] != pytest.approx(losses[0][3], rel=1e-3)


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        (("optim=sgd",), r"its optimizer is no SGD: it has no setting dampening, momentum, nesterov"),
        ((*ADAMW, "model.width=8", "init_skip=[]"), r"does not match the model"),
        (
            (*ADAMW, "parameter_groups=[{parameters: ['*.bias'], weight_decay: 0}]"),
            r"parameter groups of \[\d+\] parameters, the run's has groups of \[\d+, \d+\]",
        ),
        ((*ADAMW, "sync=local"), r"workers have optimizers of their own\. Type sync=all_reduce"),
        ((*ADAMW, "sync=sharded"), r"workers have optimizers of their own\. Type sync=all_reduce"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(trained, typed, problem):
    with pytest.raises(BuildError, match=problem):
        build(config_of(f"init_from={trained}", "init_optimizer=true", *typed), CPU)


def test_a_file_without_the_state_of_an_optimizer_is_refused(trained, tmp_path):
    torch.save(torch.load(trained, weights_only=True)["model"], tmp_path / "w.pt")
    with pytest.raises(BuildError, match=r"it contains no optimizer state under optimizer"):
        build(config_of(f"init_from={tmp_path / 'w.pt'}", "init_optimizer=true", *ADAMW), CPU)
    with pytest.raises(ConfigError, match=r"init_optimizer=true has no effect without init_from=PATH"):
        config_of("init_optimizer=true")
    with pytest.raises(ConfigError, match=r"needs the weights of the whole model"):
        config_of(f"init_from={trained}", "init_optimizer=true", "init_skip=['head.*']")


def test_runs_from_a_checkpoint_record_the_loss_of_every_step(trained, make_run, train_here):
    typed = (f"init_from={trained}", "init_optimizer=true", "schedule=constant", *TINY, *ADAMW)
    run = make_run(*typed, "max_steps=5", "world_size=8", "batch_size=8")  # epochs of two steps
    assert train_here(run) == 0
    rows = list(run.rows())
    assert [row.step for row in rows] == [2, 4, 5]
    assert [len(row.step_losses) for row in rows] == [2, 2, 1]
    for row in rows:
        assert sum(row.step_losses) / len(row.step_losses) == pytest.approx(row.metrics["train_loss"])


def test_the_losses_of_a_run_that_resumes_are_complete(trained, make_run, train_here):
    typed = (f"init_from={trained}", "schedule=constant", *TINY, *ADAMW, "max_steps=5", "batch_size=2")
    whole, stopped = make_run(*typed), make_run(*typed)
    assert train_here(whole) == 0
    stopped.preempt.touch()  # stops after the first step
    assert train_here(stopped) != 0
    stopped.preempt.unlink()
    assert train_here(stopped) == 0
    assert [row.step_losses for row in stopped.rows()] == [row.step_losses for row in whole.rows()]


def test_a_run_without_a_checkpoint_records_no_losses_of_steps(make_run, train_here):
    run = make_run("epochs=1", *TINY)
    assert train_here(run) == 0
    assert [row.step_losses for row in run.rows()] == [None]


def test_a_run_that_ends_during_its_warm_up_gets_a_note():
    assert check([config_of("max_steps=2", "batch_size=1")])["notes"] == [
        "the run ends during the warm-up of 1 epochs, because max_steps=2 are 0.091 epochs. Type schedule=constant or "
        "schedule.warmup_epochs=0"
    ]
    for typed in ("schedule=constant", "schedule.warmup_epochs=0", "max_steps=null"):
        assert not check([config_of("max_steps=2", "batch_size=1", typed)])["notes"]
