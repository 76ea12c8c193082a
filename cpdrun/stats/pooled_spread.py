"""Estimate a prior for the standard deviation of a cell's differences from other cells.

A cell is one candidate, with its runs of all seeds. The other cells belong to the same sweep and metric. The estimate
is that of limma's squeezeVar: G. K. Smyth, "Linear models and empirical Bayes methods for assessing differential
expression in microarray experiments", Statistical Applications in Genetics and Molecular Biology 3 (2004), section 6.2.
It assumes that variances s_j^2 with d_j degrees of freedom are distributed as s0^2 F(d_j, nu). The mean and the
variance of log s_j^2 determine s0 and nu. Unlike in limma,

- nu is a whole number and at most MOST_DEGREES, so that the others' spread alone never decides about a noisier cell;
  and
- variances of zero are left out.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, variance
from typing import Any

from cpdrun.stats.evidence import NO_PRIOR, SpreadPrior
from cpdrun.stats.means import deviation

MOST_DEGREES = 4  # A prior has at most this many degrees of freedom.
FEWEST_CELLS = 3  # A prior needs at least this many other cells.
# Only the first pairs of each cell are used. Their number is fixed so that further seeds do not change a prior.
FIRST_PAIRS = 3
BROKEN = 5.0  # Cells that are worse by more than this many margins are pooled separately.
# The Bernoulli numbers B_2, B_4, ...
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)


def squeeze(cells: Sequence[tuple[float, float]]) -> SpreadPrior:
    """Return a prior for a cell's standard deviation, from those of other cells.

    Args:
        cells: The standard deviation of each other cell, and its degrees of freedom.

    Returns:
        The prior. NO_PRIOR if fewer than FEWEST_CELLS deviations are positive, or if they differ so much that the prior
        would have less than one degree of freedom.
    """
    known = [(spread, degrees) for spread, degrees in cells if spread > 0 and degrees > 0]
    if len(known) < FEWEST_CELLS:
        return NO_PRIOR
    logs = [2 * math.log(spread) - _log_bias(degrees) for spread, degrees in known]
    middle, excess = fmean(logs), variance(logs) - fmean(_polygamma(1, d / 2) for _, d in known)
    if not excess > 0:
        return SpreadPrior(math.exp(middle / 2), MOST_DEGREES)
    degrees = 2 * _inverse_trigamma(excess)
    whole = min(MOST_DEGREES, math.floor(degrees))
    return SpreadPrior(math.exp((middle + _log_bias(degrees)) / 2), whole) if whole else NO_PRIOR


def priors(
    cells: Mapping[Any, Sequence[float]], margin: float, resolution: float = 0.0
) -> dict[Any, SpreadPrior]:
    """Return the prior of each cell, estimated from the first pairs of the other cells.

    A cell without pairs has no entry. Neither has a cell with fewer than FIRST_PAIRS pairs if the other cells give no
    prior. When a prior is fixed therefore does not depend on the cell's own differences.

    Cells that are worse by more than BROKEN margins are pooled separately, because broken formats are noisier. Here, a
    cell's own mean matters, but such a cell is far from being certified.

    Args:
        cells: The differences of each cell, sorted by seed.
        margin: The margin in the unit of the differences.
        resolution: The smallest step between two values of the metric.
    """
    first = {name: gaps[:FIRST_PAIRS] for name, gaps in cells.items() if gaps}
    is_broken = {name: fmean(gaps) < -BROKEN * abs(margin) for name, gaps in first.items()}
    spreads = {
        name: (math.hypot(deviation(gaps), resolution / math.sqrt(6)), len(gaps) - 1)
        for name, gaps in first.items()
        if len(gaps) > 1 and any(gaps)  # If all differences are 0, the runs are probably identical.
    }
    found = {}
    for name, gaps in first.items():
        of_others = [
            each for other, each in spreads.items() if other != name and is_broken[other] == is_broken[name]
        ]
        prior = squeeze(of_others)
        if prior.degrees or len(gaps) >= FIRST_PAIRS:
            found[name] = prior
    return found


def _log_bias(degrees: float) -> float:
    """Return the mean of log(X / degrees), where X is chi^2 with `degrees` degrees of freedom."""
    return _polygamma(0, degrees / 2) - math.log(degrees / 2)


def _polygamma(order: int, x: float) -> float:
    """Return the digamma function (order 0) or a derivative of it (1 or 2) at x > 0.

    The relative error is about 1e-13. The recurrence raises x to at least 12, where the asymptotic series is accurate
    (Abramowitz and Stegun, 6.3.18, 6.4.12, and 6.4.13). Importing scipy.special takes longer than judging a candidate.
    """
    steps = 0.0
    while x < 12:
        steps += (1 / x, -1 / x**2, 2 / x**3)[order]
        x += 1
    inverse = 1 / x  # Its powers cannot overflow.
    first = (math.log(x), inverse, -(inverse**2))[order]
    second = (-inverse / 2, inverse**2 / 2, -(inverse**3))[order]
    series = 0.0
    for k, bernoulli in enumerate(_BERNOULLI, 1):
        factor = (-1 / (2 * k), inverse, -(2 * k + 1) * inverse**2)[order]
        series += bernoulli * factor * inverse ** (2 * k)
    return first + second + series - steps


def _inverse_trigamma(value: float) -> float:
    """Return the x > 0 with trigamma(x) = value, by the Newton iteration of Smyth's appendix."""
    x = 0.5 + 1 / value
    for _ in range(50):
        trigamma = _polygamma(1, x)
        step = trigamma * (1 - trigamma / value) / _polygamma(2, x)
        x += step
        if -step / x < 1e-10:
            break
    return x
