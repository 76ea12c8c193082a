"""Failed runs of a candidate count as the worst outcome. Failed runs of the baseline leave their pairs out."""

import math

import pytest
import scipy.stats

from cpdrun.report.failures_text import failure_bound_text, failures_text, identical_texts, left_out_text
from cpdrun.stats.failures import (
    Failure,
    FailureCounts,
    Runs,
    are_identical,
    compare_runs,
    full_length,
    most_failing,
)

WELL = Runs(dict.fromkeys(range(4), 0.98))


def test_a_failed_run_of_the_candidate_bars_it():
    found = compare_runs(Runs({0: 0.98, 1: 0.97}, {2: Failure.ERROR}), WELL)
    assert math.isnan(found.ours[2]) and found.is_barred
    assert failures_text(found.counts, "e4m3") == "1 of 3 runs of e4m3 failed"
    unknown = compare_runs(Runs({0: 0.98}, {2: Failure.UNKNOWN}), WELL)
    assert 2 not in unknown.ours and unknown.is_barred
    assert failures_text(unknown.counts) == "1 of 2 runs failed (1 for an unknown reason)"
    never = compare_runs(Runs({}, dict.fromkeys(range(3), Failure.ERROR)), WELL)
    assert never.is_barred and not never.ours


@pytest.mark.parametrize("failure", Failure)
def test_a_failed_run_of_the_baseline_leaves_its_pair_out(failure):
    baseline = Runs({0: 0.98, 1: 0.98}, {2: failure, 3: failure})
    found = compare_runs(Runs({0: 0.98, 1: 0.97, 2: 0.96}, {3: Failure.ERROR}), baseline)
    assert not found.is_barred and found.ours.keys() & found.baseline.keys() == {0, 1}
    assert left_out_text(found.counts) == "2 pairs left out because the baseline's run failed"


def test_a_run_that_is_shorter_than_the_baseline_stopped_early():
    baseline = Runs(WELL.values, lengths=dict.fromkeys(range(4), 12))
    found = compare_runs(Runs({0: 0.98, 1: 0.4}, lengths={0: 12, 1: 3}), baseline)
    assert math.isnan(found.ours[1]) and failures_text(found.counts) == "1 of 2 runs failed (1 stopped early)"
    short = Runs(WELL.values, lengths={0: 12, 1: 3, 2: 12, 3: 12})
    assert compare_runs(Runs({1: 0.98}, lengths={1: 12}), short).counts.left_out == 1
    assert full_length([12, 12, 3]) == 12 and full_length([37, 41, 52, 44]) == 37 and full_length([]) == 0
    any_length = Runs(WELL.values, lengths={0: 37, 1: 41, 2: 52, 3: 44})
    found = compare_runs(Runs({0: 0.98, 1: 0.97}, lengths={0: 39, 1: 5}), any_length)
    assert found.counts.stopped_early == 1 and found.ours[0] == 0.98


def test_the_limit_of_the_share_of_failures_is_clopper_pearson():
    for failed, runs in ((0, 3), (0, 100), (1, 10), (4, 4)):
        exact = scipy.stats.binomtest(failed, runs).proportion_ci(0.9, method="exact").high
        assert most_failing(failed, runs, 95) == pytest.approx(exact, abs=1e-6)
    assert failure_bound_text(FailureCounts(ended=30), 95) == (
        "0 of 30 runs failed (with 95% confidence at most 10% fail)"
    )
    assert failure_bound_text(FailureCounts(ended=10, diverged=1), 95) == (
        "1 of 10 runs failed (1 diverged) (with 95% confidence at most 39% fail)"
    )
    assert failure_bound_text(FailureCounts(), 95) == "0 of 0 runs failed"


def test_cells_with_equal_weights_in_every_seed_are_identical():
    assert are_identical({0: "a", 1: "b"}, {0: "a", 1: "b", 2: "c"})
    assert not are_identical({0: "a"}, {0: "a"}) and not are_identical({0: "a", 1: "b"}, {0: "a", 1: "x"})
    (sentence,) = identical_texts(
        {"fp32": {0: "x", 1: "y"}, "e4m3": {0: "a", 1: "b"}, "e5m2": {0: "a", 1: "b"}}
    )
    assert sentence.startswith("e4m3 and e5m2 are identical")
