"""Compare the error due to the choice of test examples with its formula and with simulated test sets."""

import math

import numpy as np
import pytest

from cpdrun.stats.finite_test_set import ExampleError, example_error

RANDOM = np.random.default_rng(0)


def answers(seeds: int, chances_N: np.ndarray) -> np.ndarray:
    """Draw which examples each seed answers right."""
    return (RANDOM.random((seeds, len(chances_N))) < chances_N).astype(np.int64)


@pytest.mark.parametrize(("seeds", "n"), [(1, 5), (2, 40), (7, 360)])
def test_mean_and_standard_error_equal_the_direct_formula(seeds, n):
    d_SxN = RANDOM.integers(-1, 2, (seeds, n))
    found = example_error(list(d_SxN))
    mean_N = d_SxN.mean(axis=0)
    assert found.mean == pytest.approx(d_SxN.mean(), abs=1e-15)
    assert found.standard_error == pytest.approx(math.sqrt(((mean_N - mean_N.mean()) ** 2).sum()) / n)


def test_the_lasting_error_is_the_variance_component_of_a_two_way_table():
    d_SxN = RANDOM.integers(-1, 2, (6, 50)).astype(float)
    of_examples, of_seeds = d_SxN.mean(axis=0), d_SxN.mean(axis=1, keepdims=True)
    rest = ((d_SxN - of_examples - of_seeds + d_SxN.mean()) ** 2).sum() / (5 * 49)
    component = of_examples.var(ddof=1) - rest / 6
    found = example_error(list(d_SxN.astype(np.int64)))
    assert found.lasting == pytest.approx(math.sqrt(max(0.0, component) / 50))


def test_equal_answers_have_no_error_and_one_seed_gives_no_lasting_error():
    equal = example_error([np.zeros(9, np.int64)] * 3)
    assert equal == ExampleError(0.0, 0.0, 0.0)
    assert all(map(math.isnan, equal.on_another_test_set(0.95)))
    assert math.isnan(example_error([np.array([1, 0, -1])]).lasting)


def test_the_interval_covers_other_test_sets_as_often_as_it_says():
    """1,000 pairs of test sets, on which the same 3 runs of each side answer: 95% +- 3 standard errors, 2.1%."""
    n, covered = 360, 0
    for _ in range(1000):
        hard_2N = RANDOM.random(2 * n) < 0.1
        runs = [answers(3, np.where(hard_2N, chance, 0.999)) for chance in (0.4, 0.55)]
        d_Sx2N = runs[0] - runs[1]
        low, high = example_error(list(d_Sx2N[:, :n])).on_another_test_set(0.95)
        covered += low <= d_Sx2N[:, n:].mean() <= high
    assert covered / 1000 == pytest.approx(0.95, abs=0.021)


def test_the_lasting_error_is_the_spread_over_test_sets_with_many_seeds():
    """On 2,000 test sets, the gap of infinitely many seeds spreads as the runs of 3 seeds predict."""
    n, gaps, lasting = 300, [], []
    for _ in range(2000):
        ours_N, baseline_N = RANDOM.beta(2, 1, n), RANDOM.beta(2, 1, n)
        gaps.append((ours_N - baseline_N).mean())
        lasting.append(example_error(list(answers(3, ours_N) - answers(3, baseline_N))).lasting)
    # With 2,000 draws, the relative standard error of a standard deviation is 1.6%.
    assert np.sqrt(np.mean(np.square(lasting))) == pytest.approx(np.std(gaps), rel=0.05)
