"""Compare screening designs and their effects with least squares, exact algebra and their definitions."""

import itertools
import math

import numpy as np
import pytest
from scipy.special import betainc, stdtrit

from cpdrun.stats.screening import (
    GENERATORS,
    HIGH,
    LOW,
    Effects,
    Sensitivity,
    design,
    effects,
    hadamard_matrix,
    holm,
    joint_margin,
    lenth,
    orders,
)


def test_columns_of_a_hadamard_matrix_are_orthogonal():
    for order in (1, 2, *(order for order in orders() if order <= 144)):
        h = hadamard_matrix(order)
        assert set(np.unique(h)) <= {-1, 1} and (h[:, 0] == 1).all()
        assert (h.T @ h == order * np.eye(order)).all()


def test_the_published_design_of_12_runs():
    """Plackett and Burman (1946): the first row shifted by one place each time, and a row of minus signs."""
    rows = ["".join("-+"[int(value > 0)] for value in row) for row in hadamard_matrix(12)[:, 1:]]
    assert rows[0] == GENERATORS[12] and rows[1] == "-" + rows[0][:-1] and rows[-1] == "-" * 11


SIZES = [
    (1, False, 2),
    (2, False, 4),
    (1, True, 2),
    (2, True, 4),
    (3, True, 8),
    (11, False, 12),
    (12, False, 16),
]
SIZES += [(12, True, 24), (13, True, 32), (19, False, 20), (24, True, 48), (256, True, 512)]


def test_a_design_is_the_smallest_that_has_enough_factors():
    for factors, folded, runs in SIZES:
        found = design(factors, foldover=folded)
        levels = found.levels
        assert levels.shape == (runs, factors) and found.is_folded == folded
        assert (levels.T @ levels == runs * np.eye(factors)).all()
        assert (levels.sum(axis=0) == 0).all(), "each level in half of the runs"
        assert len({tuple(row) for row in levels.tolist()}) == runs, "a run read twice has no noise"


def test_impossible_designs_are_refused():
    for order in (3, 6, 28, 100):
        with pytest.raises(ValueError, match=f"order {order}"):
            hadamard_matrix(order)
    for factors, folded in ((0, True), (257, True), (512, False)):
        with pytest.raises(ValueError, match="a design takes 1 to"):
            design(factors, foldover=folded)


def test_in_a_folded_design_no_effect_is_aliased_with_an_interaction_of_two():
    def is_aliased(levels):
        pairs = itertools.combinations(range(levels.shape[1]), 2)
        return any((levels.T @ (levels[:, i] * levels[:, j])).any() for i, j in pairs)

    assert not any(is_aliased(design(factors).levels) for factors in (3, 7, 12, 20))
    assert is_aliased(design(12, foldover=False).levels)


def test_effects_and_their_error_are_those_of_least_squares():
    """The error is that of a fit of rows and seeds, and the effects are those of a fit of levels and seeds."""
    rng = np.random.default_rng(1)
    of, seeds = design(5), 3
    y_NxS = rng.normal(size=(of.runs, seeds))
    seed_columns = np.tile(np.eye(seeds), (of.runs, 1))
    rows = np.repeat(np.eye(of.runs), seeds, axis=0)
    levels = np.repeat(of.levels, seeds, axis=0)
    fit, *_ = np.linalg.lstsq(np.hstack([levels, seed_columns]), y_NxS.ravel(), rcond=None)
    full = np.hstack([rows, seed_columns])
    rest = y_NxS.ravel() - full @ np.linalg.lstsq(full, y_NxS.ravel(), rcond=None)[0]
    told = effects(of, y_NxS, margin=1.0)
    assert [each.mean for each in told.factors] == pytest.approx(2 * fit[:5], abs=1e-12)
    assert told.degrees == (of.runs - 1) * (seeds - 1)
    variance = float(rest @ rest) / told.degrees
    assert told.error == pytest.approx(math.sqrt(4 * variance / (of.runs * seeds)), rel=1e-12)
    first = told.factors[0]
    assert _above(told.degrees, (first.high - first.mean) / told.error) == pytest.approx(0.025, rel=1e-9)
    assert first.mean - first.low == pytest.approx(first.high - first.mean, rel=1e-9)
    alone = [_above(told.degrees, each.mean / told.error) for each in told.factors]
    assert [each.p_sensitive for each in told.factors] == pytest.approx(_holm_by_definition(alone), rel=1e-9)


def _above(degrees, t):
    """Probability that Student's t is above t, by the incomplete beta function."""
    tail = betainc(degrees / 2, 0.5, degrees / (degrees + t * t)) / 2
    return tail if t > 0 else 1 - tail


def _holm_by_definition(p_values):
    """Return the smallest alpha at which the step-down test rejects each hypothesis."""
    found = []
    for p in p_values:
        steps = sorted(p_values)[: sorted(p_values).index(p) + 1]
        found.append(min(1.0, max((len(p_values) - k) * step for k, step in enumerate(steps))))
    return found


def test_holm_and_lenth_by_hand():
    """Lenth: median |c| = 2 and s0 = 3. The values below 7.5 are 1, 1, 2, 2, 3, and their median is 2."""
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0] and holm([]) == []
    assert lenth([-1, 1, 2, -2, 3, 40]) == 3.0
    assert lenth([0, 0, 0, 5]) == 0.0


def test_with_one_seed_the_error_uses_contrasts_without_a_factor_too():
    of = design(3, foldover=False)
    y = np.array([[1.0], [2.0], [4.0], [9.0]])
    told = effects(of, y, margin=1.0)
    contrasts = of.hadamard_NxN[:, 1:].T @ y[:, 0] / 2
    assert told.degrees == 1.0 and told.error == lenth(contrasts)


def test_verdicts_without_noise():
    of = design(4, foldover=False)
    costs = np.array([2.0, 0.0, -1.0, 0.4])
    y_NxS = (of.levels * costs / 2).sum(axis=1)[:, None] + np.array([0.0, 5.0])
    told = effects(of, y_NxS, margin=0.5)
    assert [each.mean for each in told.factors] == pytest.approx(costs, abs=1e-12)
    found = told.factors[0].verdict, told.factors[2].verdict
    assert found == (Sensitivity.SENSITIVE, Sensitivity.HARMLESS)
    assert told.bound([0, 2], 95) == pytest.approx(2.0), "an apparent gain compensates no loss"


def test_factors_stay_open_in_much_noise():
    of, rng = design(4), np.random.default_rng(1)
    told = effects(of, rng.normal(size=(of.runs, 2)), margin=0.01)
    assert {each.verdict for each in told.factors} == {Sensitivity.OPEN}
    assert told.bound([0, 1, 2, 3], 95) >= told.margin(4, 95) == pytest.approx(2 * told.margin(1, 95))


@pytest.mark.parametrize("bad", [[[1.0]] * 7, [[math.nan]] * 8, [1.0] * 8, [[]] * 8])
def test_incomplete_results_are_refused(bad):
    with pytest.raises(ValueError, match=r"expected values|not finite"):
        effects(design(4), bad, margin=1.0)


@pytest.mark.parametrize(("ratio", "least", "most"), [(3.0, 0.95, 1.0), (1.0, 0.0, 0.2)])
def test_three_sensitive_factors_of_twelve_are_found_in_24_runs(ratio, least, most):
    """Costs of three standard deviations of a run are all found 95 times in 100, and others at most 5 times.
    150 simulations have a standard error of 2%."""
    of, rng = design(12), np.random.default_rng(7)
    assert of.runs == 24
    found = wrong = 0
    for _ in range(150):
        planted = set(rng.choice(12, 3, replace=False).tolist())
        mean_N = (of.levels[:, list(planted)] * ratio / 2).sum(axis=1)
        told = effects(of, (mean_N + rng.normal(size=24))[:, None], margin=1.0)
        sensitive = {i for i, each in enumerate(told.factors) if each.verdict is Sensitivity.SENSITIVE}
        found += planted <= sensitive
        wrong += bool(sensitive - planted)
    assert least <= found / 150 <= most and wrong / 150 <= 0.05
    assert (LOW, HIGH) == (1, -1)


def test_the_joint_noise_of_several_screens_follows_satterthwaite():
    """Squared errors of 4 * .01 and 2 * .04, with 9 and 3 degrees. One screen alone follows its own t."""
    first, second = (Effects((), error, degrees, "") for error, degrees in ((0.1, 9), (0.2, 3)))
    degrees = 0.12**2 / (0.04**2 / 9 + 0.08**2 / 3)
    expected = stdtrit(degrees, 0.95) * 0.12**0.5
    assert joint_margin([(first, 4), (second, 2)], 95) == pytest.approx(expected, rel=1e-9)
    assert joint_margin([(first, 4), (second, 0)], 95) == pytest.approx(first.margin(4, 95), rel=1e-12)
    assert joint_margin([(Effects((), 0.0, 1, ""), 5)], 95) == 0.0
