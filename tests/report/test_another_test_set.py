"""The gap on another test set, computed from the examples that the runs answered correctly."""

import numpy as np
import pytest

from cpdrun.record import ExampleOutcomes, write_example_outcomes
from cpdrun.study.reader import read_study
from cpdrun.study.test_set import finite_test_set

SAMPLES = 360


@pytest.fixture
def answered(new_sweep):
    """Make a sweep of fp32 and e3m0, 4 seeds, and the difference of the two on each example and seed."""
    sweep, differences, rng = new_sweep(), [], np.random.default_rng(0)
    hard_N = rng.random(SAMPLES) < 0.1
    for seed in range(4):
        right = {}
        for format, chance in (("fp32", 0.5), ("e3m0", 0.4)):
            right[format] = rng.random(SAMPLES) < np.where(hard_N, chance, 0.999)
            add(sweep, format, seed, right[format])
        differences.append(right["e3m0"].astype(int) - right["fp32"])
    return sweep, np.array(differences)


def add(sweep, format, seed, right_N):
    done = {"test_samples": len(right_N), "num_classes": 10}
    run = sweep.add(format, seed=seed, accuracy=right_N.mean(), done=done)
    bits = np.packbits(right_N).tobytes()
    write_example_outcomes(run, ExampleOutcomes("test_accuracy", len(right_N), "0" * 64, bits))


def compared(sweep):
    study = read_study([sweep.dir])
    (candidate,) = study.judged
    return study, candidate


def test_the_error_of_the_test_set_is_that_of_the_recorded_examples(answered, report):
    sweep, d_SxN = answered
    study, group = compared(sweep)
    found = finite_test_set(study, group)
    mean_N = d_SxN.mean(axis=0)
    error = np.sqrt(((mean_N - mean_N.mean()) ** 2).sum()) / SAMPLES
    assert (found.samples, found.pairs) == (SAMPLES, 4)
    mean = study.judged[group].judgment.mean
    assert found.error.mean == pytest.approx(mean) == pytest.approx(mean_N.mean())
    assert found.error.standard_error == pytest.approx(error) and 0 <= found.error.lasting < error
    assert (found.high - found.low) / 2 == pytest.approx(1.959964 * np.sqrt(2) * error)
    assert all(finite_test_set(study, each) is None for each in study.groups if each.is_baseline)
    low, high = (study.metric.show_gap(end) for end in (found.low, found.high))
    said = "On another test set of 360 samples the gap of e3m0 without APS would be between"
    assert f"{said} {low} and {high} points (95%)." in report(sweep).answers[1]


def without_outcomes(sweep):
    next(sweep.dir.runs()).example_outcomes.unlink()


def damaged_outcomes(sweep):
    next(sweep.dir.runs()).example_outcomes.write_bytes(b"nonsense")


def another_test_set(sweep):
    path = next(sweep.dir.runs()).example_outcomes
    path.write_bytes(path.read_bytes().replace(b"0" * 64, b"1" * 64))


def failed_run(sweep):
    sweep.add("e3m0", seed=9, status=None, outcome="failed")
    sweep.add("fp32", seed=9)


@pytest.mark.parametrize("change", [without_outcomes, damaged_outcomes, another_test_set, failed_run])
def test_there_is_no_interval_unless_all_runs_answered_the_same_examples(answered, change):
    sweep, _ = answered
    change(sweep)
    assert finite_test_set(*compared(sweep)) is None


def test_equal_answers_give_no_interval(new_sweep, report):
    sweep = new_sweep()
    for format in ("fp32", "e3m0"):
        for seed in range(3):
            add(sweep, format, seed, np.ones(8, bool))
    found = finite_test_set(*compared(sweep))
    assert found.error.standard_error == 0 and np.isnan(found.low)
    assert "another test set" not in report(sweep).printed
