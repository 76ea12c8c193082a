"""table.csv and table.md: rows, columns, means and standard deviations."""

import csv

import numpy as np
import pytest

from cpdrun.study.axes import hybrid

CORE = ["format", "bits", "aps", "world_size"]
RESULT = ["n", "test_accuracy_mean", "test_accuracy_sd", "diverged"]


@pytest.fixture
def rows(report):
    def rows(sweep, **options) -> list[dict[str, str]]:
        with (report(sweep, **options).folder / "table.csv").open(encoding="utf-8") as file:
            return list(csv.DictReader(file))

    return rows


def test_there_is_one_row_for_each_format_and_scaling(digits, report, rows):
    found = rows(digits)
    assert list(found[0]) == CORE + RESULT
    assert len(found) == len({(row["format"], row["aps"]) for row in found}) == 13
    assert [row["aps"] for row in found if row["format"] == "fp32"] == ["False"]
    bits = {"fp32": "32", "e5m2": "8", "e4m3": "8", "e3m4": "8", "e4m1": "6", "e3m2": "6", "e3m0": "4"}
    assert {row["format"]: row["bits"] for row in found} == bits
    made = report(digits)
    text = (made.folder / "table.md").read_text(encoding="utf-8")
    assert text.startswith(made.sentences[0].split(" [")[0])
    mean = 100 * float(next(row for row in found if row["format"] == "fp32")["test_accuracy_mean"])
    assert f"| fp32 | 32 | no | 8 | 3 | {mean:.1f} | - | - | 0 of 3 | baseline | - |" in text


def test_means_are_over_the_seeds_of_finished_runs(new_sweep, rows):
    sweep, values = new_sweep(), [0.91, 0.935, 0.92, 0.1]
    for seed, value in enumerate(values):
        sweep.add(seed=seed, accuracy=value, status="diverged" if value == 0.1 else "finished")
    sweep.add("e3m0", accuracy=0.91)
    sweep.add("e3m0", accuracy=0.91, nproc=2)  # the same run with two processes counts once
    sweep.add("e3m0", seed=9, status=None, outcome="failed", rows=[{"epoch": 1, "test_accuracy": 0.1}])
    fp32, e3m0 = rows(sweep)
    assert float(fp32["test_accuracy_mean"]) == pytest.approx(np.mean(values))
    assert float(fp32["test_accuracy_sd"]) == pytest.approx(np.std(values, ddof=1))
    assert (fp32["n"], fp32["diverged"]) == ("4", "1")
    assert (e3m0["n"], e3m0["test_accuracy_mean"], e3m0["test_accuracy_sd"]) == ("1", "0.91", "")


def test_settings_that_vary_are_axes_except_where_and_how_a_run_was_launched(new_sweep, rows):
    sweep = new_sweep()
    for seed, (width, lr) in enumerate([(8, 0.1), (16, 0.1), (8, 0.2), (16, 0.2)]):
        launched = {"nproc": 2 ** (seed % 2), "results_dir": f"elsewhere{seed}", "launcher": {"jobs": seed}}
        model = {"_target_": "cpdrun.models.convnet.ConvNet", "width": width}
        sweep.add(seed=seed, **launched, model=model, optim={"lr": lr})
    found = rows(sweep)
    assert list(found[0]) == [*CORE, "model.width", "optim.lr", *RESULT] and len(found) == 4
    models = new_sweep("models")  # the arguments that a class brings are no axes of their own
    models.add(model={"_target_": "cpdrun.models.convnet.ConvNet", "width": 16})
    models.add(model={"_target_": "cpdrun.models.resnet_cifar.ResNetCifar", "depth": 8})
    assert list(rows(models)[0]) == [*CORE, "model._target_", *RESULT]


def test_one_and_true_are_different_values(new_sweep, rows):
    sweep = new_sweep()
    sweep.add(accuracy=0.1, option=1)
    sweep.add(accuracy=0.9, option=True)
    assert len(rows(sweep)) == 2


def test_another_metric_can_be_chosen(new_sweep, report, rows):
    sweep = new_sweep()
    sweep.add(metrics={"test_loss": 0.25, "test_accuracy": 0.5})
    assert rows(sweep, metric="test_loss")[0]["test_loss_mean"] == "0.25"
    made = report(sweep, metric="test_loss")
    assert "0.2500" in made.printed and "%" not in made.sentences[0]


def test_rules_of_scaling_are_ladders_and_no_facets(new_sweep, report):
    sweep = new_sweep()
    for seed in range(2):
        sweep.add(seed=seed, accuracy=0.99)
        for rule, accuracy in (("APS", 0.98), ("Static", 0.5)):
            scaling = {"_target_": f"cpdrun.comm.sums.scaling.{rule}"}
            sweep.add("e3m0", aps=True, seed=seed, accuracy=accuracy, scaling=scaling)
            sweep.add("e3m0", aps=False, seed=seed, accuracy=0.1, scaling=scaling, epochs=3)
    made = report(sweep)
    assert [line.split()[0] for line in made.sentences] == ["OPEN:"] * 3 + ["Margin:", "fp32:"]
    assert "no format with APS (APS) is certified" in report(sweep, tolerance=1).sentences[0]
    assert len(made.table) == 4


def test_a_run_with_all_gradients_in_fp32_is_no_hybrid():
    assert hybrid({"full_precision.layers": '["*"]'}) == ""
    some = {"full_precision.layers": '["fc.*"]', "full_precision.last_epochs": 1}
    assert hybrid(some) == "layers fc.* and the last epoch"
