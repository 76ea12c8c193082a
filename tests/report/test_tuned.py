"""A report on a search that tuned: only the pairs of what was chosen are compared, and what that is, is said."""

import math

import pytest
import yaml

from cpdrun.record import write_text
from cpdrun.study import ReportError
from cpdrun.study.reader import read_study

pytestmark = pytest.mark.usefixtures("no_pictures")

LRS = [0.05, 0.1, 0.2]
OPTIM = {"_target_": "torch.optim.SGD", "momentum": 0.9}
# by format: the learning rate that is best on the seeds that choose, which on those of pairs is by far the worst
BEST = {"fp32": 0.2, "e4m3": 0.1, "e3m0": 0.05}


def searched(new_sweep, tune=True, seeds=(1000, 1001)):
    sweep = new_sweep()
    for format, best in BEST.items():
        for lr in LRS:
            for seed in (*seeds, *range(6)):
                if seed < 1000 and lr == 0.2 != best:
                    continue  # of some values no pair was run, of others by another command
                good = 0.99 if (lr == best) == (seed >= 1000) else 0.5
                accuracy = 0.97 + 0.001 * (seed % 3) if lr == best and seed < 1000 else good
                aps = format != "fp32"
                sweep.add(format, aps=aps, seed=seed, accuracy=accuracy, optim=OPTIM | {"lr": lr})
    block = {"values": {"optim.lr": LRS}, "seeds": list(seeds)}
    manifest = {"runs": [run.name for run in sweep.dir.runs()], "search": {"tolerance": 1}}
    manifest["search"] |= {"tune": block} if tune else {}
    write_text(sweep.dir.manifest, yaml.safe_dump(manifest))
    return sweep


def test_means_are_those_of_the_chosen_value_on_the_seeds_of_pairs(new_sweep, report):
    found = report(searched(new_sweep), formats=["csv", "md", "html"])
    table = found.table.set_index("format")
    assert dict(table["optim.lr"]) == BEST and set(table["n"]) == {6}
    assert all(abs(mean - 0.971) < 1e-9 for mean in table["test_accuracy_mean"])
    told = " ".join(found.sentences)
    assert (
        "lr (0.05, 0.1, 0.2) was chosen for each by the mean over seeds 1000 and 1001, in no number here."
        in told
    )
    assert (
        "fp32 at lr 0.2 (largest tried); e4m3 with APS at lr 0.1; e3m0 with APS at lr 0.05 (smallest tried)."
        in told
    )
    assert "18 runs that chose the tuned values and 24 runs with values that were not chosen" in " ".join(
        found.notes
    )
    assert (
        "compared" in (found.folder / "runs.csv").read_text()
        and "chooses" in (found.folder / "report.html").read_text()
    )


def test_a_cell_whose_tuning_is_not_done_is_not_compared(new_sweep):
    sweep = searched(new_sweep)
    for run in sweep.dir.runs():
        config = yaml.safe_load(run.config.read_text())
        if config["format"] == "e3m0" and config["seed"] == 1001 and config["optim"]["lr"] == 0.2:
            run.done.unlink()
    assert [group.format for group in read_study([sweep.dir]).groups] == ["fp32", "e4m3"]


def test_a_value_that_the_search_gave_up_is_passed_over(new_sweep):
    sweep = new_sweep()
    for lr in LRS:
        for seed in (1000, 1001, 1002, 0, 1):
            optim, given_up = OPTIM | {"lr": lr}, lr == 0.2
            sweep.add("fp32", seed=seed, accuracy=lr, optim=optim)
            if not given_up:
                sweep.add("e4m3", seed=seed, accuracy=lr, optim=optim)
            elif seed in (1000, 1001):  # two failures, and no further seed is tried
                sweep.add("e4m3", seed=seed, status=None, outcome="failed", optim=optim)
    block = {"tune": {"values": {"optim.lr": LRS}, "seeds": [1000, 1001, 1002]}}
    write_text(sweep.dir.manifest, yaml.safe_dump({"runs": [], "search": block}))
    chosen = {group.format: group.keys["optim.lr"] for group in read_study([sweep.dir]).groups}
    assert chosen == {"fp32": 0.2, "e4m3": 0.1}


def test_with_nothing_chosen_yet_that_is_said(new_sweep):
    sweep = searched(new_sweep, seeds=(1000, 1001, 1002))
    for run in sweep.dir.runs():
        if yaml.safe_load(run.config.read_text())["seed"] == 1002:
            run.done.unlink()
    with pytest.raises(ReportError, match=r"the search is choosing optim\.lr"):
        read_study([sweep.dir])


def test_a_diverged_run_is_worst_and_the_choice_is_by_the_searchs_metric(new_sweep):
    sweep = new_sweep()
    for lr, loss in ((0.1, 0.3), (0.2, 0.1)):
        for format in ("fp32", "e4m3"):
            status = "diverged" if lr == 0.2 and format == "e4m3" else "finished"
            for seed in (1000, 0, 1):
                values = {"test_loss": loss, "test_accuracy": loss}
                sweep.add(format, seed=seed, status=status, metrics=values, optim=OPTIM | {"lr": lr})
    asked = {"metric": "test_loss", "tune": {"values": {"optim.lr": [0.1, 0.2]}, "seeds": [1000]}}
    write_text(sweep.dir.manifest, yaml.safe_dump({"runs": [], "search": asked}))
    for metric in (None, "test_accuracy"):
        study = read_study([sweep.dir], metric=metric)
        assert {group.format: group.keys["optim.lr"] for group in study.groups} == {"fp32": 0.2, "e4m3": 0.1}


@pytest.mark.parametrize(
    "block",
    [
        5,
        {"values": {}},
        {"values": [1], "seeds": [1]},
        {"values": {"optim.lr": 3}, "seeds": [1]},
        {"seeds": "x"},
    ],
)
def test_a_sweep_yaml_of_anyones_is_read_within_bounds(new_sweep, block):
    sweep = searched(new_sweep, tune=False)
    write_text(sweep.dir.manifest, yaml.safe_dump({"runs": [], "search": {"tune": block}}))
    assert len(read_study([sweep.dir]).facets) == len(LRS)


def test_two_sweeps_of_which_one_was_tuned_keep_apart(new_sweep):
    plain = new_sweep("plain")
    for format in BEST:
        plain.add(format, accuracy=0.9, optim=OPTIM | {"lr": 0.1})
    study = read_study([searched(new_sweep).dir, plain.dir])
    assert len(study.facets) == 2 and len(study.groups) == 6
    assert not any(math.isnan(group.mean) for group in study.groups)
