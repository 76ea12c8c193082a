"""Sums over several steps: with error feedback, they equal the bits of a run's own sums."""

import math

import numpy as np
import pytest
import torch

from cpdrun.comm import AllReduceSync
from cpdrun.comm.sums.error_feedback import ErrorFeedback
from cpdrun.comm.sums.scaling import APS
from cpdrun.comm.sums.sum import Sum
from cpdrun.whatif.simulate.worker_sums import MultiStepSums, WorkerGradients

N, STEPS, NAMES = 4, 6, ["a", "b"]


def gradients(step: int) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(step)
    return [torch.randn(N, n, generator=draw) * 2.0**-exponent for n, exponent in ((40, 3), (7, 6))]


def simulate_rounding(how: Sum, rule) -> MultiStepSums:
    found = MultiStepSums(ErrorFeedback() if how.error_feedback else None)
    plain = Sum.of(how.fmt.name, order=how.order, rounding=how.rounding, group_size=how.group_size)
    for step in range(STEPS):
        values = [g.numpy() for g in gradients(step)]
        maxima = [np.abs(x).max(1) for x in values]
        extremes = [x[:, [np.abs(x.sum(0)).argmax()]] for x in values]
        given = WorkerGradients(NAMES, values, extremes, maxima, [40, 7], (0, step))
        sums = found.sum_with_feedback(plain, rule, given)
        for name, x, total in zip(NAMES, values, sums, strict=True):
            found.add(step, name, x, total, x.shape[1])
    return found


@pytest.mark.parametrize(
    ("fmt", "rule", "knobs"),
    [
        ("e3m0", None, {"order": "rank"}),
        ("e3m0", APS(), {"order": "rank"}),
        ("e4m1", None, {"order": "hierarchical", "group_size": 2}),
        ("e3m0", None, {"order": "rank", "rounding": "stochastic"}),
    ],
)
def test_the_simulation_has_the_residuals_and_sums_of_a_run(fmt, rule, knobs):
    how = Sum.of(fmt, error_feedback=True, **knobs)
    found = simulate_rounding(how, rule)
    sync = AllReduceSync(
        format=fmt, world_size=N, parameter_names=NAMES, scaling=rule, seed=0, error_feedback=True, **knobs
    )
    totals = [np.zeros(n) for n in (40, 7)]
    for step in range(STEPS):
        sums = sync.reduce_stacked(gradients(step), step=step, epoch=0)
        totals = [total + one.numpy().astype(np.float64) for total, one in zip(totals, sums, strict=True)]
    for name, total in zip(NAMES, totals, strict=True):
        assert np.array_equal(found.came[name], total), name
        carried = sync.feedback._residuals[name]
        assert torch.equal(found.feedback._residuals[name], carried) and carried.any()
    assert found.figures()["steps"] == STEPS and 0 < found.figures()["steps_cosine"] < 1


def test_values_below_the_smallest_are_sent_in_later_steps_by_error_feedback():
    """A tenth of the smallest value in each step: a single sum is 0, but about every fifth is not."""
    g = np.full((1, 3), 0.1, np.float32) * 2.0**-2
    found, forgets = MultiStepSums(ErrorFeedback()), MultiStepSums(None)
    how, ends = Sum.of("e3m0", order="rank"), np.zeros((1, 1), np.float32)
    for step in range(30):
        given = WorkerGradients(["a"], [g], [ends], [np.abs(g).max(1)], [3], (0, step))
        [fed] = found.sum_with_feedback(how, None, given)
        found.add(step, "a", g, fed, 3)
        forgets.add(step, "a", g, np.zeros(3, np.float32), 3)
    assert found.figures()["steps_cosine"] == pytest.approx(1.0)
    assert found.came["a"][0] == pytest.approx(30 * float(g[0, 0]), abs=2.0**-2)
    assert math.isnan(forgets.figures()["steps_cosine"])
    assert MultiStepSums(None).figures() == {}
