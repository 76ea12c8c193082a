from functools import partial

import pytest
import torch
from torch.utils.data import TensorDataset

from cpdrun.data.partition import STRETCHES, Dirichlet, Iid, Skewed, labels
from cpdrun.data.text import PydocText
from cpdrun.train.seeds import generator

N, B, CLASSES, EACH = 8, 4, 10, 100


class Labelled:
    """1,000 samples of 10 classes in random order."""

    y_N = (
        torch.arange(CLASSES * EACH)[torch.randperm(CLASSES * EACH, generator=generator("labels"))] % CLASSES
    )

    def __len__(self):
        return len(self.y_N)


def deal(partition, epoch=0, seed=0, N=N):
    return partition.deal(Labelled(), N, B, seed=seed, epoch=epoch, draws=generator)


def share_of_two_classes(index_SxNxB):
    """Return for each worker which share of its samples belongs to its two most frequent classes."""
    y = Labelled.y_N[index_SxNxB.transpose(0, 1).flatten(1)]
    return [row.bincount(minlength=CLASSES).sort().values[-2:].sum().item() / len(row) for row in y]


def test_iid_is_one_random_order_of_all_samples():
    order = torch.randperm(1000, generator=generator("order", 3, 1))
    S = 1000 // (N * B)
    assert torch.equal(deal(Iid(), epoch=1, seed=3), order[: S * N * B].view(S, N, B))


@pytest.mark.parametrize(
    "make", [partial(Skewed, skew) for skew in (0.8, 0.0, 1.0)] + [partial(Dirichlet, 0.5)]
)
def test_parts_stay_the_same_over_epochs_and_share_no_sample(make):
    partition = make()
    first, second = deal(partition), deal(partition, epoch=1)
    assert first.shape == (31, N, B) and not torch.equal(first, second)
    parts = [set(first[:, w].flatten().tolist()) | set(second[:, w].flatten().tolist()) for w in range(N)]
    for w in range(N):
        for v in range(w):
            assert not parts[w] & parts[v]
    assert torch.equal(deal(make()), first) and not torch.equal(deal(make(), seed=1), first)


def test_skew_is_the_share_of_a_workers_samples_from_few_classes():
    """1.25 classes of the sorted fraction to a worker, a tenth of every class in the rest."""
    for skew, least, most in ((0.0, 0.2, 0.35), (0.8, 0.8, 0.9), (1.0, 1.0, 1.0)):
        shares = share_of_two_classes(deal(Skewed(skew)))
        assert least <= min(shares) and max(shares) <= most, (skew, shares)


def test_a_skewed_part_holds_all_samples_once():
    parts = Skewed(0.8).shards(Labelled.y_N, 7, B, generator("partition", 0))
    assert sorted(torch.cat(parts).tolist()) == list(range(1000))
    assert max(map(len, parts)) - min(map(len, parts)) <= 2


def test_small_alpha_skews_more_than_large():
    few, many = (sum(share_of_two_classes(deal(Dirichlet(alpha)))) / N for alpha in (0.1, 100.0))
    assert many < 0.35 < 0.6 < few


def test_settings_that_cannot_be_dealt_are_refused():
    with pytest.raises(ValueError, match=r"partition\.alpha=1e-05: .* fewer than 4 samples"):
        deal(Dirichlet(1e-5), N=16)  # each class goes to one worker: 10 classes, 16 workers
    with pytest.raises(ValueError, match=r"partition\.skew must lie between 0 and 1, not 2"):
        Skewed(2)
    with pytest.raises(ValueError, match=r"partition\.alpha must be above 0"):
        Dirichlet(0)


def test_stretches_of_text_take_the_place_of_classes():
    text = PydocText(context=64, test_fraction=0.1, text_bytes=None).train
    stretch = labels(text)
    assert stretch.unique().tolist() == list(range(STRETCHES)) and (stretch.diff() >= 0).all()
    index = Skewed(1.0).deal(text, N, B, seed=0, epoch=0, draws=generator)
    own = [index[:, w].flatten() for w in range(N)]
    assert all(own[w].max() < own[w + 1].min() for w in range(N - 1))


def test_targets_without_classes_have_stretches():
    """Numbers, or a class for every pixel, also where a dataset holds them all (y_N)."""
    for y_N in (torch.randn(64), torch.zeros(64, 2, 2, dtype=torch.int64)):
        assert torch.equal(labels(TensorsOf(y_N)), torch.arange(64) * STRETCHES // 64)
    assert labels(TensorsOf(torch.arange(64) % 3)).tolist() == [i % 3 for i in range(64)]


class TensorsOf(TensorDataset):
    def __init__(self, y_N):
        super().__init__(y_N, y_N)
        self.y_N = y_N
