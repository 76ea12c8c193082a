"""Both published forms: planted parameters found, their derivatives, the held-out size, and runs that hold no law."""

from dataclasses import replace

import numpy as np
import pytest

from cpdrun.stats import scaling_law
from cpdrun.stats.robust_fit import undetermined
from cpdrun.stats.scaling_law import EFFECTIVE, FLOATING, Law, NoLawError, Runs, hold_out_largest

# as table 2 of arXiv 2501.02423 has them, and gamma such that formats matter at these sizes
PAPER = {
    "n": 69.2343,
    "alpha": 0.2368,
    "d": 68973.0621,
    "beta": 0.5162,
    "eps": 1.9061,
    "delta": 3.1926,
    "nu": 2.9543,
}
KUMAR = {"A": 300.0, "alpha": 0.4, "B": 1800.0, "beta": 0.45, "E": 1.4, "gamma": 1.6}
SIZES, BUDGETS = (4e7, 8e7, 1.6e8, 6.8e8), (1e10, 2e10, 5e10, 1e11)
FORMATS = (None, (1, 1, 32), (2, 1, 32), (1, 2, 128), (4, 3, 128), (2, 3, 32), (0, 3, 64))


def floating(size, tokens, fmt, gamma=2e4):
    p = PAPER
    loss = p["n"] / size ** p["alpha"] + p["d"] / tokens ** p["beta"] + p["eps"]
    if fmt is None:
        return loss
    e, m, b = fmt
    return loss + tokens ** p["beta"] / size ** p["alpha"] * np.log2(b) / (
        gamma * (e + 0.5) ** p["delta"] * (m + 0.5) ** p["nu"]
    )


def effective(size, tokens, fmt):
    k = KUMAR
    share = 1 if fmt is None else (1 - np.exp(-(1 + fmt[0] + fmt[1]) / k["gamma"])) ** 2
    return k["A"] / (size * share) ** k["alpha"] + k["B"] / tokens ** k["beta"] + k["E"]


def planted(law, noise=0.0, seeds=1, formats=FORMATS, sizes=SIZES, budgets=BUDGETS, rng=0):
    draw, rows = np.random.default_rng(rng), []
    for size in sizes:
        for tokens in budgets:
            for seed in range(seeds):
                for fmt in formats:
                    e, m, b = fmt or (np.nan,) * 3
                    bits = np.inf if fmt is None else 1 + e + m
                    loss = law(size, tokens, fmt) * np.exp(noise * draw.normal())
                    rows.append(
                        {"parameters": size, "data": tokens, "loss": loss, "exponent_bits": e, "mantissa_bits": m,
                         "block": b, "weight_bits": bits, "activation_bits": bits, "group": (size, tokens, seed)}
                    )  # fmt: skip
    return Runs.of(rows)


def test_the_papers_constants_are_found_again():
    law = Law(FLOATING, planted(floating), draws=0)
    found = {
        name: law._outer(law.fitted.theta)[i] for i, (name, _) in enumerate(scaling_law._OUTER[FLOATING])
    }
    for name, value in {**PAPER, "gamma": 2e4}.items():
        assert found[name] == pytest.approx(value, rel=1e-3), name
    assert not law.fitted.undetermined.any()


def test_an_effective_number_of_parameters_is_found_again():
    law = Law(EFFECTIVE, planted(effective, sizes=(1e5, 2e5, 4e5, 1e6), budgets=(1e5, 3e5, 1e6)), draws=0)
    found = law._outer(law.fitted.theta)
    assert found == pytest.approx(list(KUMAR.values()), rel=1e-3)


@pytest.mark.parametrize("form", scaling_law.FORMS)
def test_derivatives_are_those_of_the_value(form):
    runs = planted(floating)
    law = Law(form, runs, starts=1, draws=0)
    theta, step = law.fitted.theta, 1e-6
    _, slope = law._model(theta, runs)
    for i in range(len(theta)):
        moved = step * np.eye(len(theta))[i]
        numeric = (law._model(theta + moved, runs)[0] - law._model(theta - moved, runs)[0]) / (2 * step)
        assert slope[:, i] == pytest.approx(numeric, abs=1e-7)


def test_the_largest_size_is_predicted_and_the_true_loss_lies_in_the_laws_interval():
    runs = planted(floating, noise=0.003, seeds=2)
    held = hold_out_largest(FLOATING, runs, starts=6, draws=40)
    assert held.factor == pytest.approx(4.25) and len(held.measured) == len(runs) // 4
    assert held.within >= 0.8 * len(held.measured) and held.error < 0.01
    assert np.all(held.predicted.run_high - held.predicted.run_low > 0)
    single = planted(floating, formats=[(2, 1, 32)], sizes=[SIZES[-1]])
    asked = held.law.predict(single, 95)
    truth = [floating(SIZES[-1], tokens, (2, 1, 32)) for tokens in BUDGETS]
    assert np.all((asked.low <= truth) & (truth <= asked.high))


def test_what_the_formats_do_not_tell_has_no_value():
    runs = planted(floating, noise=0.002, formats=[None, (2, 1, 32), (4, 1, 32)])
    law = Law(FLOATING, runs, starts=4, draws=20)
    nu = law.estimates(95)["nu"]
    assert np.isnan(nu.value) and (nu.low, nu.high) == (-np.inf, np.inf)
    assert law.unseen == {"nu": "all formats have 1 mantissa bits"}
    # E and M always rise together: either could be the cause
    tied = planted(floating, noise=0.002, formats=[None, (2, 1, 32), (4, 3, 32)])
    law = Law(FLOATING, tied, starts=4, draws=20)
    assert law.unseen == {} and np.isnan([law.estimates(95)[name].value for name in ("delta", "nu")]).all()


def test_a_loss_that_formats_do_not_touch_bounds_gamma_on_one_side():
    runs = planted(lambda size, tokens, fmt: floating(size, tokens, None), noise=0.002)
    gamma = Law(FLOATING, runs, starts=4, draws=30).estimates(95)["gamma"]
    assert gamma.low > 1e3 and gamma.high == np.inf


def test_directions_in_which_nothing_moves():
    slope = np.array([[1.0, 2.0, 0.0], [2.0, 4.0, 1.0], [3.0, 6.0, 5.0]])
    assert undetermined(slope).tolist() == [True, True, False]
    assert undetermined(np.eye(3)).tolist() == [False] * 3
    assert undetermined(np.ones((1, 2))).tolist() == [True, True]  # fewer rows than parameters


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda runs: runs.take(runs.parameters == SIZES[0]), "several sizes"),
        (lambda runs: runs.take(runs.data == BUDGETS[0]), "several amounts of data"),
        (lambda runs: runs.take(~runs.rounded), "at least two"),
        (lambda runs: runs.take(np.zeros(len(runs), bool)), "none"),
        (lambda runs: runs.take(slice(0, 9)), "several sizes"),
    ],
)
def test_runs_that_hold_no_law_are_refused_in_a_line(change, words):
    with pytest.raises(NoLawError, match=words) as refused:
        Law(FLOATING, change(planted(floating)))
    assert "\n" not in str(refused.value)
    with pytest.raises(NoLawError):
        hold_out_largest(FLOATING, change(planted(floating)))


def test_two_sizes_leave_nothing_to_hold_out_and_a_form_has_to_be_known():
    two = planted(floating, sizes=SIZES[:2])
    with pytest.raises(NoLawError, match="three sizes"):
        hold_out_largest(FLOATING, two)
    with pytest.raises(ValueError, match="no form 'kaplan'"):
        Law("kaplan", two)


def test_the_fit_is_the_same_again_and_one_wild_run_does_not_move_it():
    runs = planted(floating, noise=0.001)
    law = Law(FLOATING, runs, draws=0)
    assert np.array_equal(Law(FLOATING, runs, draws=0).fitted.theta, law.fitted.theta)
    wild = runs.loss.copy()
    wild[7] *= 3
    again = Law(FLOATING, replace(runs, loss=wild), draws=0)
    asked = runs.take(np.arange(len(runs)) != 7)
    assert again.predict(asked).loss == pytest.approx(law.predict(asked).loss, rel=3e-3)
