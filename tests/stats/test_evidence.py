"""The anytime-valid test against scipy's noncentral t, stored digits, simulation, and what it must do at the edges."""

import math
import random
from statistics import median

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


def single_effect(monkeypatch, effect):
    monkeypatch.setattr("cpdrun.stats.evidence.EFFECTS", (effect,))


@pytest.mark.parametrize(
    ("x", "degrees", "effect", "expected"),
    [
        ((0.8257, 0.5679, 1.3404), 0, 1.0, 1.82288),
        ((0.8049, 0.1643, 1.0616), 4, 2.0, -0.498829),
        ((2.0040, 1.6471, -0.0037, -0.5654, 0.0767, 0.7413), 8, 0.5, 1.227618),
    ],
)
def test_the_likelihood_ratio_has_the_digits_of_three_independent_computations(
    monkeypatch, x, degrees, effect, expected
):
    """The values of x are rounded to four digits, which moves the result by at most 1e-4 here."""
    single_effect(monkeypatch, effect)
    found = log_evidence(statistic(x, SpreadPrior(0.9, degrees)), len(x), degrees)
    left, mean = len(x) - 1 + degrees, sum(x) / len(x)
    squares = sum((value - mean) ** 2 for value in x) + degrees * 0.9**2
    t, shift = mean * math.sqrt(len(x) * left / squares), effect * math.sqrt(len(x))
    exact = scipy.stats.nct.logpdf(t, left, shift) - scipy.stats.t.logpdf(t, left)
    assert found == pytest.approx(exact, abs=1e-9) and found == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("pairs", [1, 2, 3, 5, 12, 30])
@pytest.mark.parametrize("degrees", [0, 1, 4])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.8, 0.95])
@pytest.mark.parametrize("equal_effect", [None, 2.7])
def test_the_evidence_is_a_mixture_of_likelihood_ratios_of_t(pairs, degrees, share, equal_effect):
    left = pairs - 1 + degrees
    if not left:
        return
    z = share * math.sqrt(pairs)
    t = z * math.sqrt(left / (pairs - z * z))

    def ratio(effect):
        return scipy.stats.nct.pdf(t, left, effect * math.sqrt(pairs)) / scipy.stats.t.pdf(t, left)

    expected = sum(map(ratio, EFFECTS)) / len(EFFECTS)
    if equal_effect:
        expected = (expected + ratio(equal_effect)) / 2
    assert log_evidence(z, pairs, degrees, equal_effect) == pytest.approx(math.log(expected), abs=2e-5)


@pytest.mark.parametrize(
    ("gaps", "margin", "resolution", "certify", "refute", "expected"),
    [
        (
            [-0.128, 0.256, -0.113, -0.158, -0.465, -0.107],
            *(1.0, 0.0, 0.05, 0.05),
            ("certified", 4, 6.327332629376135, 0.0),
        ),
        (
            [-1.444, -1.788, -1.482, -1.876, -1.803],
            *(1.0, 0.0, 0.0125, 0.05),
            ("refuted", 4, 0.0, 4.601601182779983),
        ),
        (
            [0.293, -0.633, 0.628, 0.453, 0.449, -0.646, -0.672, -0.245, -0.034],
            *(0.5, 0.4, 0.05, 0.05),
            ("open", None, 1.7078818031400442, 0.0),
        ),
    ],
)
def test_without_a_prior_verdicts_are_those_of_the_test_before_it(
    gaps, margin, resolution, certify, refute, expected
):
    found = judge(
        gaps, margin, certify=certify, refute=refute, confidence=0.95, resolution=resolution, prior=NO_PRIOR
    )
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
def test_the_unit_does_not_matter(degrees):
    gaps = [0.2, -0.5, 0.9, -0.1, 0.3]
    of = [
        judge(
            [k * gap for gap in gaps],
            k * 1.2,
            **LEVELS,
            resolution=k * 0.1,
            prior=SpreadPrior(k * 0.4, degrees),
        )
        for k in (1.0, 100.0)
    ]
    assert of[1].trace == pytest.approx(of[0].trace)
    assert (of[1].low, of[1].high) == pytest.approx((100 * of[0].low, 100 * of[0].high))


@pytest.mark.parametrize("degrees", [0, 4])
def test_the_evidence_grows_with_every_difference_below_which_it_is_concave(degrees):
    """T grows in x_i while x_i sum(x) < sum(x^2) + nu s0^2: any value that does not stand out."""
    rng = random.Random(3)
    for _ in range(50):
        x = [rng.gauss(0.8, 0.3) for _ in range(5)]
        before = judge(x, 0.0, **LEVELS, prior=SpreadPrior(0.5, degrees)).trace[-1]
        for i in range(5):
            if x[i] * sum(x) >= sum(value * value for value in x) + degrees * 0.25:
                continue
            more = [*x[:i], x[i] + 1e-6, *x[i + 1 :]]
            assert judge(more, 0.0, **LEVELS, prior=SpreadPrior(0.5, degrees)).trace[-1] >= before


def test_the_evidence_grows_with_the_statistic_and_two_pairs_without_a_prior_settle_nothing():
    for pairs, degrees in ((2, 0), (3, 0), (30, 0), (400, 0), (1, 4), (3, 4)):
        steps = [log_evidence(math.sqrt(pairs) * i / 50, pairs, degrees) for i in range(51)]
        assert steps == sorted(steps)
    assert critical_statistic(2, 0.05) == math.inf and half_width(2, 1.0, 0.05) == math.inf
    assert log_evidence(critical_statistic(9, 0.01), 9) == pytest.approx(math.log(100))
    assert log_evidence(critical_statistic(1, 0.05, 4, 3.0), 1, 4, 3.0) == pytest.approx(math.log(20))


def test_the_first_pair_counts_if_the_deviation_of_others_is_known():
    found = judge([-90.0], 1.0, **LEVELS, prior=SpreadPrior(0.5, 4))
    assert found.verdict is Verdict.REFUTED and found.settled_at == 1
    assert found.low < -90 < found.high < -1 and found.own_low == -math.inf


def test_the_interval_is_where_the_evidence_is_not_enough():
    gaps, prior = [0.3, -0.2, 0.5], SpreadPrior(0.4, 4)
    found = judge(gaps, 1.0, **LEVELS, prior=prior)
    for end, sign in ((found.low, 1), (found.high, -1)):
        x = [sign * (gap - end) for gap in gaps]
        at_end = log_evidence(statistic(x, prior), 3, 4, prior.effect(1.0))
        assert at_end == pytest.approx(math.log(40))


def judged(mean, searches, margin, most=30, seed=0, **options):
    """Judgements of searches with differences of deviation 1."""
    rng = random.Random(seed)
    return [
        judge([rng.gauss(mean, 1) for _ in range(most)], margin, **LEVELS | options) for _ in range(searches)
    ]


@pytest.mark.parametrize(
    ("margin", "degrees", "expected"), [(2.0, 0, (4, 6)), (1.0, 0, (9, 12)), (2.0, 4, (3, 4))]
)
def test_an_equal_format_is_certified_after_few_pairs(margin, degrees, expected):
    found = judged(0.0, 60, margin, prior=SpreadPrior(1.0, degrees))
    assert sum(judgement.verdict is Verdict.CERTIFIED for judgement in found) >= 0.95 * len(found)
    assert expected[0] <= median(judgement.settled_at or 31 for judgement in found) <= expected[1]


def test_a_broken_format_is_refuted_after_three_pairs_though_four_ladders_share_the_error():
    judgement = judge([-88.1, -88.7, -87.9], 1.0, certify=0.05 / 12, refute=0.05 / 4, confidence=0.95)
    assert judgement.verdict is Verdict.REFUTED and judgement.settled_at == 3 and not judgement.more.likely


def test_what_was_settled_stays_so():
    gaps = [0.0, 0.1, -0.1, 0.05, *[-9.0] * 8]
    for n in range(4, len(gaps) + 1):
        assert judge(gaps[:n], 1.0, **LEVELS).verdict is Verdict.CERTIFIED


@pytest.mark.parametrize("degrees", [0, 4])
def test_at_one_level_the_verdict_is_the_side_on_which_the_interval_lies(degrees):
    for found in judged(-0.7, 60, 1.0, confidence=0.9, prior=SpreadPrior(1.0, degrees)):
        certified, refuted = found.low >= -1.0, found.high <= -1.0
        assert (certified, refuted) == (found.verdict is Verdict.CERTIFIED, found.verdict is Verdict.REFUTED)


@pytest.mark.parametrize("degrees", [0, 4])
def test_the_interval_covers_the_mean_after_every_pair(degrees):
    rng, missed = random.Random(1), 0
    for _ in range(200):
        gaps = [rng.gauss(0.3, 1) for _ in range(15)]
        found = judge(gaps, 1.0, **LEVELS, prior=SpreadPrior(1.0, degrees))
        missed += not found.low <= 0.3 <= found.high
    assert missed <= 0.05 * 200


def test_nothing_is_known_of_one_pair_or_of_equal_differences():
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


def test_equal_counts_prove_as_much_as_rounding_allows():
    coarse = judge([0.0] * 3, 1 / 360, **LEVELS, resolution=1 / 360)
    fine = judge([0.0] * 3, 0.01, **LEVELS, resolution=1 / 10_000)
    assert coarse.verdict is Verdict.OPEN and fine.verdict is Verdict.CERTIFIED


def test_how_many_more_pairs_is_what_the_same_figures_would_take():
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


def test_a_single_diverged_run_keeps_a_format_from_being_certified():
    healthy = [0.0, 0.1, -0.1, 0.05, -0.02, 0.08, 0.0, 0.1]
    found = judge([healthy[0], -98.0, *healthy[1:]], 1.0, **LEVELS)
    assert found.verdict is Verdict.OPEN


def test_the_trace_is_the_evidence_after_each_pair():
    gaps = [0.1, -0.2, 0.15, 0.0, 0.05]
    found = judge(gaps, 1.0, **LEVELS)
    assert len(found.trace) == 5 and not found.trace[0]
    assert max(found.trace) * math.log(10) == pytest.approx(found.log_certify)
    assert judge([gap - 50 for gap in gaps], 1.0, **LEVELS).trace[-1] < -1.5
