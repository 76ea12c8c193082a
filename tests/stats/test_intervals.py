"""Intervals against scipy's own functions, published figures and simulation."""

import math
import random

import pytest
import scipy.stats

from cpdrun.stats.intervals import most_failing, share_interval, wilson


@pytest.mark.parametrize(("hits", "n"), [(0, 20), (20, 20), (1, 360), (355, 360), (9_500, 10_000)])
def test_wilson_is_scipys(hits, n):
    theirs = scipy.stats.binomtest(hits, n).proportion_ci(0.95, method="wilson")
    assert wilson(hits / n, n, 95) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


@pytest.mark.parametrize("values", [[1.0, 1.0, 1.0], [0.99, 1.0, 0.98], [0.0, 0.0], [0.5, 0.6]])
def test_an_accuracy_stays_within_0_and_1_and_is_never_certain(values):
    found = share_interval(values, 360, 95)
    assert 0 <= found.low <= found.mean <= found.high <= 1
    assert found.high - found.low > 0.005


def test_the_test_sets_error_is_contained_and_the_seeds_error_too():
    values = [0.95, 0.96, 0.94]
    seeds, both = share_interval(values, math.nan, 95), share_interval(values, 100, 95)
    low, high = wilson(0.95, 100, 95)
    assert both.low < min(seeds.low, low) and both.high > max(seeds.high, high)


def test_equal_seeds_on_an_unknown_number_of_samples_say_nothing():
    assert not share_interval([0.9, 0.9, 0.9], math.nan, 95).is_known
    assert not share_interval([0.9], 360, 95).is_known


def test_the_interval_holds_the_truth_as_often_as_it_says():
    """Models of accuracy .9 +- .01 over seeds, judged on 200 samples that all seeds share."""
    draw, held, tries = random.Random(1), 0, 1500
    for _ in range(tries):
        shared = draw.gauss(0, math.sqrt(0.9 * 0.1 / 200))
        values = [min(max(0.9 + shared + draw.gauss(0, 0.01), 0.0), 1.0) for _ in range(5)]
        found = share_interval(values, 200, 95)
        held += found.low <= 0.9 <= found.high
    assert 0.94 < held / tries < 0.995


def test_the_rule_of_three():
    assert most_failing(0, 100, 95) == pytest.approx(0.0295, abs=5e-5)
