"""A report on a search that tuned: only the pairs with the chosen values are compared."""

import math

import pytest
import yaml

from cpdrun.record import write_text
from cpdrun.study import ReportError
from cpdrun.study.reader import read_study

LRS = [0.05, 0.1, 0.2]
OPTIM = {"_target_": "torch.optim.SGD", "momentum": 0.9}
# The learning rate that is best on the seeds that choose. On the seeds of pairs it is by far the worst.
BEST = {"fp32": 0.2, "e4m3": 0.1, "e3m0": 0.05}


def write_search(sweep, **search):
    names = [run.name for run in sweep.dir.runs()]
    write_text(sweep.dir.manifest, yaml.safe_dump({"runs": names, "search": search}))


def chosen(sweep, **options):
    return {group.format: group.keys["optim.lr"] for group in read_study([sweep.dir], **options).groups}


@pytest.fixture
def searched(new_sweep):
    def searched(tune=True, seeds=(1000, 1001)):
        sweep = new_sweep()
        for format, best in BEST.items():
            for lr in LRS:
                for seed in (*seeds, *range(6)):
                    if seed < 1000 and lr == 0.2 != best:
                        continue  # some values have no pairs, and others have pairs of another command
                    accuracy = 0.99 if (lr == best) == (seed >= 1000) else 0.5
                    if lr == best and seed < 1000:
                        accuracy = 0.97 + 0.001 * (seed % 3)
                    aps = format != "fp32"
                    sweep.add(format, aps=aps, seed=seed, accuracy=accuracy, optim=OPTIM | {"lr": lr})
        tuned = {"tune": {"values": {"optim.lr": LRS}, "seeds": list(seeds)}}
        write_search(sweep, tolerance=1, **(tuned if tune else {}))
        return sweep

    return searched


def remove_result(sweep, **wanted):
    for run in sweep.dir.runs():
        config = yaml.safe_load(run.config.read_text())
        if wanted.items() <= (config | {"lr": config["optim"]["lr"]}).items():
            run.done.unlink()


def test_means_are_those_of_the_chosen_value_on_the_seeds_of_pairs(searched, report):
    found = report(searched(), formats=["csv", "md", "html"])
    table = found.table.set_index("format")
    assert dict(table["optim.lr"]) == BEST and set(table["n"]) == {6}
    assert all(abs(mean - 0.971) < 1e-9 for mean in table["test_accuracy_mean"])
    told = " ".join([*found.sentences, *found.notes])
    for said in (
        "lr (0.05, 0.1, 0.2) was chosen for each by the mean over seeds 1000 and 1001, in no number here.",
        "fp32 at lr 0.2 (largest tried); e4m3 with APS at lr 0.1; e3m0 with APS at lr 0.05 (smallest tried).",
        "18 runs that chose the tuned values and 24 runs with values that were not chosen",
    ):
        assert said in told
    assert "compared" in (found.folder / "runs.csv").read_text()
    assert "chooses" in (found.folder / "report.html").read_text()


def test_a_cell_whose_tuning_is_not_finished_is_not_compared(searched):
    sweep = searched()
    remove_result(sweep, format="e3m0", seed=1001, lr=0.2)
    assert list(chosen(sweep)) == ["fp32", "e4m3"]
    remove_result(sweep, seed=1000)
    with pytest.raises(ReportError, match=r"the search is choosing optim\.lr"):
        read_study([sweep.dir])


def test_a_value_that_the_search_gave_up_is_not_chosen(new_sweep):
    sweep = new_sweep()
    for lr in LRS:
        for seed in (1000, 1001, 1002, 0, 1):
            optim = OPTIM | {"lr": lr}
            sweep.add("fp32", seed=seed, accuracy=lr, optim=optim)
            if lr != 0.2:
                sweep.add("e4m3", seed=seed, accuracy=lr, optim=optim)
            elif seed in (1000, 1001):  # after two failures, no further seed is tried
                sweep.add("e4m3", seed=seed, status=None, outcome="failed", optim=optim)
    write_search(sweep, tune={"values": {"optim.lr": LRS}, "seeds": [1000, 1001, 1002]})
    assert chosen(sweep) == {"fp32": 0.2, "e4m3": 0.1}


@pytest.mark.parametrize("metric", [None, "test_accuracy"])
def test_a_diverged_run_is_worst_and_the_metric_of_the_search_decides(new_sweep, metric):
    sweep = new_sweep()
    for lr, loss in ((0.1, 0.3), (0.2, 0.1)):
        for format in ("fp32", "e4m3"):
            status = "diverged" if lr == 0.2 and format == "e4m3" else "finished"
            for seed in (1000, 0, 1):
                values = {"test_loss": loss, "test_accuracy": loss}
                sweep.add(format, seed=seed, status=status, metrics=values, optim=OPTIM | {"lr": lr})
    write_search(sweep, metric="test_loss", tune={"values": {"optim.lr": [0.1, 0.2]}, "seeds": [1000]})
    assert chosen(sweep, metric=metric) == {"fp32": 0.2, "e4m3": 0.1}


def test_a_malformed_tuning_in_sweep_yaml_is_ignored(searched):
    sweep = searched(tune=False)
    malformed = [5, {"values": {}}, {"values": [1], "seeds": [1]}, {"values": {"optim.lr": 3}, "seeds": [1]}]
    for block in (*malformed, {"seeds": "x"}):
        write_search(sweep, tune=block)
        assert len(read_study([sweep.dir]).facets) == len(LRS)


def test_a_tuned_sweep_and_another_are_separate_facets(searched, new_sweep):
    plain = new_sweep("plain")
    for format in BEST:
        plain.add(format, accuracy=0.9, optim=OPTIM | {"lr": 0.1})
    study = read_study([searched().dir, plain.dir])
    assert len(study.facets) == 2 and len(study.groups) == 6
    assert not any(math.isnan(group.mean) for group in study.groups)
