"""Which test examples a run classified correctly: the record agrees with the model in the checkpoint."""

import hashlib
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from cpdrun.comm.workers import Workers
from cpdrun.record import read_example_outcomes
from cpdrun.tasks.classification import IGNORED, Classification
from cpdrun.tasks.next_token import NextToken
from cpdrun.tasks.regression import Regression
from cpdrun.tasks.segmentation import Segmentation
from cpdrun.tasks.top5 import Top5
from cpdrun.train.build import build
from cpdrun.train.evaluate import evaluate
from cpdrun.train.rank import read_config


def outcomes_of(run):
    return read_example_outcomes(run, run.result())


def test_a_run_records_the_outcomes_of_its_final_model(make_run, train_here):
    run = make_run("eval_batch=50")
    train_here(run)
    parts = build(read_config(run), torch.device("cpu"))
    parts.model.load_state_dict(torch.load(run.checkpoint, weights_only=True)["model"])
    parts.model.eval()
    x, y = parts.data.test.fetch_batch(range(360))
    right = torch.cat([parts.model(part) for part in x.split(50)]).argmax(dim=1) == y
    found = outcomes_of(run)
    assert found.metric == "test_accuracy" and found.unpack().tolist() == right.int().tolist()
    assert found.labels_sha256 == hashlib.sha256(y.numpy().astype("<i8").tobytes()).hexdigest()
    assert len(run.example_outcomes.read_bytes()) < 200, "45 bytes and a line"


def test_a_run_killed_after_its_last_checkpoint_keeps_its_outcomes(make_run, train_here):
    run = make_run("epochs=1", "data.test_fraction=0.9")
    train_here(run)
    before = run.example_outcomes.read_bytes()
    run.done.unlink()
    train_here(run)
    assert run.example_outcomes.read_bytes() == before and outcomes_of(run)


def test_diverged_and_untrained_runs_have_outcomes_too(make_run, train_here):
    for typed in (("optim.lr=1e30", "epochs=5"), ("epochs=0",)):
        run = make_run("format=fp32", "aps=false", *typed)
        train_here(run)
        assert outcomes_of(run).samples == 360


def test_workers_that_gossip_record_none(make_run, train_here):
    typed = ("sync=gossip_dpsgd", "world_size=2", "format=fp32", "aps=false")
    run = make_run(*typed, "epochs=1", "data.test_fraction=0.9")
    train_here(run)
    assert run.result() is not None and not run.example_outcomes.exists()


LOGITS = torch.tensor([[3.0, 2.0, 1.0, 0.0, -1.0, -2.0], [0.0, 9.0, 1.0, 2.0, 3.0, 4.0]])


def found_by(task, *targets):
    test = [(LOGITS[i % 2], torch.tensor(y)) for i, y in enumerate(targets)]
    parts = SimpleNamespace(
        model=nn.Identity(),
        task=task,
        data=SimpleNamespace(test=test),
        batches=SimpleNamespace(loaders=0),
        eval_batch=2,
    )
    return evaluate(parts, Workers(1), torch.device("cpu"))


@pytest.mark.parametrize("task", [Classification(), Top5()])
def test_outcomes_agree_with_the_accuracy_and_the_order_of_the_test_set(task):
    found = found_by(task, 0, 0, 1, 1, 0)
    assert found.outcomes.unpack().tolist() == [1, 0, 0, 1, 1]
    assert found.outcomes.mean == found.metrics["test_accuracy"] == 3 / 5


class Balanced(Classification):
    """A user's task with another accuracy."""

    def metrics(self, totals):
        return super().metrics(totals) | {"accuracy": 0.123}


class Soft(Classification):
    """A user's task with a share of each class as target."""

    def sums(self, outputs, batch):
        return {"loss": outputs.sum(), "seen": torch.tensor(len(outputs)), "correct": torch.tensor(0)}


@pytest.mark.parametrize(
    ("task", "targets"),
    [
        (Classification(), (0, IGNORED, 1)),
        (Balanced(), (0, 1)),
        (Soft(), ([0.5] * 6, [0.1] * 6)),
        (NextToken(6), (0, 1)),
        (Regression(), ([0.0] * 6, [1.0] * 6)),
    ],
    ids=["ignored targets", "another accuracy", "soft targets", "next token", "regression"],
)
def test_there_are_none_if_the_metric_is_not_the_share_of_correct_examples(task, targets):
    assert found_by(task, *targets).outcomes is None


def test_segmentation_records_none():
    logits, y = torch.zeros(1, 2, 3, 3), torch.zeros(1, 3, 3, dtype=torch.int64)
    assert Segmentation(2).example_outcomes(logits, (None, y)) is None
