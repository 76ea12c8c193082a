"""Seeds, BatchNorm's statistics under emulation, and evaluation."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from cpdrun.comm.workers import Workers
from cpdrun.tasks.classification import Classification
from cpdrun.tasks.next_token import NextToken
from cpdrun.tasks.segmentation import Segmentation
from cpdrun.tasks.top5 import Top5
from cpdrun.train.evaluate import evaluate
from cpdrun.train.learners.emulated_workers import SharedModel
from cpdrun.train.seeds import derived_seed, generator


def test_seeds_are_stable_and_differ_by_purpose_and_key():
    assert derived_seed("augment", 0, 1, 2) == 5576468782939881571
    seeds = {derived_seed(p, s, w) for p in ("augment", "dropout") for s in range(50) for w in range(50)}
    assert len(seeds) == 5000 and max(seeds) < 2**63
    assert torch.equal(torch.rand(3, generator=generator("a", 1)), torch.rand(3, generator=generator("a", 1)))


def test_running_statistics_follow_worker_0():
    model = nn.BatchNorm1d(3)
    alone = nn.BatchNorm1d(3)
    shared = SharedModel(model, Workers(4))
    for step in range(3):
        x_by_worker = torch.randn(4, 8, 3, generator=generator("x", step))
        alone(x_by_worker[0])
        shared.begin_step()
        for worker in range(4):
            shared.begin_worker(worker)
            model(x_by_worker[worker])
            shared.end_worker(worker)
        shared.end_step()
    for name, value in alone.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name


def judged(model, task, test, batch):
    data, batches = SimpleNamespace(test=test), SimpleNamespace(loaders=0)
    parts = SimpleNamespace(model=model, task=task, data=data, batches=batches, eval_batch=batch)
    return evaluate(parts, Workers(1), torch.device("cpu")).metrics


class Samples:
    """A dataset of a function of the index."""

    def __init__(self, length, sample):
        self.length, self.sample = length, sample

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        return self.sample(i)


def test_evaluation_counts_every_sample_once_and_leaves_training_mode_on():
    model = nn.Identity()
    numbers = Samples(1234, lambda i: (torch.tensor([float(i % 3 == 0), 0.5]), torch.tensor(0)))
    assert judged(model, Classification(), numbers, batch=500)["test_accuracy"] == 412 / 1234
    assert model.training


def test_ignored_pixels_do_not_count_in_metrics():
    truth = torch.tensor([[[0, 0, 1], [2, -100, 1]], [[2, 2, -100], [0, 1, 1]]])
    predicted = torch.tensor([[[0, 1, 1], [2, 2, 1]], [[2, 0, 0], [0, 1, 2]]])

    def pixels(i):
        return torch.nn.functional.one_hot(predicted[i], 4).permute(2, 0, 1).float() * 5, truth[i]

    metrics, of_text = (
        judged(nn.Identity(), task, Samples(2, pixels), batch=1)
        for task in (Segmentation(num_classes=4), NextToken(bytes_per_token=2))
    )
    assert metrics["test_accuracy"] == 7 / 10
    # class 0: 2 of 4 in the union, class 1: 3 of 5, class 2: 2 of 4; class 3 does not occur
    assert metrics["test_mean_iou"] == pytest.approx((2 / 4 + 3 / 5 + 2 / 4) / 3)
    assert of_text["test_bits_per_byte"] == pytest.approx(metrics["test_loss"] / 0.6931471805599453 / 2)


def test_the_top_five_hold_the_best():
    ranked = Samples(8, lambda i: (torch.arange(8.0, 0, -1), torch.tensor(i)))  # class i is the i-th best
    metrics = judged(nn.Identity(), Top5(), ranked, batch=500)
    assert (metrics["test_accuracy"], metrics["test_top5_accuracy"]) == (1 / 8, 5 / 8)
