"""How failed runs count: as the worst outcome if they are the candidate's, not at all if they are the baseline's."""

import math

import pytest

from cpdrun.report.failures_text import failure_bound_text, failures_text, identical_texts, left_out_text
from cpdrun.stats.failures import Failure, FailureCounts, Runs, are_identical, compare_runs, full_length

WELL = Runs(dict.fromkeys(range(4), 0.98))


def test_an_error_of_the_candidate_counts_as_the_worst_and_bars_it():
    found = compare_runs(Runs({0: 0.98, 1: 0.97}, {2: Failure.ERROR}), WELL)
    assert math.isnan(found.ours[2]) and found.is_barred
    assert failures_text(found.counts, "e4m3") == "1 of 3 runs of e4m3 failed"


def test_an_unknown_end_bars_and_has_no_value():
    found = compare_runs(Runs({0: 0.98}, {2: Failure.UNKNOWN}), WELL)
    assert 2 not in found.ours and found.is_barred
    assert failures_text(found.counts) == "1 of 2 runs failed (1 for an unknown reason)"


@pytest.mark.parametrize("failure", Failure)
def test_a_failed_baseline_leaves_its_pair_out_and_is_said(failure):
    baseline = Runs({0: 0.98, 1: 0.98}, {2: failure, 3: failure})
    found = compare_runs(Runs({0: 0.98, 1: 0.97, 2: 0.96}, {3: Failure.ERROR}), baseline)
    assert not found.is_barred and found.ours.keys() & found.baseline.keys() == {0, 1}
    assert left_out_text(found.counts) == "2 pairs left out because the baseline's run failed"


def test_a_run_that_is_shorter_than_its_baseline_stopped_early():
    baseline = Runs(WELL.values, lengths=dict.fromkeys(range(4), 12))
    found = compare_runs(Runs({0: 0.98, 1: 0.4}, lengths={0: 12, 1: 3}), baseline)
    assert math.isnan(found.ours[1]) and failures_text(found.counts) == "1 of 2 runs failed (1 stopped early)"
    short = Runs(WELL.values, lengths={0: 12, 1: 3, 2: 12, 3: 12})
    assert compare_runs(Runs({1: 0.98}, lengths={1: 12}), short).counts.left_out == 1


def test_programs_that_stop_when_they_like_have_failed_only_if_shorter_than_all_of_the_baseline():
    assert full_length([12, 12, 3]) == 12 and full_length([37, 41, 52, 44]) == 37 and full_length([]) == 0
    lengths = {0: 37, 1: 41, 2: 52, 3: 44}
    found = compare_runs(Runs({0: 0.98, 1: 0.97}, lengths={0: 39, 1: 5}), Runs(WELL.values, lengths=lengths))
    assert found.counts.stopped_early == 1 and found.ours[0] == 0.98


def test_a_candidate_that_never_ended_well_has_no_pairs():
    found = compare_runs(Runs({}, dict.fromkeys(range(3), Failure.ERROR)), WELL)
    assert found.is_barred and not found.ours


@pytest.mark.parametrize(("runs", "share"), [(3, 63), (4, 53), (9, 28), (30, 10)])
def test_the_failure_bound(runs, share):
    text = failure_bound_text(FailureCounts(ended=runs), 95)
    assert text == f"0 of {runs} runs failed (with 95 % confidence at most {share} % fail)"
    assert 100 * (1 - 0.05 ** (1 / runs)) == pytest.approx(share, abs=0.5)


def test_the_bound_is_said_of_runs_that_failed_too():
    text = failure_bound_text(FailureCounts(ended=10, diverged=1), 95)
    assert text == "1 of 10 runs failed (1 diverged) (with 95 % confidence at most 39 % fail)"
    assert (
        failure_bound_text(FailureCounts(), 95) == "0 of 0 runs failed"
        and FailureCounts().at_most(95) is None
    )


def test_cells_that_are_equal_bit_for_bit_are_identical():
    assert are_identical({0: "a", 1: "b"}, {0: "a", 1: "b", 2: "c"})
    assert not are_identical({0: "a"}, {0: "a"}) and not are_identical({0: "a", 1: "b"}, {0: "a", 1: "x"})
    cells = {"fp32": {0: "x", 1: "y"}, "e4m3": {0: "a", 1: "b"}, "e5m2": {0: "a", 1: "b"}}
    (sentence,) = identical_texts(cells)
    assert sentence.startswith("e4m3 and e5m2 are identical")
