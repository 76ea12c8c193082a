"""A sweep over a learning rate shows the best rate of each format, chosen on the same runs and not certified."""

import pytest

from cpdrun.report.answers_text import headline
from cpdrun.report.best_of import best_table
from cpdrun.study.best_of import best_of
from cpdrun.study.reader import read_study

OPTIM = {"_target_": "torch.optim.SGD", "momentum": 0.9, "nesterov": False}
# The accuracy by format and scaling and then by learning rate. None: the run diverged.
WORLD = {
    ("fp32", False): {0.05: 0.95, 0.1: 0.97, 0.2: 0.98},
    ("e4m3", True): {0.05: 0.96, 0.1: 0.981, 0.2: 0.97},
    ("e3m0", True): {0.05: 0.979, 0.1: 0.90, 0.2: None},
    ("e4m3", False): {0.05: 0.5, 0.1: 0.4, 0.2: 0.4},
}


def fill(sweep, world=WORLD, seeds=1, **config):
    for (format, aps), by_lr in world.items():
        for lr, accuracy in by_lr.items():
            for seed in range(seeds):
                end = {"accuracy": 0.99, "status": "diverged"} if accuracy is None else {"accuracy": accuracy}
                sweep.add(format, aps=aps, seed=seed, optim=OPTIM | {"lr": lr}, **end, **config)
    return sweep


def test_each_format_is_compared_at_its_own_best_rate(new_sweep, report):
    found = report(fill(new_sweep(), seeds=3), formats=["csv", "md", "html"], tolerance=0.5)
    told = " ".join(found.sentences)
    assert "certifies nothing, because the lr was chosen after looking at these same runs." in told
    assert "cpdrun search with search.tune.optim.lr=0.05,0.1,0.2" in told
    table = (found.folder / "best_of.csv").read_text().splitlines()
    assert len(table) == 1 + 4 and table[0].startswith("format,aps,world_size,optim.lr,n,test_accuracy_mean")
    assert "Each at its best" in (found.folder / "report.html").read_text()
    assert "best optim.lr" in found.printed and "0.2 (largest tried)" in found.printed
    assert not any(mark in line for line in found.sentences if "best" in line for mark in "✓✗")


def test_diverged_runs_are_worst_and_the_smallest_of_equal_values_is_best(new_sweep):
    world = {("fp32", False): {0.1: 0.9, 0.2: 0.9}, ("e4m3", False): {0.1: 0.5, 0.2: None}}
    (best,) = best_of(read_study([fill(new_sweep(), world).dir]))
    assert [group.keys["optim.lr"] for group in best.facet.groups] == [0.1, 0.1]


def test_a_baseline_that_learned_with_no_rate_is_not_compared_with(new_sweep):
    world = {("fp32", False): {0.1: None, 0.2: None}, ("e4m3", False): {0.1: 0.9, 0.2: 0.8}}
    assert best_table(read_study([fill(new_sweep(), world).dir]))[0]["vs_best_baseline"].isna().all()


def test_each_value_of_another_axis_has_its_best_rates(new_sweep):
    sweep = new_sweep()
    for workers in (2, 4, 8, 16):
        fill(sweep, world_size=workers)
    study = read_study([sweep.dir])
    assert len(best_of(study)) == 4 and len(best_table(study)[1].rows) == 16
    assert headline(study)[0][-1].startswith("The table of the best lr of each format certifies nothing")
    assert best_table(study)[1].header[:5] == ["format", "bits", "APS", "workers", "best optim.lr"]


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("batch_size", [8, 16]),
        ("optim", [OPTIM, OPTIM | {"nesterov": True}]),
        ("model", [{"depth": 1}, {"depth": 2}]),
    ],
)
def test_settings_that_are_part_of_the_question_are_not_tuned(new_sweep, key, values):
    sweep = new_sweep()
    for value in values:
        for format in ("fp32", "e4m3"):
            sweep.add(format, **{key: value})
    study = read_study([sweep.dir])
    assert len(study.facets) == 2 and best_of(study) == [] and best_table(study) is None
    assert not any("chosen" in line for line in headline(study)[0])


def test_two_tuned_keys_are_chosen_together(new_sweep):
    sweep, best = new_sweep(), {"fp32": (0.1, 0.9), "e4m3": (0.2, 0.0)}
    for lr in (0.1, 0.2):
        for momentum in (0.0, 0.9):
            for format in best:
                accuracy = 0.97 if (lr, momentum) == best[format] else 0.9
                sweep.add(format, accuracy=accuracy, optim=OPTIM | {"lr": lr, "momentum": momentum})
    (found,) = best_of(read_study([sweep.dir]))
    assert {g.format: tuple(found.values(g).values()) for g in found.facet.groups} == best
