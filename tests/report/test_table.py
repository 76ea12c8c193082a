"""table.csv and table.md against means and standard deviations computed another way."""

import csv

import numpy as np
import pytest

from cpdrun.study.axes import hybrid

pytestmark = pytest.mark.usefixtures("no_pictures")

CORE = ["format", "bits", "aps", "world_size"]
RESULT = ["n", "test_accuracy_mean", "test_accuracy_sd", "diverged"]


def rows_of(made) -> list[dict[str, str]]:
    with (made.folder / "table.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_columns_and_one_row_for_each_format_and_scaling(digits, report):
    rows = rows_of(report(digits))
    assert list(rows[0]) == CORE + RESULT
    assert len(rows) == 13
    assert len({(row["format"], row["aps"]) for row in rows}) == 13
    assert [row["aps"] for row in rows if row["format"] == "fp32"] == ["False"]
    assert {row["format"]: row["bits"] for row in rows} == {
        "fp32": "32", "e5m2": "8", "e4m3": "8", "e3m4": "8", "e4m1": "6", "e3m2": "6", "e3m0": "4",
    }  # fmt: skip


def test_mean_and_standard_deviation_are_over_the_seeds(new_sweep, report):
    values = [0.91, 0.935, 0.92, 0.97]
    sweep = new_sweep()
    for seed, value in enumerate(values):
        sweep.add(seed=seed, accuracy=value)
    (row,) = rows_of(report(sweep))
    assert float(row["test_accuracy_mean"]) == pytest.approx(np.mean(values))
    assert float(row["test_accuracy_sd"]) == pytest.approx(np.std(values, ddof=1))
    assert row["n"] == "4"


def test_one_seed_has_no_standard_deviation(new_sweep, report):
    sweep = new_sweep()
    sweep.add(accuracy=0.91)
    (row,) = rows_of(report(sweep))
    assert (row["n"], row["test_accuracy_mean"], row["test_accuracy_sd"]) == ("1", "0.91", "")


def test_diverged_runs_count_with_their_measured_value(new_sweep, report):
    sweep = new_sweep()
    sweep.add("e3m0", seed=0, accuracy=0.9)
    sweep.add("e3m0", seed=1, accuracy=0.1, status="diverged")
    (row,) = rows_of(report(sweep))
    assert (row["n"], row["diverged"]) == ("2", "1")
    assert float(row["test_accuracy_mean"]) == pytest.approx(0.5)


def test_runs_that_did_not_finish_are_in_no_mean(new_sweep, report):
    sweep = new_sweep()
    sweep.add("e3m0", seed=0, accuracy=0.9)
    sweep.add("e3m0", seed=1, status=None, outcome="failed", rows=[{"epoch": 1, "test_accuracy": 0.1}])
    (row,) = rows_of(report(sweep))
    assert (row["n"], row["test_accuracy_mean"]) == ("1", "0.9")


def test_what_varies_is_an_axis_and_what_is_display_is_not(new_sweep, report):
    sweep = new_sweep()
    for seed, (width, lr) in enumerate([(8, 0.1), (16, 0.1), (8, 0.2), (16, 0.2)]):
        sweep.add(
            seed=seed,
            nproc=2 ** (seed % 2),
            results_dir=f"elsewhere{seed}",
            launcher={"jobs": seed},
            model={"_target_": "cpdrun.models.convnet.ConvNet", "width": width},
            optim={"lr": lr},
        )
    rows = rows_of(report(sweep))
    assert list(rows[0]) == [*CORE, "model.width", "optim.lr", *RESULT]
    assert len(rows) == 4  # different configs are never averaged


def test_a_class_and_the_arguments_it_brings_are_one_axis(new_sweep, report):
    sweep = new_sweep()
    sweep.add(model={"_target_": "cpdrun.models.convnet.ConvNet", "width": 16})
    sweep.add(model={"_target_": "cpdrun.models.resnet_cifar.ResNetCifar", "depth": 8})
    assert list(rows_of(report(sweep))[0]) == [*CORE, "model._target_", *RESULT]


def test_values_that_python_calls_equal_stay_apart(new_sweep, report):
    sweep = new_sweep()
    sweep.add(accuracy=0.1, option=1)
    sweep.add(accuracy=0.9, option=True)
    assert len(rows_of(report(sweep))) == 2


def test_the_same_run_under_two_process_counts_counts_once(new_sweep, report):
    sweep = new_sweep()
    sweep.add(accuracy=0.9, nproc=1)
    sweep.add(accuracy=0.9, nproc=2)
    assert rows_of(report(sweep))[0]["n"] == "1"


def test_markdown_shows_points(digits, report):
    made = report(digits)
    text = (made.folder / "table.md").read_text(encoding="utf-8")
    assert text.startswith(made.sentences[0].split(" [")[0])
    fp32 = next(row for row in rows_of(made) if row["format"] == "fp32")
    mean = 100 * float(fp32["test_accuracy_mean"])
    assert f"| fp32 | 32 | no | 8 | 3 | {mean:.1f} | - | - | 0 of 3 | baseline | - |" in text


def test_another_metric(new_sweep, report):
    sweep = new_sweep()
    sweep.add(metrics={"test_loss": 0.25, "test_accuracy": 0.5})
    made = report(sweep, metric="test_loss")
    assert rows_of(made)[0]["test_loss_mean"] == "0.25"
    assert "0.2500" in made.printed and "%" not in made.sentences[0]


def test_scaling_rules_are_strategies_not_panels(new_sweep, report):
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


def test_a_run_whose_gradients_are_all_in_fp32_is_no_hybrid():
    assert hybrid({"full_precision.layers": '["*"]'}) == ""
    assert hybrid({"full_precision.layers": '["fc.*"]', "full_precision.last_epochs": 1}) == (
        "layers fc.* and the last epoch"
    )
