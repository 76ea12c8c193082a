"""Compare the anytime-valid test with scipy's noncentral t, stored digits and simulations, and check its edge cases."""

import itertools
import math
import random
from statistics import median

import numpy as np
import pytest
import scipy.stats

from cpdrun.stats.evidence import (
    EFFECTS,
    NO_PRIOR,
    SpreadPrior,
    Verdict,
    critical_statistic,
    differences,
    half_width,
    judge,
    log_evidence,
    pairs_needed,
)

LEVELS = {"certify": 0.05, "refute": 0.05, "confidence": 0.95}


def statistic(x, prior):
    squares = math.fsum(value * value for value in x) + prior.degrees * prior.deviation**2
    return math.fsum(x) / math.sqrt(squares)


@pytest.mark.parametrize("degrees", [0, 1, 4])
@pytest.mark.parametrize("equal_effect", [None, 2.7])
def test_the_evidence_is_a_mixture_of_likelihood_ratios_of_t(degrees, equal_effect):
    for pairs, share in itertools.product((1, 2, 3, 12, 30), (0.0, 0.3, 0.95)):
        if not (left := pairs - 1 + degrees):
            continue
        z = share * math.sqrt(pairs)
        t = z * math.sqrt(left / (pairs - z * z))
        shifts = np.array([*EFFECTS, *([equal_effect] if equal_effect else [])]) * math.sqrt(pairs)
        ratios = scipy.stats.nct.pdf(t, left, shifts) / scipy.stats.t.pdf(t, left)
        expected = ratios[: len(EFFECTS)].mean()
        if equal_effect:
            expected = (expected + ratios[-1]) / 2
        assert log_evidence(z, pairs, degrees, equal_effect) == pytest.approx(math.log(expected), abs=2e-5)


@pytest.mark.parametrize(
    ("gaps", "margin", "resolution", "certify", "expected"),
    [
        (
            [-0.128, 0.256, -0.113, -0.158, -0.465, -0.107],
            1.0,
            0.0,
            0.05,
            ("certified", 4, 6.327332629376135, 0),
        ),
        ([-1.444, -1.788, -1.482, -1.876, -1.803], 1.0, 0.0, 0.0125, ("refuted", 4, 0, 4.601601182779983)),
        (
            [0.293, -0.633, 0.628, 0.453, 0.449, -0.646, -0.672, -0.245, -0.034],
            *(0.5, 0.4, 0.05, ("open", None, 1.7078818031400442, 0)),
        ),
    ],
)
def test_verdicts_without_a_prior(gaps, margin, resolution, certify, expected):
    levels = LEVELS | {"certify": certify}
    found = judge(gaps, margin, **levels, resolution=resolution, prior=NO_PRIOR)
    assert (found.verdict, found.settled_at, found.log_certify, found.log_refute) == expected
    assert (found.low, found.high) == (found.own_low, found.own_high)


def test_many_degrees_are_a_normal_test_with_a_known_deviation():
    x = (0.7, -0.1, 1.4, 0.9)
    for equal_effect in (None, 3.0):
        known = log_evidence(sum(x) / 0.8, len(x), math.inf, equal_effect)
        many = log_evidence(statistic(x, SpreadPrior(0.8, 40_000)), len(x), 40_000, equal_effect)
        assert many == pytest.approx(known, abs=2e-3)
    by_hand = math.log(sum(math.exp(e * sum(x) / 0.8 - 4 * e * e / 2) for e in EFFECTS) / len(EFFECTS))
    assert log_evidence(sum(x) / 0.8, 4, math.inf) == pytest.approx(by_hand)
    one = judge([0.1], 3.0, **LEVELS, prior=SpreadPrior(0.8, math.inf))
    assert one.verdict is Verdict.CERTIFIED and one.low < 0.1 < one.high < 4


@pytest.mark.parametrize("degrees", [0, 1, 4])
def test_the_unit_of_the_differences_changes_nothing(degrees):
    gaps = [0.2, -0.5, 0.9, -0.1, 0.3]

    def scaled(k):
        prior = SpreadPrior(k * 0.4, degrees)
        return judge([k * gap for gap in gaps], k * 1.2, **LEVELS, resolution=k * 0.1, prior=prior)

    one, hundred = scaled(1.0), scaled(100.0)
    assert hundred.trace == pytest.approx(one.trace)
    assert (hundred.low, hundred.high) == pytest.approx((100 * one.low, 100 * one.high))


@pytest.mark.parametrize("degrees", [0, 4])
def test_the_evidence_grows_with_every_difference_that_is_no_outlier(degrees):
    """T grows in x_i while x_i sum(x) < sum(x^2) + nu s0^2: any value that is no outlier."""
    rng = random.Random(3)
    for _ in range(15):
        x = [rng.gauss(0.8, 0.3) for _ in range(5)]
        before = judge(x, 0.0, **LEVELS, prior=SpreadPrior(0.5, degrees)).trace[-1]
        for i in range(5):
            if x[i] * sum(x) >= sum(value * value for value in x) + degrees * 0.25:
                continue
            more = [*x[:i], x[i] + 1e-6, *x[i + 1 :]]
            assert judge(more, 0.0, **LEVELS, prior=SpreadPrior(0.5, degrees)).trace[-1] >= before


def test_the_evidence_grows_with_the_statistic_and_two_pairs_without_a_prior_decide_nothing():
    for pairs, degrees in ((2, 0), (3, 0), (30, 0), (400, 0), (1, 4), (3, 4)):
        steps = [log_evidence(math.sqrt(pairs) * i / 50, pairs, degrees) for i in range(51)]
        assert steps == sorted(steps)
    assert critical_statistic(2, 0.05) == math.inf and half_width(2, 1.0, 0.05) == math.inf
    assert log_evidence(critical_statistic(9, 0.01), 9) == pytest.approx(math.log(100))
    assert log_evidence(critical_statistic(1, 0.05, 4, 3.0), 1, 4, 3.0) == pytest.approx(math.log(20))


def test_one_pair_can_refute_but_not_certify():
    found = judge([-90.0], 1.0, **LEVELS, prior=SpreadPrior(0.5, 4))
    assert found.verdict is Verdict.REFUTED and found.settled_at == 1
    assert found.low == -math.inf and -90 < found.high < -1
    found = judge([90.0], 1.0, **LEVELS, prior=SpreadPrior(0.5, 4))
    assert found.verdict is Verdict.OPEN and found.low == -math.inf and found.trace == (0.0,)
    found = judge([90.0], 1.0, **LEVELS, prior=SpreadPrior(0.5, math.inf))
    assert found.verdict is Verdict.CERTIFIED and found.low > 0


def test_a_candidate_that_is_much_noisier_than_the_others_is_not_certified():
    """Its first pair was certified with the spread of the others in decentralized_text_small."""
    found = judge([0.048, -0.035, -0.049], 0.06, **LEVELS, prior=SpreadPrior(0.006, 4))
    assert found.verdict is Verdict.OPEN and found.low < found.mean < found.high


def test_the_evidence_at_the_ends_of_the_interval_is_exactly_enough():
    gaps, prior = [0.3, -0.2, 0.5], SpreadPrior(0.4, 4)
    found = judge(gaps, 1.0, **LEVELS, prior=prior)
    for end, sign in ((found.low, 1), (found.high, -1)):
        x = [sign * (gap - end) for gap in gaps]
        at_end = log_evidence(statistic(x, prior), 3, 4, prior.effect(1.0))
        assert at_end == pytest.approx(math.log(40))


def judged(mean, searches, margin, **options):
    """Return judgments of searches whose differences have deviation 1."""
    rng = random.Random(0)
    return [
        judge([rng.gauss(mean, 1) for _ in range(30)], margin, **LEVELS | options) for _ in range(searches)
    ]


@pytest.mark.parametrize(
    ("margin", "degrees", "expected"), [(2.0, 0, (4, 6)), (1.0, 0, (9, 12)), (2.0, 4, (3, 4))]
)
def test_an_equal_format_is_certified_after_few_pairs(margin, degrees, expected):
    found = judged(0.0, 60, margin, prior=SpreadPrior(1.0, degrees))
    assert sum(judgment.verdict is Verdict.CERTIFIED for judgment in found) >= 0.95 * len(found)
    assert expected[0] <= median(judgment.settled_at or 31 for judgment in found) <= expected[1]


def test_a_broken_format_is_refuted_after_three_pairs_even_if_four_ladders_share_the_error():
    judgment = judge([-88.1, -88.7, -87.9], 1.0, certify=0.05 / 12, refute=0.05 / 4, confidence=0.95)
    assert judgment.verdict is Verdict.REFUTED and judgment.settled_at == 3 and not judgment.more.likely


def test_a_verdict_never_changes_after_it_was_reached():
    gaps = [0.0, 0.1, -0.1, 0.05, *[-9.0] * 8]
    for n in range(4, len(gaps) + 1):
        assert judge(gaps[:n], 1.0, **LEVELS).verdict is Verdict.CERTIFIED


@pytest.mark.parametrize("degrees", [0, 4])
def test_with_equal_levels_the_verdict_says_where_the_interval_lies(degrees):
    for found in judged(-0.7, 40, 1.0, confidence=0.9, prior=SpreadPrior(1.0, degrees)):
        expected = "certified" if found.low >= -1.0 else "refuted" if found.high <= -1.0 else "open"
        assert found.verdict == expected


@pytest.mark.parametrize("degrees", [0, 4])
def test_the_interval_covers_the_mean_after_every_pair(degrees):
    rng, missed = random.Random(1), 0
    for _ in range(200):
        gaps = [rng.gauss(0.3, 1) for _ in range(15)]
        found = judge(gaps, 1.0, **LEVELS, prior=SpreadPrior(1.0, degrees))
        missed += not found.low <= 0.3 <= found.high
    assert missed <= 0.05 * 200


def test_one_pair_or_equal_differences_decide_nothing():
    for gaps in ([], [0.0], [0.0] * 9):
        found = judge(gaps, 0.5, **LEVELS)
        assert found.verdict is Verdict.OPEN and (found.low, found.high) == (-math.inf, math.inf)
        assert found.more is None and math.isnan(found.mean) == (not gaps)
        assert not any(found.trace)


def test_the_boundary_may_lie_on_either_side_of_no_difference():
    gaps = [0.3, 0.35, 0.28, 0.33, 0.31]
    for boundary, verdict in ((-0.2, "certified"), (0.2, "certified"), (0.5, "refuted"), (0.32, "open")):
        assert judge(gaps, -boundary, **LEVELS).verdict == verdict
    equal = judge([0.1] * 9, -0.5, **LEVELS)  # no spread was measured on that side either
    assert equal.verdict is Verdict.OPEN and equal.trace[-1] == 0


def test_equal_differences_prove_as_much_as_their_resolution_allows():
    coarse = judge([0.0] * 3, 1 / 360, **LEVELS, resolution=1 / 360)
    fine = judge([0.0] * 3, 0.01, **LEVELS, resolution=1 / 10_000)
    assert coarse.verdict is Verdict.OPEN and fine.verdict is Verdict.CERTIFIED


def test_the_forecast_of_more_pairs_assumes_the_same_mean_and_spread():
    gaps = [-0.2, 0.2, 0.3, -0.3]
    found = judge(gaps, 0.25, **LEVELS, most_pairs=200)
    total = pairs_needed(0.25, found.deviation, certify=0.05, refute=0.05, fewest=5, most=200)
    assert found.verdict is Verdict.OPEN and found.more.likely == total - 4
    assert found.more.low < found.more.likely < found.more.high
    assert judge(gaps, 0.25, **LEVELS, most_pairs=8).more is None
    assert judge([0.1], 0.25, **LEVELS, prior=SpreadPrior(0.3, 4)).more.likely > 1


def test_differences_are_paired_by_seed_and_diverged_runs_count_as_the_worst():
    ours = {0: 0.98, 2: math.nan, 1: 0.97, 3: math.nan, 10: 0.5}
    baseline = {0: 0.99, 1: 0.97, 2: 0.98, 3: math.nan, 4: 0.9}
    assert differences(ours, baseline, worst=0.0) == pytest.approx([-0.01, 0.0, -0.98])
    of_a_table = differences(dict.fromkeys((10.0, 2.0), 1.0), {10.0: 0.0, 2.0: 2.0}, worst=0.0)
    assert of_a_table == [-1.0, 1.0]  # seed 2 before seed 10
    losses = differences({0: 0.3, 1: math.nan}, {0: 0.2, 1: 0.2}, higher_is_better=False, worst=2.3)
    assert losses == pytest.approx([-0.1, -2.1])


def test_one_diverged_run_prevents_a_certificate():
    assert judge([0.0, -98.0, 0.1, -0.1, 0.05, -0.02, 0.08, 0.0, 0.1], 1.0, **LEVELS).verdict is Verdict.OPEN


def test_the_trace_is_the_evidence_after_each_pair():
    gaps = [0.1, -0.2, 0.15, 0.0, 0.05]
    found = judge(gaps, 1.0, **LEVELS)
    assert len(found.trace) == 5 and not found.trace[0]
    assert max(found.trace) * math.log(10) == pytest.approx(found.log_certify)
    assert judge([gap - 50 for gap in gaps], 1.0, **LEVELS).trace[-1] < -1.5
