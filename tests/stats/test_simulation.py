"""Test scripts/research/simulations/simulate_search.py: wrong verdicts at the boundary, and agreement with `judge`."""

from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from cpdrun.stats.evidence import SpreadPrior, Verdict, judge

SEARCHES = 500


@pytest.fixture
def simulation(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "scripts" / "research" / "simulations")
    import simulate_search

    return simulate_search


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("name", ["normal", "skewed towards bad runs, -0.5", "heavy tails, t with 3 degrees"])
def test_the_share_of_wrong_verdicts_is_at_most_the_allowed_one(simulation, name, pooled):
    draw = simulation.NOISE[name]
    for wrong in simulation.searches(draw, draw, -2.0, 2.0, SEARCHES, 1, pooled=pooled):
        found = scipy.stats.binomtest(int((wrong <= simulation.PAIRS).sum()), SEARCHES)
        assert found.proportion_ci(0.95, method="wilson").low <= 0.05


def test_a_pooled_spread_settles_more_by_the_third_pair(simulation):
    draw = simulation.NOISE["normal"]
    without, pooled = (
        simulation.searches(draw, draw, 0.0, 2.0, SEARCHES, 1, pooled=pooled)[0] for pooled in (False, True)
    )
    assert (pooled <= 3).mean() > 2 * (without <= 3).mean()


@pytest.mark.parametrize("degrees", [0, 4])
def test_the_simulation_decides_as_a_search_does(simulation, degrees):
    x = np.random.default_rng(0).normal(size=(60, 30)) + np.repeat([0.0, 1.0, -1.0], 20)[:, None]
    prior = SpreadPrior(0.8, degrees)
    certified, refuted = simulation.settled(x, (0.8, degrees), 0.5, 0.025, 0.05, 0.1)
    for row, above, below in zip(x, certified <= 30, refuted <= 30, strict=True):
        gaps = [float(value) - 0.5 for value in row]
        found = judge(gaps, 0.5, certify=0.025, refute=0.05, confidence=0.95, resolution=0.1, prior=prior)
        assert (found.verdict is Verdict.CERTIFIED, found.verdict is Verdict.REFUTED) == (above, below)
