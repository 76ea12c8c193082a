"""Test `every`, `most` and `some` of several comparisons: examples, and the rate of wrong verdicts."""

import random

import pytest
from research.claims.quantified_claims import QUANTIFIERS, must_hold, shares, verdict

from cpdrun.stats.evidence import Verdict, judge

C, R, N = Verdict.CERTIFIED, Verdict.REFUTED, Verdict.OPEN


@pytest.mark.parametrize(
    ("quantifier", "comparisons", "certify", "refute"),
    [("every", 4, 1, 4), ("some", 4, 4, 1), ("most", 4, 2, 3), ("most", 5, 3, 3), ("most", 1, 1, 1)],
)
def test_comparisons_that_must_be_wrong_share_the_error_probability(quantifier, comparisons, certify, refute):
    assert shares(0.05, quantifier, comparisons) == pytest.approx((0.05 / certify, 0.05 / refute))


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([C, C, C, C], (C, C, C)),
        ([C, C, C, N], (N, C, C)),
        ([C, C, R, R], (R, R, C)),
        ([C, C, N, R], (R, N, C)),
        ([N, N, N, N], (N, N, N)),
        ([R, R, R, N], (R, R, N)),
        ([R, R, R, R], (R, R, R)),
        ([], (N, N, N)),
    ],
)
def test_each_quantifier_requires_its_number_of_comparisons(verdicts, expected):
    assert tuple(verdict(quantifier, verdicts) for quantifier in QUANTIFIERS) == expected


@pytest.mark.parametrize("quantifier", QUANTIFIERS)
@pytest.mark.parametrize("is_true", [False, True])
def test_a_claim_at_the_boundary_is_judged_wrongly_at_most_as_often_as_allowed(quantifier, is_true):
    """Of four comparisons, as many as must hold, or one fewer, hold clearly. The others are at the boundary."""
    draw, tries, wrong, alpha = random.Random(1), 250, 0, 0.1
    certify, refute = shares(alpha, quantifier, 4)
    needed = must_hold(quantifier, 4)
    far = 4 - needed if is_true else needed - 1
    for _ in range(tries):
        found = []
        for i in range(4):
            mean = (-6.0 if is_true else 6.0) if i < far else 0.0
            gaps = [draw.gauss(mean, 1) for _ in range(10)]
            found.append(
                judge(gaps, 0.0, certify=certify, refute=refute, confidence=0.9, most_pairs=10).verdict
            )
        wrong += verdict(quantifier, found) is (Verdict.REFUTED if is_true else Verdict.CERTIFIED)
    assert wrong <= tries * alpha  # simulated with 20,000: 2.4 to 6.9%
