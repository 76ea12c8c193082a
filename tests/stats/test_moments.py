"""The mean and the standard deviation of a few values, and the limit of a share of failures."""

import math
import statistics

import pytest

from cpdrun.stats.failures import most_failing
from cpdrun.stats.means import deviation, mean


def test_a_mean_without_values_is_unknown():
    assert math.isnan(mean([])) and mean([1.0, 2.0]) == 1.5


def test_the_deviation_is_that_of_statistics():
    values = [0.91, 0.935, 0.92, 0.97]
    assert deviation(values) == pytest.approx(statistics.stdev(values))


def test_the_rule_of_three():
    assert most_failing(0, 100, 95) == pytest.approx(0.0295, abs=5e-5)
