"""Metrics by patterns: the number that a script printed, whatever the pattern's group stops at."""

import math

import pytest

from cpdrun.record import LoggedRow
from cpdrun.script_metrics.patterns import Patterns

USUAL = r"val loss ([0-9.]+)"


def patterns_for(metrics, **more):
    return Patterns({"metrics": metrics, "metric": None, "direction": {}} | more)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("step 5: train loss 1.5, val loss 0.25", 0.25),
        ("val loss 3.2e-05", 3.2e-05),
        ("val loss 0.41.", 0.41),
        ("val loss 7", 7.0),
        ("val loss .5 (best)", 0.5),
        ("val loss 0.5 then val loss 0.4", 0.4),
    ],
)
def test_the_complete_number_is_read(line, value):
    assert patterns_for({"val_loss": USUAL}).row(line) == LoggedRow(metrics={"val_loss": value})


@pytest.mark.parametrize("word", ["nan", "NaN", "inf", "-inf", "Infinity"])
def test_nan_and_inf_are_read_even_if_the_pattern_matches_digits_only(word):
    row = patterns_for({"val_loss": USUAL}).row(f"val loss {word}")
    assert not math.isfinite(row.metrics["val_loss"])


def test_the_last_value_of_a_line_counts():
    patterns = patterns_for({"loss": r"loss ([0-9.]+)"})
    assert math.isnan(patterns.row("loss 0.5 loss nan").metrics["loss"])
    assert patterns.row("loss nan loss 0.5").metrics["loss"] == 0.5


@pytest.mark.parametrize("line", ["val loss of nancy", "val loss", "validation loss 1.0", "val loss nano"])
def test_other_lines_have_no_value(line):
    assert patterns_for({"val_loss": USUAL}).row(line) is None


def test_numbers_with_signs_and_commas():
    patterns = patterns_for({"reward": r"reward: (\S+)", "tokens": r"tokens ([0-9,]+)"})
    assert patterns.row("reward: -1.5e3").metrics == {"reward": -1500.0}
    assert patterns.row("tokens 1,234,567").metrics == {"tokens": 1234567.0}
    assert patterns.row("reward: none") is None


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?P<x>[^()]+) is it",
        r"\(([-\d.]+)\) is it|never",
        r"(?:x|[(])?(\S+) is it",
        r"[^])]*?([^])a-z ]+) is it",
    ],
)
def test_groups_in_any_notation_are_found(pattern):
    text = "nan is it" if "\\(" not in pattern else "(nan) is it"
    assert math.isnan(patterns_for({"m": pattern}).row(text).metrics["m"])


def test_epoch_and_step_are_kept_for_later_lines():
    patterns = patterns_for({"epoch": r"epoch (\d+)", "step": r"step (\d+)", "loss": r" loss (\S+)"})
    assert patterns.row("epoch 2") is None
    assert patterns.row("step 20: loss 1.5") == LoggedRow(2.0, 20, {"loss": 1.5})
    assert patterns.row("validation: loss 1.0") == LoggedRow(2.0, 20, {"loss": 1.0})


@pytest.mark.parametrize(
    ("pattern", "line", "value"),
    [
        ("val_loss=([0-9.]+)", "val_loss=1,234.5", 1234.5),
        ("val_loss=([0-9.]+)", "val_loss=-3.25e-1", -0.325),
        ("val_loss={number}", "val_loss=-1,234,567.25 (best)", -1234567.25),
        ("val_loss={number}", "val_loss=NaN", math.nan),
        ("loss {number},", "loss 1.5,2", 1.5),
    ],
)
def test_signs_exponents_and_thousands_separators(pattern, line, value):
    assert patterns_for({"loss": pattern}).row(line).metrics["loss"] == pytest.approx(value, nan_ok=True)


@pytest.mark.parametrize(
    ("line", "metrics"),
    [
        ("val_loss=0.41", {"val_loss": 0.41}),
        ("step 5: train loss 1.5, val loss 0.25", {"train_loss": 1.5, "val_loss": 0.25}),
        (
            "| end of epoch   1 | time: 12.3s | valid loss  5.23 | valid ppl   187.1",
            {"valid_loss": 5.23, "valid_ppl": 187.1},
        ),
        ("Test set: Average loss: 0.0264, Accuracy: 9916/10000 (99%)", {"Average_loss": 0.0264}),
        ("{'eval_loss': 1.5, 'eval_runtime': 3.2, 'epoch': 1.0}", {"eval_loss": 1.5}),
        ("Epoch 3/10  loss nan", {"loss": math.nan}),
        ("====> Test set loss: 0.5", {"Test_set_loss": 0.5}),
        ("test/acc1 98.5%", {"test/acc1": 98.5}),
        ("lr 0.1 wd=1e-4 saved to loss_1.png at 12:30", None),
        ("python train.py --label-loss 3", None),
    ],
)
def test_printed_pairs_are_found_without_a_pattern(line, metrics):
    row = patterns_for({}).row(line)
    assert (row and row.metrics) == (metrics and pytest.approx(metrics, nan_ok=True))


def test_epochs_of_printed_pairs_are_kept():
    patterns = patterns_for({})
    assert patterns.row("epoch 2/3") is None
    assert patterns.row("iter 7 val_loss: 1.0") == LoggedRow(2.0, 7, {"val_loss": 1.0})


def test_a_named_metric_is_found_without_a_known_direction():
    assert patterns_for({}).row("reward 3") is None
    assert patterns_for({}, metric="reward").row("reward 3") == LoggedRow(metrics={"reward": 3.0})
