"""Compare the pooled spread with limma's equations, solved in another way, and with simulated variances."""

import math
import random

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import digamma, polygamma

from cpdrun.stats.evidence import NO_PRIOR
from cpdrun.stats.pooled_spread import MOST_DEGREES, priors, squeeze

CELLS = [(0.3, 2), (1.1, 2), (0.45, 4), (2.9, 2), (0.2, 9), (0.8, 2)]


def limma(cells):
    """Solve the equations of limma's fitFDist; the one for the degrees by bisection."""
    s, d = np.array(cells).T
    e = np.log(s**2) - digamma(d / 2) + np.log(d / 2)
    excess = e.var(ddof=1) - polygamma(1, d / 2).mean()
    if excess <= 0:
        return math.exp(e.mean() / 2), math.inf
    nu = 2 * brentq(lambda x: polygamma(1, x) - excess, 1e-3, 1e6)
    return math.exp((e.mean() + digamma(nu / 2) - math.log(nu / 2)) / 2), nu


@pytest.mark.parametrize("cells", [CELLS, CELLS[:3], CELLS[1:5], [(0.5, 2), (0.6, 2), (0.7, 2)]])
def test_the_prior_solves_the_equations_of_limma(cells):
    deviation, degrees = limma(cells)
    found = squeeze(cells)
    assert found.degrees == math.floor(min(MOST_DEGREES, degrees))
    assert found.deviation == pytest.approx(deviation if degrees >= 1 else 0.0, rel=1e-6)


def test_too_few_or_too_different_cells_give_no_prior():
    assert squeeze(CELLS[:2]) == squeeze([*CELLS[:2], (0.0, 2)]) == NO_PRIOR
    assert squeeze([(1e-4, 2), (1.0, 2), (1e4, 2)]) == NO_PRIOR


def test_the_common_variance_of_many_cells_is_recovered():
    rng = np.random.default_rng(0)
    spreads = 0.7 * np.sqrt(rng.chisquare(2, 400) / 2)
    found = squeeze([(float(spread), 2) for spread in spreads])
    assert found.deviation == pytest.approx(0.7, rel=0.1) and found.degrees == MOST_DEGREES


def test_a_prior_comes_from_the_first_pairs_of_other_cells_of_the_same_kind():
    rng = random.Random(0)
    cells = {name: [rng.gauss(0, 0.3) for _ in range(5)] for name in "abcd"}
    cells |= {name: [rng.gauss(-60, 9) for _ in range(3)] for name in "wxyz"}
    found = priors(cells, 1.0)
    assert found["a"].deviation < 1 < found["w"].deviation
    assert priors({**cells, "a": [gap * 5 for gap in cells["a"]]}, 1.0)["a"] == found["a"]
    assert priors({name: [*gaps, 0.7] for name, gaps in cells.items()}, 1.0) == found
    identical = {"e": [0.0, 0.0, 0.0]}
    assert {**priors({**cells, **identical}, 1.0, 0.1), "e": None} == {**priors(cells, 1.0, 0.1), "e": None}


def test_a_prior_is_fixed_at_the_first_pair_that_has_one_or_at_the_third_pair():
    cells = {"a": [0.1, -0.2, 0.3], "b": [0.2, 0.5], "c": [0.1], "d": []}
    assert priors(cells, 1.0) == {"a": NO_PRIOR}
    more = {**cells, "e": [0.0, 0.1, 0.4], "f": [0.2, 0.3, -0.1]}
    assert priors(more, 1.0).keys() == {"a", "b", "c", "e", "f"}
