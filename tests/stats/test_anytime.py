"""The anytime-valid test against scipy's noncentral t, simulation, and what it must do at the edges."""

import math
import random
from statistics import median

import pytest
import scipy.stats

from cpdrun.stats.anytime import (
    EFFECTS,
    Verdict,
    critical_t,
    critical_z,
    differences,
    judge,
    log_evidence,
    pairs_needed,
    shares,
    trace,
)


@pytest.mark.parametrize("pairs", [3, 5, 12, 30])
@pytest.mark.parametrize("z", [0.0, 0.4, 1.3, 1.6])
def test_the_evidence_is_a_mixture_of_likelihood_ratios_of_t(pairs, z):
    t = z * math.sqrt((pairs - 1) / (pairs - z * z))
    ratios = [
        scipy.stats.nct.pdf(t, pairs - 1, effect * math.sqrt(pairs)) / scipy.stats.t.pdf(t, pairs - 1)
        for effect in EFFECTS
    ]
    assert log_evidence(z, pairs) == pytest.approx(math.log(sum(ratios) / len(ratios)), abs=2e-5)


def test_the_evidence_grows_with_z_and_two_pairs_settle_nothing():
    for pairs in (2, 3, 30, 400):
        steps = [log_evidence(math.sqrt(pairs) * i / 50, pairs) for i in range(51)]
        assert steps == sorted(steps)
    assert critical_z(2, 0.05) == math.inf and critical_t(2, 0.05) == math.inf
    assert log_evidence(critical_z(9, 0.01), 9) == pytest.approx(math.log(100))


def verdicts(mean, searches, tolerance, most=30, seed=0):
    """(verdict, pairs when settled) of searches with differences of deviation 1."""
    rng, found = random.Random(seed), []
    for _ in range(searches):
        gaps = [rng.gauss(mean, 1) for _ in range(most)]
        found.append(judge(gaps, tolerance, certify=0.05, refute=0.05))
    return found


@pytest.mark.parametrize(("tolerance", "expected"), [(2.0, (4, 6)), (1.0, (9, 12))])
def test_an_equal_format_is_certified_after_few_pairs(tolerance, expected):
    found = verdicts(0.0, 60, tolerance)
    assert sum(judgement.verdict is Verdict.CERTIFIED for judgement in found) >= 0.95 * len(found)
    assert expected[0] <= median(judgement.settled_at or 31 for judgement in found) <= expected[1]


def test_a_broken_format_is_refuted_after_three_pairs_though_four_chains_share_the_error():
    certify, refute = shares(0.05, formats=3, chains=4)
    judgement = judge([-88.1, -88.7, -87.9], 1.0, certify=certify, refute=refute)
    assert judgement.verdict is Verdict.REFUTED and judgement.settled_at == 3 and judgement.more == 0


def test_what_was_settled_stays_so():
    gaps = [0.0, 0.1, -0.1, 0.05, *[-9.0] * 8]
    for n in range(4, len(gaps) + 1):
        assert judge(gaps[:n], 1.0, certify=0.05, refute=0.05).verdict is Verdict.CERTIFIED


def test_the_verdict_is_the_side_of_the_boundary_on_which_the_interval_lies():
    for judgement in verdicts(-0.7, 60, 1.0):
        certified, refuted = judgement.low >= -1.0, judgement.high <= -1.0
        assert (certified, refuted) == (
            judgement.verdict is Verdict.CERTIFIED,
            judgement.verdict is Verdict.REFUTED,
        )


def test_the_interval_covers_the_mean_after_every_pair():
    rng, missed = random.Random(1), 0
    for _ in range(150):
        gaps = [rng.gauss(0.3, 1) for _ in range(15)]
        found = judge(gaps, 1.0, certify=0.05, refute=0.05)
        missed += not found.low <= 0.3 <= found.high
    assert missed <= 0.1 * 150  # each end may miss 5 %


def test_nothing_is_known_of_one_pair_or_of_equal_differences():
    for gaps in ([], [0.0], [0.0] * 9):
        found = judge(gaps, 0.5, certify=0.05, refute=0.05)
        assert found.verdict is Verdict.OPEN and (found.low, found.high) == (-math.inf, math.inf)
        assert found.more is None and math.isnan(found.mean) == (not gaps)


def test_the_boundary_may_lie_on_either_side_of_no_difference():
    gaps = [0.3, 0.35, 0.28, 0.33, 0.31]
    for boundary, verdict in ((-0.2, "certified"), (0.2, "certified"), (0.5, "refuted"), (0.32, "open")):
        assert judge(gaps, -boundary, certify=0.05, refute=0.05).verdict == verdict
    equal = judge([0.1] * 9, -0.5, certify=0.05, refute=0.05)  # no spread was measured on that side either
    assert equal.verdict is Verdict.OPEN and trace([0.1] * 9, -0.5)[-1] == 0


def test_equal_counts_prove_as_much_as_rounding_allows():
    coarse = judge([0.0] * 3, 1 / 360, certify=0.05, refute=0.05, resolution=1 / 360)
    fine = judge([0.0] * 3, 0.01, certify=0.05, refute=0.05, resolution=1 / 10_000)
    assert coarse.verdict is Verdict.OPEN and fine.verdict is Verdict.CERTIFIED


def test_how_many_more_pairs_is_what_the_same_figures_would_take():
    gaps = [-0.2, 0.2, 0.3, -0.3]
    found = judge(gaps, 0.25, certify=0.05, refute=0.05, most_pairs=200)
    total = pairs_needed(0.25, found.deviation, certify=0.05, refute=0.05, fewest=5, most=200)
    assert found.verdict is Verdict.OPEN and found.more == total - 4
    assert judge(gaps, 0.25, certify=0.05, refute=0.05, most_pairs=8).more is None


def test_differences_are_paired_by_seed_and_diverged_runs_count_as_the_worst():
    ours = {0: 0.98, 2: math.nan, 1: 0.97, 3: math.nan, 10: 0.5}
    baseline = {0: 0.99, 1: 0.97, 2: 0.98, 3: math.nan, 4: 0.9}
    assert differences(ours, baseline, worst=0.0) == pytest.approx([-0.01, 0.0, -0.98])
    of_a_table = differences(dict.fromkeys((10.0, 2.0), 1.0), {10.0: 0.0, 2.0: 2.0}, worst=0.0)
    assert of_a_table == [-1.0, 1.0]  # seed 2 before seed 10
    losses = differences({0: 0.3, 1: math.nan}, {0: 0.2, 1: 0.2}, higher_is_better=False, worst=2.3)
    assert losses == pytest.approx([-0.1, -2.1])


def test_a_single_diverged_run_keeps_a_format_from_being_certified():
    healthy = [0.0, 0.1, -0.1, 0.05, -0.02, 0.08, 0.0, 0.1]
    found = judge([healthy[0], -98.0, *healthy[1:]], 1.0, certify=0.05, refute=0.05)
    assert found.verdict is Verdict.OPEN


def test_all_formats_of_a_width_and_all_chains_share_the_error():
    assert shares(0.05, formats=1, chains=1) == (0.05, 0.05)
    assert shares(0.06, formats=3, chains=2) == pytest.approx((0.01, 0.03))


def test_the_trace_is_the_evidence_after_each_pair():
    gaps = [0.1, -0.2, 0.15, 0.0, 0.05]
    found = trace(gaps, 1.0)
    judgement = judge(gaps, 1.0, certify=0.05, refute=0.05)
    assert max(found) * math.log(10) == pytest.approx(judgement.log_certify) and len(found) == 4
    assert trace([gap - 50 for gap in gaps], 1.0)[-1] < -1.5
    assert trace([0.0, 0.0], 1.0) == [0.0]
