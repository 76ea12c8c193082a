"""scripts/simulate_search.py, fewer searches of it: wrong certificates at the boundary, and agreement with `judge`."""

from pathlib import Path

import numpy as np
import pytest

from cpdrun.stats.evidence import Verdict, judge
from cpdrun.stats.intervals import wilson

SEARCHES = 2000


@pytest.fixture
def simulation(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "scripts")
    import simulate_search

    return simulate_search


@pytest.mark.parametrize(("formats", "chains"), [(1, 1), (4, 1), (1, 4), (3, 2)])
def test_wrong_certificates_are_at_most_as_many_as_allowed(simulation, formats, chains):
    for name, draw in simulation.HOLDS.items():
        step = simulation.STEP if draw is simulation.counted else 0.0
        wrong = simulation.at_the_boundary(draw, formats, chains, SEARCHES, seed=1, resolution=step)
        assert wilson(wrong / SEARCHES, SEARCHES, 95)[0] <= 0.05, name


def test_too_few_bits_are_claimed_no_more_often_where_wide_formats_are_good(simulation):
    too_few, misnamed = simulation.mixed(simulation.HOLDS["normal"], 3, 2, SEARCHES, seed=1)
    assert too_few <= 0.05 * SEARCHES and misnamed <= 0.05 * SEARCHES


def test_the_broken_assumption_is_seen(simulation):
    hidden = simulation.BREAKS["1 % diverge, hidden in a mean at the boundary"]
    assert simulation.at_the_boundary(hidden, 1, 1, 500, seed=1) > 0.5 * 500


def test_the_simulated_rule_is_the_rule_of_a_search(simulation):
    x = np.random.default_rng(0).normal(size=(60, 30)) + np.repeat([0.0, 1.0, -1.0], 20)[:, None]
    above, below = simulation.settled(x, 0.025, 0.05, 0.1)
    for row, certified, refuted in zip(x, above, below, strict=True):
        found = judge(
            [float(value) for value in row], 0.0, certify=0.025, refute=0.05, confidence=0.95, resolution=0.1
        )
        assert (found.verdict is Verdict.CERTIFIED, found.verdict is Verdict.REFUTED) == (certified, refuted)


@pytest.mark.parametrize("start", [1, 3, 4])
@pytest.mark.parametrize("good", [0, 3])
def test_from_any_start_right_or_wrong_certificates_err_no_more_often(simulation, start, good):
    wrong = simulation.from_a_start(simulation.HOLDS["normal"], start, good, 2, 2, SEARCHES, seed=1)
    assert 0 < wrong <= 0.05 * SEARCHES
