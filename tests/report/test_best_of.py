"""A sweep over a learning rate: the best of each format, said to be chosen on the same runs; no certificate of it."""

import random

import pytest

from cpdrun.report.answers_text import headline
from cpdrun.report.best_of import best_table
from cpdrun.study.best_of import best_of
from cpdrun.study.reader import read_study

pytestmark = pytest.mark.usefixtures("no_pictures")

OPTIM = {"_target_": "torch.optim.SGD", "momentum": 0.9, "nesterov": False}
# by format and scaling the accuracy with each learning rate
WORLD = {
    ("fp32", False): {0.05: 0.95, 0.1: 0.97, 0.2: 0.98},
    ("e4m3", True): {0.05: 0.96, 0.1: 0.981, 0.2: 0.97},
    ("e3m0", True): {0.05: 0.979, 0.1: 0.90, 0.2: None},
    ("e4m3", False): {0.05: 0.5, 0.1: 0.4, 0.2: 0.4},
}


def swept(sweep, world=WORLD, seeds=3, **config):
    scatter = random.Random(0)
    for (format, aps), by_lr in world.items():
        for lr, accuracy in by_lr.items():
            for seed in range(seeds):
                value = 0.1 if accuracy is None else accuracy + scatter.gauss(0, 0.0005)
                status = "diverged" if accuracy is None else "finished"
                optim = OPTIM | {"lr": lr}
                sweep.add(
                    format, aps=aps, seed=seed, accuracy=value, status=status, **{"optim": optim} | config
                )
    return sweep


def test_each_format_is_compared_at_its_own_best_with_the_baseline_at_its_own(new_sweep, report):
    found = report(swept(new_sweep()), formats=["csv", "md", "html"], tolerance=0.5)
    told = " ".join(found.sentences)
    assert "certifies nothing, because the lr was chosen after looking at these same runs." in told
    assert "cpdrun search with search.tune.optim.lr=0.05,0.1,0.2" in told
    table = (found.folder / "best_of.csv").read_text().splitlines()
    assert len(table) == 1 + 4 and table[0].startswith("format,aps,world_size,optim.lr,n,test_accuracy_mean")
    assert "Each at its best" in (found.folder / "report.html").read_text()
    assert "best optim.lr" in found.printed and "0.2 (largest tried)" in found.printed
    assert not any(mark in line for line in found.sentences if "best" in line for mark in "✓✗")


def test_diverged_is_worst_and_of_equals_the_smallest_is_taken(new_sweep):
    world = {("fp32", False): {0.1: 0.9, 0.2: 0.9}, ("e4m3", False): {0.1: 0.5, 0.2: None}}
    sweep = new_sweep()
    for (format, _), by_lr in world.items():
        for lr, accuracy in by_lr.items():
            status = "finished" if accuracy else "diverged"
            sweep.add(format, accuracy=accuracy or 0.99, status=status, optim=OPTIM | {"lr": lr})
    (best,) = best_of(read_study([sweep.dir]))
    assert [group.keys["optim.lr"] for group in best.facet.groups] == [0.1, 0.1]


def test_other_axes_keep_apart_and_of_many_the_table_alone_speaks(new_sweep):
    sweep = new_sweep()
    for workers in (2, 4, 8, 16):
        swept(sweep, seeds=1, world_size=workers)
    study = read_study([sweep.dir])
    assert len(best_of(study)) == 4 and len(best_table(study)[1].rows) == 16
    assert headline(study)[0][-1].startswith("The table of the best lr of each format certifies nothing")
    assert best_table(study)[1].header[:5] == ["format", "bits", "APS", "workers", "best optim.lr"]


@pytest.mark.parametrize(
    "varied",
    [
        {"batch_size": [8, 16]},
        {"optim": [OPTIM, OPTIM | {"nesterov": True}]},
        {"model": [{"depth": 1}, {"depth": 2}]},
    ],
)
def test_what_is_part_of_the_question_is_not_tuned(new_sweep, varied):
    sweep, ((key, values),) = new_sweep(), varied.items()
    for value in values:
        for format in ("fp32", "e4m3"):
            sweep.add(format, **{key: value})
    study = read_study([sweep.dir])
    assert len(study.facets) == 2 and best_of(study) == [] and best_table(study) is None
    assert not any("chosen" in line for line in headline(study)[0])


def test_a_baseline_that_learnt_with_none_is_no_ground(new_sweep):
    world = {("fp32", False): {0.1: None, 0.2: None}, ("e4m3", False): {0.1: 0.9, 0.2: 0.8}}
    study = read_study([swept(new_sweep(), world).dir])
    assert best_table(study)[0]["vs_best_baseline"].isna().all()


def test_two_tuned_keys_are_chosen_together(new_sweep):
    sweep = new_sweep()
    for lr in (0.1, 0.2):
        for momentum in (0.0, 0.9):
            for format in ("fp32", "e4m3"):
                good = (lr, momentum) == ((0.1, 0.9) if format == "fp32" else (0.2, 0.0))
                optim = OPTIM | {"lr": lr, "momentum": momentum}
                sweep.add(format, accuracy=0.97 if good else 0.9, optim=optim)
    (best,) = best_of(read_study([sweep.dir]))
    assert {g.format: tuple(best.values(g).values()) for g in best.facet.groups} == {
        "fp32": (0.1, 0.9),
        "e4m3": (0.2, 0.0),
    }
