"""Online e-BH: which ideas of a stream are kept, and the share of false ones among them."""

import math
import random
from pathlib import Path

import numpy as np
import pytest

from cpdrun.stats.evidence import log_evidence
from cpdrun.stats.false_discoveries import kept_ideas, required_log_evidence, share

ALPHA, PLANNED = 0.05, 10


def test_the_shares_of_any_number_of_ideas_add_up_to_less_than_one():
    shares = [share(number, PLANNED) for number in range(1, 100 * PLANNED)]
    assert math.fsum(shares[:PLANNED]) == pytest.approx(0.8)
    assert math.fsum(shares) <= 1 and shares == sorted(shares, reverse=True) and shares[-1] > 0


def test_a_single_idea_needs_its_own_share_of_the_error():
    """With one idea of ten kept, E must be 1 / (.05 x .08) = 250."""
    assert math.exp(required_log_evidence(1, 1, ALPHA, PLANNED)) == pytest.approx(250)
    assert kept_ideas({1: math.log(250.1)}, ALPHA, PLANNED) == {1}
    assert kept_ideas({1: math.log(249.9)}, ALPHA, PLANNED) == set()


def test_two_ideas_that_fail_alone_are_kept_together():
    """Two ideas at 125 each are enough for both, and neither is enough alone."""
    assert kept_ideas({1: math.log(130), 2: 0.0}, ALPHA, PLANNED) == set()
    assert kept_ideas({1: math.log(130), 2: 0.0, 3: math.log(130)}, ALPHA, PLANNED) == {1, 3}


def test_at_most_alpha_of_the_kept_ideas_are_false():
    """Log-normal e-values of mean 1, all of them shared between neighbors, so that they depend on each other."""
    rng = random.Random(0)
    shares = []
    for _ in range(1000):
        shared = rng.gauss(0, 1)
        logs = {n: 3 * (0.6 * shared + 0.8 * rng.gauss(0, 1)) - 4.5 for n in range(1, PLANNED + 1)}
        logs[3] = logs[7] = 20.0  # real
        kept = kept_ideas(logs, ALPHA, PLANNED)
        assert {3, 7} <= kept
        shares.append(len(kept - {3, 7}) / len(kept))
    assert sum(shares) / len(shares) <= ALPHA


@pytest.mark.parametrize(("pairs", "degrees"), [(2, 0), (3, 4), (12, 4)])
def test_the_simulation_computes_the_same_evidence(monkeypatch, pairs, degrees):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "scripts" / "research" / "simulations")
    import simulate_judge as script

    statistics = np.linspace(0, math.sqrt(pairs), 7)
    expected = [log_evidence(float(statistic), pairs, degrees) for statistic in statistics]
    assert script.log_evidence(statistics, pairs, degrees) == pytest.approx(expected, rel=1e-9)
