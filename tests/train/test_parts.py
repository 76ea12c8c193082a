import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from cpdrun.comm.workers import Workers
from cpdrun.record.measure import ACCURACY
from cpdrun.sweep import plan
from cpdrun.tasks.classification import Classification
from cpdrun.tasks.next_token import NextToken
from cpdrun.tasks.segmentation import Segmentation
from cpdrun.tasks.top5 import Top5
from cpdrun.train.evaluate import evaluate
from cpdrun.train.learners.emulated_workers import SharedModel
from cpdrun.train.preflight.check import check
from cpdrun.train.seeds import derived_seed, generator


def test_seeds_are_stable_and_differ_by_purpose_and_key():
    assert derived_seed("augment", 0, 1, 2) == 5576468782939881571
    seeds = {derived_seed(p, s, w) for p in ("augment", "dropout") for s in range(50) for w in range(50)}
    assert len(seeds) == 5000 and max(seeds) < 2**63
    assert torch.equal(torch.rand(3, generator=generator("a", 1)), torch.rand(3, generator=generator("a", 1)))


def test_running_statistics_follow_worker_0():
    model = nn.BatchNorm1d(3)
    alone = nn.BatchNorm1d(3)
    played = SharedModel(model, Workers(4))
    for step in range(3):
        x_by_worker = torch.randn(4, 8, 3, generator=generator("x", step))
        alone(x_by_worker[0])
        played.begin_step()
        for worker in range(4):
            played.begin_worker(worker)
            model(x_by_worker[worker])
            played.end_worker(worker)
        played.end_step()
    for name, value in alone.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name


def judged(model, task, test, batch):
    data, batches = SimpleNamespace(test=test), SimpleNamespace(loaders=0)
    parts = SimpleNamespace(model=model, task=task, data=data, batches=batches, eval_batch=batch)
    return evaluate(parts, Workers(1), torch.device("cpu")).metrics


def test_evaluation_counts_every_sample_once_and_leaves_training_mode_on():
    class Numbers:
        def __len__(self):
            return 1234

        def __getitem__(self, i):
            return torch.tensor([float(i % 3 == 0), 0.5]), torch.tensor(0)

    model = nn.Identity()
    metrics = judged(model, Classification(), Numbers(), batch=500)
    assert metrics["test_accuracy"] == 412 / 1234
    assert model.training


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (("model._target_=no.such.Net",), "model: .*no.such.Net"),
        (("model=custom", "model._target_=torch.nn.Nonsense"), "model: .*Nonsense"),
        (("+model.foo=3",), "model: .*foo"),
        (
            ("data=fashion_mnist", "data.data_dir=/nowhere"),
            "data: Fashion-MNIST is not in /nowhere.*apt-get install",
        ),
        (("data.test_fraction=2",), "data: data.test_fraction must lie"),
        (("model=resnet_cifar", "model.depth=9"), "model: model.depth must be 6n\\+2"),
        (("optim.lr=-1",), "optim: .*learning rate"),
        (("world_size=512",), "world_size \\* batch_size = 4096"),
        (("sync.order=nonsense",), "sync: .*nonsense"),
    ],
)
def test_what_keeps_a_run_from_starting_is_named(typed, message):
    runs = plan(["exp=digits_bits", *typed]).runs
    (problem,) = check([run.config for run in runs])["problems"]
    assert re.search(message, problem), problem
    assert "\n" not in problem


def test_a_good_sweep_has_no_problems():
    assert check([run.config for run in plan(["exp=digits_bits"]).runs])["problems"] == []


def test_metrics_of_pixels_leave_out_what_is_ignored():
    truth = torch.tensor([[[0, 0, 1], [2, -100, 1]], [[2, 2, -100], [0, 1, 1]]])
    predicted = torch.tensor([[[0, 1, 1], [2, 2, 1]], [[2, 0, 0], [0, 1, 2]]])

    class Pixels:
        def __len__(self):
            return 2

        def __getitem__(self, i):
            return torch.nn.functional.one_hot(predicted[i], 4).permute(2, 0, 1).float() * 5, truth[i]

    metrics, of_text = (
        judged(nn.Identity(), task, Pixels(), batch=1)
        for task in (Segmentation(num_classes=4), NextToken(bytes_per_token=2))
    )
    assert metrics["test_accuracy"] == 7 / 10
    # class 0: 2 of 4 in the union, class 1: 3 of 5, class 2: 2 of 4; class 3 does not occur
    assert metrics["test_mean_iou"] == pytest.approx((2 / 4 + 3 / 5 + 2 / 4) / 3)
    assert of_text["test_bits_per_byte"] == pytest.approx(metrics["test_loss"] / 0.6931471805599453 / 2)


def test_the_top_five_hold_the_best():
    class Ranked:
        def __len__(self):
            return 8

        def __getitem__(self, i):
            return torch.arange(8.0, 0, -1), torch.tensor(i)  # class i is the i-th best

    metrics = judged(nn.Identity(), Top5(), Ranked(), batch=500)
    assert (metrics["test_accuracy"], metrics["test_top5_accuracy"]) == (1 / 8, 5 / 8)


class OddlyMeasured(Classification):
    """It declares a metric that it does not give."""

    measures = Classification.measures | {"bits_per_bite": ACCURACY}


def test_a_metric_that_is_declared_and_not_given_is_named_before_the_start():
    (run,) = plan(["task=custom", f"task._target_={__name__}.OddlyMeasured"]).runs
    assert check([run.config])["problems"] == [
        "task: OddlyMeasured cannot evaluate the outputs of ConvNet: its metrics are accuracy, loss; it declares "
        "accuracy, bits_per_bite, loss"
    ]
