"""The law of sums: planted capacities found, more workers predicted, what the runs do not tell left open."""

import numpy as np
import pytest

from cpdrun.stats.chain_law import ChainLaw, Sums, hold_out_most_workers, tolerated
from cpdrun.stats.scaling_law import NoLawError

PLANTED = {"a": 3.0, "b": 1.0, "h": 3.5, "s": 1.3}
FORMATS = ((3, 0), (3, 1), (3, 2), (4, 3))
CHAINS = {4: (1, 3), 16: (1, 3, 15), 64: (1, 7, 63)}  # by workers: a tree, groups, one chain


def planted(noise=0.0, formats=FORMATS, chains=CHAINS, seeds=3, ceiling=3.0):
    rng, rows = np.random.default_rng(0), []
    for workers, lengths in chains.items():
        for k in lengths:
            for e, m in formats:
                log2 = PLANTED["a"] + PLANTED["b"] * m + PLANTED["h"] * (e - 3)
                r = ceiling * (1 - np.exp(-((k / 2**log2) ** PLANTED["s"]) / ceiling))
                rows += [(k, workers, e, m, r + noise * rng.normal(), ceiling) for _ in range(seeds)]
    columns = np.array(rows, dtype=float).T
    return Sums(*columns, group=np.array([str(row[:4]) for row in rows]))


def test_planted_parameters_are_found_and_a_mantissa_bit_doubles_the_chain():
    law = ChainLaw(planted(), draws=0)
    assert dict(
        zip(PLANTED, [*law.fitted.theta[:3], np.exp(law.fitted.theta[3])], strict=True)
    ) == pytest.approx(PLANTED, rel=1e-4)
    capacity = [law._capacity(law.fitted.theta, 3, m, 0.3) for m in range(6)]
    assert np.diff(np.log2(capacity)) == pytest.approx(1.0, rel=1e-4)


def test_derivatives_are_those_of_the_value():
    sums, theta, step = planted(), np.array([2.5, 1.2, 2.0, 0.1]), 1e-6
    law = ChainLaw(sums, starts=1, draws=0)
    for i in range(4):
        moved = step * np.eye(4)[i]
        numeric = (law._model(theta + moved, sums)[0] - law._model(theta - moved, sums)[0]) / (2 * step)
        assert law._model(theta, sums)[1][:, i] == pytest.approx(numeric, abs=1e-7)


def test_the_most_workers_are_predicted_from_fewer():
    held = hold_out_most_workers(planted(noise=0.05), starts=6, draws=40)
    assert held.factor == pytest.approx(4.2) and set(held.law.sums.workers) == {4, 16}
    assert held.within >= 0.8 * len(held.measured)
    b = held.law.estimates(95)["b"]
    assert b.low <= 1.0 <= b.high < 2
    # no run of e4m3 shows an excess: what an exponent bit is worth stays open, and nothing is promised of it
    assert np.isnan(held.law.estimates(95)["h"].value) or held.law.estimates(95)["h"].high == np.inf


def test_fewest_bits_of_more_workers_than_anybody_ran():
    law = ChainLaw(planted(noise=0.03), starts=6, draws=40)
    flat, groups, tree = (law.fewest(k, 0.3, 95) for k in (1023, 31, 1))
    assert tree.bits == 4 and tree.by == (3, 0)
    assert tree.bits < groups.bits < flat.bits and flat.low <= flat.bits <= flat.high
    e, m = flat.by
    assert (
        law._capacity(law.fitted.theta, e, m, 0.3) >= 1023 > law._capacity(law.fitted.theta, e, m - 1, 0.3)
        or m == 3
    )
    capacity = law.capacity(3, 1, 0.3, 95)
    assert capacity.low <= capacity.value <= capacity.high


def test_one_exponent_width_tells_nothing_of_another():
    law = ChainLaw(planted(noise=0.03, formats=FORMATS[:3]), starts=4, draws=20)
    assert law.unseen == {"h": "all formats have 3 exponent bits"}
    assert np.isnan(law.estimates(95)["h"].value) and law.fewest(63, 0.3, 95).by[0] == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda sums: sums.take(sums.chain == 1), "more than one chain"),
        (lambda sums: sums.take(sums.mantissa_bits == 1), "mantissa bits"),
        (lambda sums: sums.take(np.zeros(len(sums), bool)), "none"),
        (lambda sums: Sums(*(getattr(sums, f) for f in ("chain", "workers", "exponent_bits", "mantissa_bits")),
                           sums.ceiling, sums.ceiling, sums.group), "learnt"),
    ],
)  # fmt: skip
def test_runs_that_hold_no_law_are_refused_in_a_line(change, words):
    with pytest.raises(NoLawError, match=words) as refused:
        ChainLaw(change(planted()))
    assert "\n" not in str(refused.value)


def test_one_number_of_workers_leaves_nothing_to_hold_out():
    with pytest.raises(NoLawError, match="two numbers"):
        hold_out_most_workers(planted(chains={64: (1, 7, 63)}))


def test_the_excess_that_a_tolerance_allows():
    excess = np.array([0.1, 0.3, 0.5, 0.9, 0.34])
    assert tolerated(excess, [True, True, False, False, True]) == pytest.approx(0.42)
    assert tolerated(excess, [True, False, False, False, True]) in (pytest.approx(0.2), pytest.approx(0.42))
    assert np.isnan(tolerated(excess, [True] * 5)) and np.isnan(tolerated(excess, [False] * 5))
