"""The margin: typed, asked for, or the default; relative or absolute; and margins that certify nothing."""

import math
from pathlib import Path

import pytest

from cpdrun.cli import main
from cpdrun.config.margin import parse_margin
from cpdrun.record import SweepDir, write_run
from cpdrun.record.measure import ACCURACY, ERROR, MEASURES, NATS
from cpdrun.study import ReportUsageError
from cpdrun.study.margin import Course, choose_margin
from cpdrun.study.metric import Metric
from cpdrun.study.reader import read_study

UNTRAINED = 0.0305
LOSS, SCORE, SHARE = (
    Metric("val_loss", ERROR),
    Metric("score", MEASURES["max"]),
    Metric("test_accuracy", ACCURACY),
)


def write_regression(folder, values, *, logged_from=UNTRAINED, seeds=5):
    """Write runs whose val_loss goes from `logged_from` to each value. None: it is logged once."""
    for format, value in values.items():
        for seed in range(seeds):
            noise = (
                0.0001 * math.sin(7 * seed) * (1 if format == "fp32" else -1) if value != UNTRAINED else 0.0
            )
            rows = [{"epoch": 2, "val_loss": value + noise}]
            rows[:0] = [] if logged_from is None else [{"epoch": 1, "val_loss": logged_from}]
            how = {"metrics": {"val_loss": value + noise}, "directions": {"val_loss": "lower"}, "rows": rows}
            write_run(folder, format=format, seed=seed, **how)
    return str(folder)


@pytest.fixture
def printed(capsys):
    """Run `cpdrun report` and return its exit code and output."""

    def printed(*typed):
        code = main(["report", *typed, "--format", "csv"])
        return code, "".join(capsys.readouterr())

    return printed


@pytest.fixture
def flat(tmp_path):
    """A regression in which e1m1 learned nothing: its loss is that of the untrained model in every seed."""
    return write_regression(tmp_path / "flat", {"fp32": 0.0105, "e1m1": UNTRAINED})


def test_a_format_that_learned_nothing_is_refuted(flat, printed):
    for typed in ([], ["--tol", "2%"], ["--tol", "0.0052"], ["--tol", "0.002"]):
        code, said = printed(flat, *typed)
        assert code == 0 and "CERTIFIED" not in said and "REFUTED: e1m1" in said
    assert "Margin: 0.002 (typed)." in said
    _, said = printed(flat)
    assert "Margin: 0.00021 (2% of fp32's final value 0.0105, the default)." in said
    assert "0.00021 worse than fp32" in said


def test_a_margin_of_more_than_half_of_the_improvement_certifies_nothing(flat, printed):
    for typed in ("0.05", "0.011", "100%"):
        _, said = printed(flat, "--tol", typed)
        assert "CERTIFIED" not in said and "certified" not in said
        assert "is more than half of fp32's own improvement" in said
        assert "val_loss went from 0.0305 (the first logged value) to 0.0105" in said


def test_without_a_typed_margin_a_metric_that_is_logged_once_is_not_judged(tmp_path, printed):
    folder = write_regression(tmp_path / "once", {"fp32": 0.0105, "e1m1": UNTRAINED}, logged_from=None)
    _, said = printed(folder)
    assert "OPEN: no verdict is possible without a valid margin. Nobody typed a margin" in said
    assert "REFUTED" not in said
    _, said = printed(folder, "--tol", "2%")
    assert "Margin: 0.00021 (2% of fp32's final value 0.0105, typed)." in said and "REFUTED" in said
    _, said = printed(folder, "--tol", "0.05")
    assert "CERTIFIED" not in said and "more than half of fp32's own val_loss, 0.0105" in said


def test_a_good_format_is_certified_within_a_valid_margin(tmp_path, printed):
    folder = write_regression(tmp_path / "good", {"fp32": 0.0105, "e4m3": 0.0105, "e1m1": UNTRAINED})
    _, said = printed(folder, "--tol", "5%")
    assert "CERTIFIED: e4m3" in said and "refuted" in said


def test_the_margin_of_a_sweep_may_be_a_percentage(flat):
    sweep = SweepDir(Path(flat))
    with sweep.manifest.open("a") as file:
        file.write("search: {tolerance: 5%}\n")
    study = read_study([sweep])
    assert study.tolerance == 0.000525 and "as the sweep asked" in study.margin.origin


@pytest.mark.parametrize(
    ("metric", "course", "shown"),
    [
        (LOSS, Course(0.0105, 0.0305, "the first logged value"), 0.00021),  # of the value
        (LOSS, Course(100.02, 100.52, "the first logged value"), 0.01),  # of the improvement
        (LOSS, Course(20.0, 32000.0, "a guess"), 0.4),  # a perplexity starts far from where it ends
        (LOSS, Course(-3.25, 2.0, "the first logged value"), 0.065),
        (SCORE, Course(0.9, 0.4, "the first logged value"), 0.01),
        (Metric("test_loss", NATS), Course(0.3, 2.3, "a guess"), 0.006),
        (SHARE, Course(0.97, 0.1, "a guess"), 0.5),
        (SHARE, Course(0.97, 0.969, "the first logged value"), 0.5),  # points are a unit of their own
    ],
)
def test_the_default_margin(metric, course, shown):
    margin = choose_margin(None, "typed", metric, [course], "fp32")
    assert margin.problem is None and margin.shown == shown


@pytest.mark.parametrize(
    ("asked", "metric", "course", "problem"),
    [
        (None, LOSS, Course(0.0105), "logged only once"),
        (None, LOSS, Course(0.36, 0.35, "the first logged value"), "did not improve"),
        (0.001, LOSS, Course(0.36, 0.35, "the first logged value"), "did not improve"),
        (1.2, Metric("test_loss", NATS), Course(0.3, 2.3, "a guess"), "more than half"),
        (50.0, SHARE, Course(0.97, 0.1, "a guess"), "more than half"),
        ("2%", SHARE, Course(0.97, 0.1, "a guess"), "Type the margin in points"),
        ("2%", LOSS, Course(0.0), "is 0"),
    ],
)
def test_margins_that_are_impossible(asked, metric, course, problem):
    margin = choose_margin(asked, "typed", metric, [course], "fp32")
    assert problem in margin.problem and math.isnan(margin.shown)


def test_with_several_baselines_the_smallest_relative_margin_applies():
    courses = [Course(3.0, 10.0, "a guess"), Course(2.0, 10.0, "a guess")]
    assert choose_margin("1%", "typed", LOSS, courses, "fp32").shown == 0.02


def test_a_margin_is_a_number_or_a_percentage():
    assert parse_margin("0.002") == parse_margin(0.002) == 0.002 and parse_margin("2%") == "2%"
    for text in ("", "%", "x", "-1", "0", "0%", "inf", "nan", True, None, [1]):
        with pytest.raises(ValueError, match="must be a number above 0"):
            parse_margin(text)


def test_a_mistyped_margin_is_refused(flat, printed):
    code, said = printed(flat, "--tol", "two")
    assert code == 2 and "tol=two: the margin must be a number above 0" in said
    with pytest.raises(ReportUsageError):
        read_study([SweepDir(Path(flat))], tolerance=-1)


@pytest.mark.parametrize(
    ("metric", "margin", "values", "shown"),
    [
        (LOSS, 0.0002, [0.000451, 0.000452], ["0.0004510", "0.0004520"]),  # more digits than the margin needs
        (LOSS, 0.05, [0.3512, 0.3513], ["0.3512", "0.3513"]),
        (LOSS, 0.05, [0.35120001, 0.35120002], ["0.3512", "0.3512"]),  # further digits are noise
        (LOSS, math.nan, [0.00045, 0.00046], ["0.0004500", "0.0004600"]),
        (LOSS, math.nan, [12.0, 12.0], ["12.0000", "12.0000"]),
        (SHARE, 0.5, [0.98, 0.981], ["98.0", "98.1"]),
        (SHARE, 0.02, [0.98, 0.9803], ["98.00", "98.03"]),
    ],
)
def test_values_have_enough_digits_to_differ(metric, margin, values, shown):
    assert [metric.with_digits(margin, values).show(value) for value in values] == shown
