"""What a script tells its run through a Recorder, as it stands in the run's folder."""

import math

import pytest
import torch

from cpdrun.attach.environment import ATTEMPT_DIR, RUN_DIR
from cpdrun.attach.recorder import Recorder
from cpdrun.errors import UserError
from cpdrun.record import LoggedRow, RunDir


@pytest.fixture
def run(tmp_path):
    run = RunDir(tmp_path / "run")
    run.new_attempt()
    return run


def test_rows_have_the_epochs_and_steps_of_the_script(run):
    recorder = Recorder(run.path)
    recorder.log({"epoch": 1, "val_loss": torch.tensor(0.5)})
    recorder.log({"step": 20, "epoch": 0.25, "loss": math.nan})
    recorder.log({"accuracy": 1})
    recorder.log({"epoch": 2})
    assert list(run.logged()) == [
        LoggedRow(epoch=1, metrics={"val_loss": 0.5}),
        LoggedRow(epoch=0.25, step=20, metrics={"loss": None}),
        LoggedRow(metrics={"accuracy": 1}),
    ]


def test_other_ranks_write_nothing(run):
    Recorder(run.path, rank=1).log({"val_loss": 1.0})
    assert not run.metrics.exists()


@pytest.mark.parametrize("value", ["low", None, torch.ones(2), [1.0]])
def test_values_that_are_not_numbers_are_errors(run, value):
    with pytest.raises(UserError, match=r"run.log\(val_loss="):
        Recorder(run.path).log({"val_loss": value})


def test_should_stop_is_recorded_in_the_attempt(run):
    recorder = Recorder(run.path)
    assert not recorder.should_stop()
    (attempt,) = run.attempts()
    assert attempt.polls_stop.exists() and not attempt.stop_delivered.exists()
    run.preempt.touch()
    assert recorder.should_stop() and attempt.stop_delivered.exists()


def test_there_is_no_recorder_without_a_run(run, monkeypatch):
    monkeypatch.delenv(RUN_DIR, raising=False)
    assert Recorder.from_environment() is None
    monkeypatch.setenv(RUN_DIR, str(run.path))
    monkeypatch.setenv(ATTEMPT_DIR, str(run.path / "attempts" / "1"))
    recorder = Recorder.from_environment()
    assert recorder.rank == 0 and recorder.checkpoint_dir.is_dir() and recorder.attempt.number == 1
