"""A run that has not left the loss of guessing by a stated share of its epochs ends there, and its record says so."""

import io
import math

import pytest
import torch
from rich.console import Console

from cpdrun.config.errors import ConfigError
from cpdrun.launch.progress.status import Snapshot, render, run_status
from cpdrun.models.auxiliary import WithAuxiliary
from cpdrun.record import Ending, read_json
from cpdrun.sweep import plan
from cpdrun.tasks.classification import Classification
from cpdrun.tasks.model_loss import ModelLoss
from cpdrun.tasks.next_token import NextToken
from cpdrun.tasks.regression import Regression
from cpdrun.train.build import BuildError, build
from cpdrun.train.duration import Duration, EarlyStopping

BROKEN = ("format=e2m0", "aps=false", "epochs=5", "give_up_after=0.4")


def test_a_run_that_never_learns_ends_early_with_its_last_metrics(make_run, train_here):
    run = make_run(*BROKEN)
    assert train_here(run) == 0
    done, rows = run.result(), list(run.rows())
    assert (done.status, done.ended_after, [row.epoch for row in rows]) == (Ending.DID_NOT_LEARN, 2, [1, 2])
    assert done.metrics == rows[-1].metrics and done.metrics["test_accuracy"] < 0.2
    status, _ = run_status(run)
    assert status.did_not_learn and (status.epoch, status.epochs) == (2, 5)
    console = Console(file=io.StringIO(), width=150)
    console.print(render(Snapshot(run.sweep, [status], {}), width=150))
    assert "did not learn" in console.file.getvalue()


def test_a_run_that_learns_continues_to_its_end(make_run, train_here):
    run = make_run("epochs=3", "give_up_after=0.5")
    train_here(run)
    done = read_json(run.done)
    assert done["status"] == "finished" and "ended_after" not in done and len(list(run.rows())) == 3


def test_a_run_without_the_rule_keeps_its_name():
    words = ["exp=digits_bits", "format=fp32", "aps=false", "seed=0"]
    (run,), (off,) = plan(words).runs, plan([*words, "give_up_after=null"]).runs
    assert run.name == off.name == "convnet-fp32-w8-s0-28fa027ad2", "the name from before the rule existed"
    (on,) = plan([*words, "give_up_after=0.4"]).runs
    assert on.name != off.name


@pytest.mark.parametrize(
    ("share", "duration", "after"),
    [
        (None, Duration(22, 330), None),
        (0.4, Duration(22, 330), 6),
        (0.01, Duration(22, 330), 1),
        (0.07, Duration(2, 200), 7),
        (0.99, Duration(22, 330), None),
        (0.5, Duration(22, 22), None),
        (0.5, Duration(22, 55), 2),
        (0.5, Duration(1, 0), None),
    ],
)
def test_the_epoch_is_fixed_beforehand(share, duration, after):
    assert EarlyStopping.from_share(share, duration).after == after


def test_a_run_must_gain_a_twentieth_of_the_loss_range_by_that_epoch():
    rule = EarlyStopping(6)
    assert rule.is_due(6, 0.96, (0.0, 1.0)) and not rule.is_due(6, 0.95, (0.0, 1.0))
    assert rule.is_due(6, 1.96, (1.0, 2.0)) and not rule.is_due(6, 1.94, (1.0, 2.0))
    assert not rule.is_due(5, 0.96, (0.0, 1.0)) and not rule.is_due(7, 0.96, (0.0, 1.0))
    assert not EarlyStopping().is_due(6, 9.0, (0.0, 1.0)) and not rule.is_due(6, math.inf, None)


def test_only_tasks_over_classes_know_the_loss_of_a_guess():
    assert Classification(10).loss_range() == (0.0, math.log(10))
    assert NextToken(256).loss_range() == (0.0, math.log(256))
    assert Classification().loss_range() is Regression().loss_range() is ModelLoss().loss_range() is None

    class Own(Classification):
        def loss(self, outputs, batch):
            return super().loss(outputs, batch) * 7

    assert Own(10).loss_range() is None


def test_smoothed_labels_and_auxiliary_heads_change_the_loss_range():
    task, y = Classification(4, label_smoothing=0.3), torch.tensor([1, 3])
    smooth = torch.full((2, 4), 0.3 / 4) + 0.7 * torch.eye(4)[y]
    plain = smooth.log(), torch.zeros(2, 4)
    for outputs, guess in (plain, [WithAuxiliary(logits, logits, 0.4) for logits in plain]):
        right, by_chance = (float(task.loss(each, (None, y))) for each in (outputs, guess))
        assert task.loss_range() == pytest.approx((right, by_chance), rel=1e-6)


@pytest.mark.parametrize("value", ["0", "1", "-0.5", "40", "true", "soon", "nan"])
def test_a_value_that_is_not_a_share_is_an_error(value):
    with pytest.raises(ConfigError, match=r"give_up_after=.*share of the epochs"):
        plan(["exp=digits_bits", "format=e4m3", "aps=true", "seed=0", f"give_up_after={value}"])


def test_a_task_without_loss_range_is_an_error():
    (run,) = plan(["exp=digits_bits", "format=e4m3", "aps=true", "seed=0", "give_up_after=0.4"]).runs
    config = {**run.config, "task": {"_target_": "cpdrun.tasks.model_loss.ModelLoss"}}
    with pytest.raises(
        BuildError, match=r"^give_up_after=0.4: ModelLoss does not define the loss of a guess. Type"
    ):
        build(config, torch.device("cpu"))
