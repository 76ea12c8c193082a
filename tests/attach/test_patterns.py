"""Metrics by patterns: the number that a script printed, whatever the pattern's group stops at."""

import math

import pytest

from cpdrun.attach.watched.patterns import Patterns
from cpdrun.record import LoggedRow

USUAL = r"val loss ([0-9.]+)"


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
def test_the_whole_number_counts(line, value):
    assert Patterns({"val_loss": USUAL}).row(line) == LoggedRow(metrics={"val_loss": value})


@pytest.mark.parametrize("word", ["nan", "NaN", "inf", "-inf", "Infinity"])
def test_a_diverged_loss_is_seen_though_the_pattern_takes_digits_alone(word):
    row = Patterns({"val_loss": USUAL}).row(f"val loss {word}")
    assert not math.isfinite(row.metrics["val_loss"])


def test_the_last_in_a_line_counts_whether_it_is_finite_or_not():
    patterns = Patterns({"loss": r"loss ([0-9.]+)"})
    assert math.isnan(patterns.row("loss 0.5 loss nan").metrics["loss"])
    assert patterns.row("loss nan loss 0.5").metrics["loss"] == 0.5


@pytest.mark.parametrize("line", ["val loss of nancy", "val loss", "validation loss 1.0", "val loss nano"])
def test_other_lines_have_no_value(line):
    assert Patterns({"val_loss": USUAL}).row(line) is None


def test_numbers_with_signs_and_commas():
    patterns = Patterns({"reward": r"reward: (\S+)", "tokens": r"tokens ([0-9,]+)"})
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
def test_groups_of_any_writing_are_found(pattern):
    text = "nan is it" if "\\(" not in pattern else "(nan) is it"
    assert math.isnan(Patterns({"m": pattern}).row(text).metrics["m"])


def test_epoch_and_step_stay_until_they_are_seen_again():
    patterns = Patterns({"epoch": r"epoch (\d+)", "step": r"step (\d+)", "loss": r" loss (\S+)"})
    assert patterns.row("epoch 2") is None
    assert patterns.row("step 20: loss 1.5") == LoggedRow(2.0, 20, {"loss": 1.5})
    assert patterns.row("validation: loss 1.0") == LoggedRow(2.0, 20, {"loss": 1.0})
