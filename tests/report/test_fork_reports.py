"""The gap over the steps of runs that start from a checkpoint, from made-up losses."""

import math
import random

import pytest

from cpdrun.report.page import pictures
from cpdrun.study.fork_test import Trend, fork_tests
from cpdrun.study.reader import read_study

CHECKPOINT = {"init_from": "/data/last.pt", "init_sha256": "0" * 64}
STEPS = 40
GROWING, CONSTANT, SHRINKING = "e2m0", "e3m0", "e4m0"
# The gap of the loss to the baseline at the first step, and its growth over all steps.
GAPS = {"fp32": (0, 0), GROWING: (0.1, 0.2), CONSTANT: (0.05, 0), SHRINKING: (0.05, -0.2)}


def losses(format, seed, noise=0.002):
    first, growth = GAPS[format]
    batches, own = random.Random(f"{seed}"), random.Random(f"{format} {seed}")
    return [
        2 + batches.gauss(0, 0.1) + first + growth * i / (STEPS - 1) + own.gauss(0, noise)
        for i in range(STEPS)
    ]


def as_ours(values):
    """Two epochs, as our training loop records them."""
    half = len(values) // 2
    return [
        {"epoch": 1, "step": half, "train_loss": 2.0, "test_accuracy": 0.97, "step_losses": values[:half]},
        {"epoch": 2, "step": STEPS, "train_loss": 2.0, "test_accuracy": 0.98, "step_losses": values[half:]},
    ]


def as_of_script(values):
    """A resumed script, which counts on from step 1000 and logs one of its first steps twice."""
    rows = [{"step": 1001, "train_loss": 9.0}]
    return [*rows, *({"step": 1001 + i, "train_loss": loss} for i, loss in enumerate(values))]


def fill(sweep, write=as_ours, seeds=5, **config):
    for format in GAPS:
        for seed in range(seeds):
            sweep.add(format, seed=seed, rows=write(losses(format, seed)), **CHECKPOINT | config)
    return sweep


def only(sweep):
    (found,) = fork_tests(read_study([sweep.dir]))
    return found


@pytest.mark.parametrize(("write", "first"), [(as_ours, 1), (as_of_script, 1001)])
def test_gaps_and_growth_are_those_of_the_losses(new_sweep, write, first):
    found = only(fill(new_sweep(), write))
    assert (found.checkpoint, found.metric, found.baseline) == ("/data/last.pt", "train_loss", "fp32")
    assert found.steps == [(first + 10 * i, first + 10 * i + 9) for i in range(4)]
    by_format = {each.candidate.split()[0]: each for each in found.candidates}
    assert by_format.keys() == GAPS.keys() - {"fp32"}
    for format, each in by_format.items():
        start, growth = GAPS[format]
        for part, gap in enumerate(each.parts):
            expected = -(start + growth * (4.5 + 10 * part) / (STEPS - 1))  # negative is worse
            assert gap.mean == pytest.approx(expected, abs=0.002) and gap.low < gap.mean < gap.high
        assert each.growth.mean == pytest.approx(-growth, abs=0.004) and each.pairs == 5
    trends = {format: each.trend for format, each in by_format.items()}
    assert trends == {GROWING: Trend.WORSENS, CONSTANT: Trend.UNKNOWN, SHRINKING: Trend.IMPROVES}


def test_the_control_is_the_difference_of_two_forks_of_the_baseline(new_sweep):
    """The batches have a deviation of .1, so means of 10 steps have .1 / sqrt(10), and differ by sqrt(2) times this."""
    control = only(fill(new_sweep(), seeds=12)).control
    assert control.seeds == 12
    assert control.parts == pytest.approx([math.sqrt(2 / 10) * 0.1] * 4, rel=0.6)
    sweep = new_sweep("one")
    sweep.add("fp32", rows=as_ours(losses("fp32", 0)), **CHECKPOINT)
    sweep.add(CONSTANT, rows=as_ours(losses(CONSTANT, 0)), **CHECKPOINT)
    assert only(sweep).control is None


def test_a_loss_that_is_not_finite_leaves_its_pair_out(new_sweep):
    sweep = fill(new_sweep(), seeds=4)
    for format in ("fp32", GROWING):
        values = losses(format, 4)
        values = values if format == "fp32" else [*values[:-1], math.nan]
        sweep.add(format, seed=4, rows=as_ours(values), **CHECKPOINT)
    found = {each.candidate.split()[0]: each for each in only(sweep).candidates}
    assert (found[GROWING].pairs, found[GROWING].left_out) == (4, 1)
    assert (found[CONSTANT].pairs, found[CONSTANT].left_out) == (4, 0)


def test_runs_without_a_checkpoint_or_without_losses_have_no_fork_test(new_sweep):
    study = read_study([fill(new_sweep("random"), init_from=None, init_sha256=None).dir])
    assert fork_tests(study) == []
    rows = [{"epoch": 1, "step": STEPS, "train_loss": 2.0}]
    assert fork_tests(read_study([fill(new_sweep("older"), lambda _: rows).dir])) == []


def test_the_report_of_a_fork_test(new_sweep, report, snapshot):
    made = report(fill(new_sweep()), formats=("md", "csv", "html"))
    begin = made.printed.index("Fork test: ")
    lines = made.printed[begin:].partition("Open ")[0].splitlines()
    snapshot("fork_test", "\n".join(line.rstrip() for line in lines))
    folder = next(file.parent for file in made.files)
    table = (folder / "fork_test.csv").read_text().splitlines()
    assert table[0] == "setting,baseline,metric,candidate,pairs,part,first_step,last_step,mean,low,high"
    assert len(table) == 1 + 4 * 5  # three candidates and the control
    assert "Gap over the steps" in (folder / "report.html").read_text()
    report(fill(new_sweep("random"), init_from=None, init_sha256=None))


@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize("seeds", [1, 2, 5])
def test_the_picture_is_drawn_with_and_without_intervals(new_sweep, seeds):
    study = read_study([fill(new_sweep(), seeds=seeds).dir])
    figure = pictures.draw_one(study, "fork_test")
    (axes,) = figure.axes
    low, high = axes.get_ylim()
    assert -1 < low < -0.29 and 0.1 < high < 1  # all gaps are inside, and infinite ends change nothing
