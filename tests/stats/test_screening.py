"""Screening designs and their effects, against least squares, exact algebra and definitions written out."""

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


@pytest.mark.parametrize("order", [1, 2, *(order for order in orders() if order <= 144)])
def test_columns_of_a_hadamard_matrix_are_orthogonal(order):
    h = hadamard_matrix(order)
    assert set(np.unique(h)) <= {-1, 1} and (h[:, 0] == 1).all()
    assert (h.T @ h == order * np.eye(order)).all()


def test_the_published_design_of_12_runs():
    """Plackett and Burman (1946): the first row shifted by one place each time, and a row of minus signs."""
    rows = ["".join("-+"[int(value > 0)] for value in row) for row in hadamard_matrix(12)[:, 1:]]
    assert rows[0] == GENERATORS[12] and rows[1] == "-" + rows[0][:-1] and rows[-1] == "-" * 11


@pytest.mark.parametrize("order", [3, 6, 28, 100])
def test_other_orders_are_refused(order):
    with pytest.raises(ValueError, match=f"order {order}"):
        hadamard_matrix(order)


SIZES = [
    (1, False, 2),
    (2, False, 4),
    (1, True, 2),
    (2, True, 4),
    (3, True, 8),
    (11, False, 12),
    (12, False, 16),
    (12, True, 24),
    (13, True, 32),
    (19, False, 20),
]


@pytest.mark.parametrize(("factors", "folded", "runs"), [*SIZES, (24, True, 48), (256, True, 512)])
def test_the_smallest_design_that_holds_so_many_factors(factors, folded, runs):
    of = design(factors, foldover=folded)
    levels = of.levels
    assert levels.shape == (runs, factors) and of.is_folded == folded
    assert (levels.T @ levels == runs * np.eye(factors)).all()
    assert (levels.sum(axis=0) == 0).all(), "each level in half of the runs"
    assert len({tuple(row) for row in levels.tolist()}) == runs, "a run read twice has no noise"


@pytest.mark.parametrize(("factors", "folded"), [(0, True), (257, True), (512, False)])
def test_too_few_or_many_factors(factors, folded):
    with pytest.raises(ValueError, match="a design takes 1 to"):
        design(factors, foldover=folded)


@pytest.mark.parametrize("factors", [3, 7, 12, 20])
def test_folded_over_no_interaction_of_two_bears_on_an_effect(factors):
    levels = design(factors).levels
    for i, j in itertools.combinations(range(factors), 2):
        assert not (levels.T @ (levels[:, i] * levels[:, j])).any()
    unfolded = design(12, foldover=False).levels
    of_pairs = [
        unfolded.T @ (unfolded[:, i] * unfolded[:, j]) for i, j in itertools.combinations(range(12), 2)
    ]
    assert np.any(of_pairs), "or else nothing is shown"


def test_effects_and_their_error_are_those_of_least_squares():
    """With columns for rows and seeds; the effects those of a fit of levels and seeds."""
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
    """The smallest alpha at which the step-down test rejects, by its own words."""
    found = []
    for p in p_values:
        steps = sorted(p_values)[: sorted(p_values).index(p) + 1]
        found.append(min(1.0, max((len(p_values) - k) * step for k, step in enumerate(steps))))
    return found


def test_holm_of_numbers_worked_out_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0] and holm([]) == []


def test_lenth_of_numbers_worked_out_by_hand():
    """median |c| = 2, s0 = 3; below 7.5 are 1, 1, 2, 2, 3, of median 2."""
    assert lenth([-1, 1, 2, -2, 3, 40]) == 3.0
    assert lenth([0, 0, 0, 5]) == 0.0


def test_one_seed_takes_contrasts_that_carry_no_factor_too():
    of = design(3, foldover=False)
    y = np.array([[1.0], [2.0], [4.0], [9.0]])
    told = effects(of, y, margin=1.0)
    contrasts = of.hadamard_NxN[:, 1:].T @ y[:, 0] / 2
    assert told.degrees == 1.0 and told.error == lenth(contrasts)


def test_verdicts_where_nothing_but_the_factors_moves_the_metric():
    of = design(4, foldover=False)
    costs = np.array([2.0, 0.0, -1.0, 0.4])
    y_NxS = (of.levels * costs / 2).sum(axis=1)[:, None] + np.array([0.0, 5.0])
    told = effects(of, y_NxS, margin=0.5)
    assert [each.mean for each in told.factors] == pytest.approx(costs, abs=1e-12)
    assert (
        told.factors[0].verdict is Sensitivity.SENSITIVE and told.factors[2].verdict is Sensitivity.HARMLESS
    )
    assert told.bound([0, 2], 95) == pytest.approx(2.0), "what looks like a gain pays for nothing"


def test_a_factor_with_much_noise_is_neither():
    of, rng = design(4), np.random.default_rng(1)
    told = effects(of, rng.normal(size=(of.runs, 2)), margin=0.01)
    assert {each.verdict for each in told.factors} == {Sensitivity.OPEN}
    assert told.bound([0, 1, 2, 3], 95) >= told.margin(4, 95) == pytest.approx(2 * told.margin(1, 95))


@pytest.mark.parametrize("bad", [[[1.0]] * 7, [[math.nan]] * 8, [1.0] * 8, [[]] * 8])
def test_values_that_are_no_whole_design(bad):
    with pytest.raises(ValueError, match=r"are needed|not finite"):
        effects(design(4), bad, margin=1.0)


@pytest.mark.parametrize(("ratio", "least", "most"), [(3.0, 0.95, 1.0), (1.0, 0.0, 0.2)])
def test_three_of_twelve_in_24_runs(ratio, least, most):
    """Costs of three standard deviations of a run are all found 95 times in 100; nothing else is, at the family's 5 %.
    300 simulations have a standard error of 1 %."""
    of, rng = design(12), np.random.default_rng(7)
    assert of.runs == 24
    found = wrong = 0
    for _ in range(300):
        planted = set(rng.choice(12, 3, replace=False).tolist())
        mean_N = (of.levels[:, list(planted)] * ratio / 2).sum(axis=1)
        told = effects(of, (mean_N + rng.normal(size=24))[:, None], margin=1.0)
        sensitive = {i for i, each in enumerate(told.factors) if each.verdict is Sensitivity.SENSITIVE}
        found += planted <= sensitive
        wrong += bool(sensitive - planted)
    assert least <= found / 300 <= most and wrong / 300 <= 0.05
    assert (LOW, HIGH) == (1, -1)


def test_the_noise_of_several_screens_is_that_of_satterthwaite():
    """By hand: squared errors 4 * .01 and 2 * .04, of 9 and 3 degrees; one screen alone is its own t."""
    first, second = (Effects((), error, degrees, "") for error, degrees in ((0.1, 9), (0.2, 3)))
    degrees = 0.12**2 / (0.04**2 / 9 + 0.08**2 / 3)
    expected = stdtrit(degrees, 0.95) * 0.12**0.5
    assert joint_margin([(first, 4), (second, 2)], 95) == pytest.approx(expected, rel=1e-9)
    assert joint_margin([(first, 4), (second, 0)], 95) == pytest.approx(first.margin(4, 95), rel=1e-12)
    assert joint_margin([(Effects((), 0.0, 1, ""), 5)], 95) == 0.0
