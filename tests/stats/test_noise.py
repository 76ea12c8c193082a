"""What is left over, in two parts: planted spreads found again, other draws with the same, intervals that hold more."""

import numpy as np
import pytest

from cpdrun.stats.noise import Noise
from cpdrun.stats.robust_fit import ends, percentiles

GROUPS = np.repeat(np.arange(300), 4)


def planted(common, own, seed=0):
    rng = np.random.default_rng(seed)
    return common * rng.normal(size=300)[GROUPS] + own * rng.normal(size=len(GROUPS))


@pytest.mark.parametrize(("common", "own"), [(0.3, 0.1), (0.0, 0.1), (0.3, 0.0)])
def test_planted_spreads_are_found_and_drawn_again(common, own):
    slope = np.column_stack([np.ones(len(GROUPS)), np.arange(len(GROUPS)) % 4])
    found = Noise.of(planted(common, own), slope, list(GROUPS))
    assert (found.common, found.own) == (pytest.approx(common, abs=0.03), pytest.approx(own, abs=0.01))
    # the mean is told by means of groups, the second column within them alone but for its own mean
    assert (found.common_freedom, found.own_freedom) == (pytest.approx(299), pytest.approx(899))
    again = Noise.of(found.draw(np.random.default_rng(1)), slope, list(GROUPS))
    assert (again.common, again.own) == (
        pytest.approx(found.common, abs=0.03),
        pytest.approx(found.own, abs=0.01),
    )


def test_the_fit_is_not_counted_as_knowledge_and_a_fit_of_everything_leaves_one_degree():
    """Two groups of two, a parameter a group: nothing is left of the means."""
    slope = np.array([[1.0, 0], [1, 0], [0, 1], [0, 1]])
    found = Noise.of(np.array([1.0, -1, 2, -2]), slope, list("aabb"))
    assert (found.common_freedom, found.own_freedom) == (1.0, pytest.approx(2.0))
    assert (found.common, found.own) == (0.0, pytest.approx(np.sqrt(10 / 2)))
    alone = Noise.of(np.array([1.0, -1.0, 3.0]), np.zeros((3, 1)), list("abc"))
    assert alone.own == 0.0 and alone.common == pytest.approx(np.sqrt(11 / 3))


def test_each_end_is_the_further_one_of_the_percentile_and_its_mirror():
    draws = np.concatenate([np.zeros(90), np.linspace(0, 5, 110)])
    low, high = percentiles(draws, 95)
    assert (low, high) == (0.0, pytest.approx(4.77, abs=0.01))
    assert ends(draws, 0.5, 95) == (pytest.approx(1 - high), high)
    assert ends(draws, 4.0, 95) == (0.0, 8.0 - low)
    assert np.isnan(ends(draws[:19], 0.5, 95)).all()
