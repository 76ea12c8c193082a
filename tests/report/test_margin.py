"""The margin: typed, asked for, or the default; relative or absolute; and what is never certified under one."""

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
    """Write a sweep of runs whose val_loss goes from `logged_from` (None: is logged once) to each value."""
    for format, value in values.items():
        for seed in range(seeds):
            noise = (
                0.0 if value == UNTRAINED else 0.0001 * math.sin(7 * seed) * (1 if format == "fp32" else -1)
            )
            final = value + noise
            started = [] if logged_from is None else [{"epoch": 1, "val_loss": logged_from}]
            rows = [*started, {"epoch": 2, "val_loss": final}]
            how = {"metrics": {"val_loss": final}, "directions": {"val_loss": "lower"}, "rows": rows}
            write_run(folder, format=format, seed=seed, **how)
    return str(folder)


def ask_report(capsys, *typed):
    code = main(["report", *typed, "--format", "csv"])
    out = capsys.readouterr()
    return code, out.out + out.err


@pytest.fixture(autouse=True)
def small(no_pictures):
    """Only the words and the table matter here."""


@pytest.fixture
def flat(tmp_path):
    """A regression in which e1m1 learned nothing: its loss is that of the untrained model in every seed."""
    return write_regression(tmp_path / "flat", {"fp32": 0.0105, "e1m1": UNTRAINED})


@pytest.mark.parametrize("typed", [[], ["--tol", "2%"], ["--tol", "0.002"], ["--tol", "0.0052"]])
def test_a_format_that_learned_nothing_is_refuted(flat, capsys, typed):
    code, said = ask_report(capsys, flat, *typed)
    assert code == 0 and "CERTIFIED" not in said and "REFUTED: e1m1" in said


@pytest.mark.parametrize("typed", ["0.05", "0.03", "0.011", "100%"])
def test_a_margin_of_more_than_half_of_the_improvement_certifies_nothing(flat, capsys, typed):
    _, said = ask_report(capsys, flat, "--tol", typed)
    assert "CERTIFIED" not in said and "certified" not in said
    assert "is more than half of fp32's own improvement" in said
    assert "val_loss went from 0.0305 (the first logged value) to 0.0105" in said


def test_the_margin_and_its_origin_stand_below_the_headline_and_in_the_table(flat, capsys):
    _, said = ask_report(capsys, flat)
    assert "Margin: 0.00021 (2 % of fp32's final value 0.0105, the default)." in said
    assert "0.00021 worse than fp32" in said
    assert "Margin: 0.002 (typed)." in ask_report(capsys, flat, "--tol", "0.002")[1]


def test_without_a_typed_margin_a_metric_that_is_logged_once_is_not_judged(tmp_path, capsys):
    folder = write_regression(tmp_path / "once", {"fp32": 0.0105, "e1m1": UNTRAINED}, logged_from=None)
    _, said = ask_report(capsys, folder)
    assert (
        "OPEN: no verdict is possible without a valid margin. Nobody typed a margin" in said
        and "REFUTED" not in said
    )
    _, said = ask_report(capsys, folder, "--tol", "2%")
    assert "Margin: 0.00021 (2 % of fp32's final value 0.0105, typed)." in said and "REFUTED" in said
    _, said = ask_report(capsys, folder, "--tol", "0.05")
    assert "CERTIFIED" not in said and "more than half of fp32's own val_loss, 0.0105" in said


def test_a_good_format_is_certified_within_a_margin_that_fits(tmp_path, capsys):
    folder = write_regression(tmp_path / "good", {"fp32": 0.0105, "e4m3": 0.0105, "e1m1": UNTRAINED})
    _, said = ask_report(capsys, folder, "--tol", "5%")
    assert "CERTIFIED: e4m3" in said and "refuted" in said


def test_values_next_to_a_small_margin_can_be_told_apart(tmp_path, capsys):
    values = {"fp32": 0.00045, "e4m3": 0.00046}
    for format, value in values.items():
        for seed in range(2):
            rows = [{"epoch": 1, "val_loss": 0.5}, {"epoch": 2, "val_loss": value}]
            more = {"metrics": {"val_loss": value}, "directions": {"val_loss": "lower"}, "rows": rows}
            write_run(tmp_path / "tiny", format=format, seed=seed, **more)
    _, said = ask_report(capsys, str(tmp_path / "tiny"))
    assert "0.0004500" in said and "0.0004600" in said and "9e-06 worse than fp32" in said


def test_what_a_sweep_asked_may_be_a_percentage(flat):
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
def test_the_default(metric, course, shown):
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
def test_no_margin(asked, metric, course, problem):
    margin = choose_margin(asked, "typed", metric, [course], "fp32")
    assert problem in margin.problem and math.isnan(margin.shown)


def test_of_several_baselines_the_smallest_relative_margin_holds():
    courses = [Course(3.0, 10.0, "a guess"), Course(2.0, 10.0, "a guess")]
    assert choose_margin("1%", "typed", LOSS, courses, "fp32").shown == 0.02


def test_a_margin_is_a_number_or_a_percentage():
    assert parse_margin("0.002") == parse_margin(0.002) == 0.002 and parse_margin("2 %") == "2%"
    for text in ("", "%", "x", "-1", "0", "0%", "inf", "nan", True, None, [1]):
        with pytest.raises(ValueError, match="must be a number above 0"):
            parse_margin(text)


def test_a_mistyped_margin_is_refused(flat, capsys):
    code, said = ask_report(capsys, flat, "--tol", "two")
    assert code == 2 and "tol=two: the margin must be a number above 0" in said
    with pytest.raises(ReportUsageError):
        read_study([SweepDir(Path(flat))], tolerance=-1)


@pytest.mark.parametrize(
    ("metric", "margin", "values", "shown"),
    [
        (
            LOSS,
            0.0002,
            [0.000451, 0.000452],
            ["0.0004510", "0.0004520"],
        ),  # the margin alone needs fewer digits
        (LOSS, 0.05, [0.3512, 0.3513], ["0.3512", "0.3513"]),
        (LOSS, 0.05, [0.35120001, 0.35120002], ["0.3512", "0.3512"]),  # further digits are noise
        (LOSS, math.nan, [0.00045, 0.00046], ["0.0004500", "0.0004600"]),
        (LOSS, math.nan, [12.0, 12.0], ["12.0000", "12.0000"]),
        (SHARE, 0.5, [0.98, 0.981], ["98.0", "98.1"]),
        (SHARE, 0.02, [0.98, 0.9803], ["98.00", "98.03"]),
    ],
)
def test_values_have_enough_digits_to_be_told_apart(metric, margin, values, shown):
    assert [metric.with_digits(margin, values).show(value) for value in values] == shown
