"""The chance that training in a format fails: a logistic regression with a random intercept.

    logit P(fails) = intercept + slope * score + level,    level ~ N(0, level_deviation^2)
    score = damage in the layers + damage in the forward pass + strictness of the margin

A candidate fails if its mean gap to the baseline exceeds the margin. The level belongs to one experiment, that is one
network and its training: experiments differ in how much damage they tolerate, so the score ranks the formats of a new
network well and says little about how many of them fail. scripts/fit_predict.py fits the three coefficients by maximum
likelihood on results/reference/predict/data.csv and reports how well they do on networks that were left out.

Candidates of the experiment that were trained narrow the level down: their outcomes turn its prior into a posterior.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from cpdrun.whatif.damage import Damage

COEFFICIENTS = "fitted.json"
RANGE = (0.1, 0.9)  # quantiles of the printed 80 % range
GRID = np.linspace(-8.0, 8.0, 641)  # grid of levels, in units of the standard deviation of a level
PRIOR_PAIRS = 2  # the number of pairs that the usual spread counts as

Weights = NDArray[np.float64]  # the weight of each level of GRID; they sum to 1


@dataclass(frozen=True)
class Chance:
    """The chance of failing: its mean over the levels, and the 80 % range from `low` to `high`."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Outcome:
    """What the trained runs of a candidate showed.

    Attributes:
        gap: The mean difference to the baseline, in the unit in which the metric is shown. Positive is better.
        pairs: The number of seeds behind it.
        failure_chance: The chance that the true mean gap exceeds the margin.
    """

    gap: float
    pairs: int
    failure_chance: float


@dataclass(frozen=True)
class Model:
    """The fitted coefficients, and the data that they were fitted on.

    Attributes:
        strictness: The smallest and the largest strictness of a margin in the data.
    """

    intercept: float
    slope: float
    level_deviation: float
    strictness: tuple[float, float]
    candidates: int
    experiments: int

    def logit(self, damage: Damage, strictness: float) -> float:
        """Return the logit of the chance at the middle level."""
        return self.intercept + self.slope * (damage.total + strictness)

    def level_weights(self, outcomes: Iterable[tuple[float, float]] = ()) -> Weights:
        """Return the distribution of the level given (logit, failure chance) of each trained candidate.

        A failure chance of c contributes the likelihood c p + (1 - c) (1 - p), so an outcome that the seeds leave open
        (c = 0.5) changes nothing.
        """
        log_weights = -0.5 * GRID**2
        for logit, failed in outcomes:
            p = self._chances(logit)
            log_weights = log_weights + np.log(np.maximum(failed * p + (1 - failed) * (1 - p), 1e-300))
        weights: Weights = np.exp(log_weights - log_weights.max())
        return weights / weights.sum()

    def chance(self, logit: float, weights: Weights) -> Chance:
        """Return the chance of a candidate of this logit, given the distribution of the level."""
        cumulative = np.cumsum(weights) - weights / 2
        low, high = (
            expit(logit + self.level_deviation * float(np.interp(share, cumulative, GRID))) for share in RANGE
        )
        return Chance(float(self._chances(logit) @ weights), low, high)

    def _chances(self, logit: float) -> Weights:
        return 0.5 * (1 + np.tanh((logit + self.level_deviation * GRID) / 2))


@cache
def fitted_model() -> Model:
    """Return the model that this version was released with."""
    found = json.loads(files(__package__).joinpath(COEFFICIENTS).read_text(encoding="utf-8"))
    return Model(**{**found, "strictness": tuple(found["strictness"])})


def outcome(gaps: Sequence[float], spread: float, margin: float) -> Outcome:
    """Return what the gaps of a candidate's pairs show. `spread`: the standard deviation that is usual for a pair."""
    mean = math.fsum(gaps) / len(gaps)
    squares = math.fsum((gap - mean) ** 2 for gap in gaps)
    deviation = math.sqrt(squares / (len(gaps) - 1)) if len(gaps) > 1 else spread
    return Outcome(mean, len(gaps), failure_chance(mean, deviation, len(gaps), spread, margin))


def failure_chance(mean: float, deviation: float, pairs: int, spread: float, margin: float) -> float:
    """Return the chance that the true mean gap is below -margin.

    It follows a t distribution. The variance of a pair is the candidate's own, pooled with the usual spread, which
    counts as PRIOR_PAIRS pairs. Without any variance the chance is 0 or 1.
    """
    from scipy.special import stdtr

    variance = pooled_variance(deviation, pairs, spread)
    if variance == 0:
        return float(mean < -margin)
    return float(stdtr(pairs - 1 + PRIOR_PAIRS, (-margin - mean) / math.sqrt(variance / pairs)))


def pooled_variance(deviation: float, pairs: int, spread: float) -> float:
    """Return the variance of one pair: the candidate's own, pooled with the usual spread."""
    return ((pairs - 1) * deviation**2 + PRIOR_PAIRS * spread**2) / (pairs - 1 + PRIOR_PAIRS)


def expit(logit: float) -> float:
    """Return 1 / (1 + exp(-logit)) without overflow."""
    return 0.5 * (1 + math.tanh(logit / 2))
