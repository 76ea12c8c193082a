"""A model of the chance that training in a format fails: a logistic regression with a random intercept.

    logit P(fails) = intercept + slope * score + level,    level ~ N(0, level_deviation^2)
    score = damage in the layers + damage in the forward pass + strictness of the margin

A candidate fails if its mean result is worse than the baseline by more than the margin. All candidates of an
experiment, which is one network and its training, share a level. Experiments differ in the damage that they tolerate.
Therefore the score ranks the formats of a new network well but does not determine how many of them fail.

scripts/fit_predict.py fits the three coefficients by maximum likelihood on results/reference/predict/data.csv. It also
reports the accuracy of the predictions for networks that were left out.

If candidates of the experiment were trained, their outcomes turn the prior of the level into a posterior.
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
RANGE = (0.1, 0.9)  # the quantiles that bound the printed 80% range
GRID = np.linspace(-8.0, 8.0, 641)  # a grid of levels, in units of level_deviation
PRIOR_PAIRS = 2  # the usual spread has the weight of this number of pairs

# The weights of the levels in GRID, (641,). The weights of a distribution sum to 1.
Weights = NDArray[np.float64]


@dataclass(frozen=True)
class Chance:
    """The chance that a candidate fails.

    Attributes:
        mean: The mean over the distribution of the level.
        low: The lower end of the 80% range.
        high: The upper end of the 80% range.
    """

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Outcome:
    """The outcome of a candidate that was trained.

    Attributes:
        gap: The mean difference from the baseline, in the unit in which the metric is shown. Positive is better.
        pairs: The number of pairs, which is the number of seeds.
        failure_chance: The chance that the true mean gap is below -margin.
    """

    gap: float
    pairs: int
    failure_chance: float


@dataclass(frozen=True)
class Model:
    """The fitted coefficients, and a description of the data to which they were fitted.

    Attributes:
        intercept: The intercept of the logit.
        slope: The slope of the logit with respect to the score.
        level_deviation: The standard deviation of the level.
        strictness: The smallest and the largest strictness of a margin in the data.
        candidates: The number of candidates in the data.
        experiments: The number of experiments in the data.
    """

    intercept: float
    slope: float
    level_deviation: float
    strictness: tuple[float, float]
    candidates: int
    experiments: int

    def logit(self, damage: Damage, strictness: float) -> float:
        """Return the logit of the chance of failing at the mean level, 0."""
        return self.intercept + self.slope * (damage.total + strictness)

    def level_weights(self, outcomes: Iterable[tuple[float, float]] = ()) -> Weights:
        """Return the distribution of the level, given the outcomes of trained candidates.

        A failure chance c contributes the likelihood c p + (1 - c) (1 - p), where p is the predicted chance. Therefore
        an outcome that the seeds do not decide (c = 0.5) changes nothing.

        Args:
            outcomes: The logit and the failure chance of each trained candidate.
        """
        log_weights = -0.5 * GRID**2
        for logit, failed in outcomes:
            p = self._chances(logit)
            log_weights = log_weights + np.log(np.maximum(failed * p + (1 - failed) * (1 - p), 1e-300))
        weights: Weights = np.exp(log_weights - log_weights.max())
        return weights / weights.sum()

    def chance(self, logit: float, weights: Weights) -> Chance:
        """Return the chance that a candidate fails, given its logit and the distribution of the level."""
        cumulative = np.cumsum(weights) - weights / 2
        low, high = (
            expit(logit + self.level_deviation * float(np.interp(share, cumulative, GRID))) for share in RANGE
        )
        return Chance(float(self._chances(logit) @ weights), low, high)

    def _chances(self, logit: float) -> Weights:
        """Return the chance of failing at each level of GRID."""
        return 0.5 * (1 + np.tanh((logit + self.level_deviation * GRID) / 2))


@cache
def fitted_model() -> Model:
    """Return the model with which this version was released."""
    found = json.loads(files(__package__).joinpath(COEFFICIENTS).read_text(encoding="utf-8"))
    return Model(**{**found, "strictness": tuple(found["strictness"])})


def outcome(gaps: Sequence[float], spread: float, margin: float) -> Outcome:
    """Return the outcome of a trained candidate.

    Args:
        gaps: The difference from the baseline for each pair. Positive is better.
        spread: The usual standard deviation of a pair.
        margin: The margin, in the unit of the gaps.
    """
    mean = math.fsum(gaps) / len(gaps)
    squares = math.fsum((gap - mean) ** 2 for gap in gaps)
    deviation = math.sqrt(squares / (len(gaps) - 1)) if len(gaps) > 1 else spread
    return Outcome(mean, len(gaps), failure_chance(mean, deviation, len(gaps), spread, margin))


def failure_chance(mean: float, deviation: float, pairs: int, spread: float, margin: float) -> float:
    """Return the chance that the true mean gap is below -margin.

    The mean gap follows a t distribution. The variance of a pair is the candidate's own variance, pooled with the usual
    spread, which has the weight of PRIOR_PAIRS pairs. If the variance is 0, the chance is 0 or 1.

    Args:
        mean: The mean gap.
        deviation: The standard deviation of the candidate's pairs.
        pairs: The number of pairs.
        spread: The usual standard deviation of a pair.
        margin: The margin, in the unit of the gaps.
    """
    from scipy.special import stdtr

    variance = pooled_variance(deviation, pairs, spread)
    if variance == 0:
        return float(mean < -margin)
    return float(stdtr(pairs - 1 + PRIOR_PAIRS, (-margin - mean) / math.sqrt(variance / pairs)))


def pooled_variance(deviation: float, pairs: int, spread: float) -> float:
    """Return the variance of one pair: the candidate's own variance, pooled with the usual spread."""
    return ((pairs - 1) * deviation**2 + PRIOR_PAIRS * spread**2) / (pairs - 1 + PRIOR_PAIRS)


def expit(logit: float) -> float:
    """Return 1 / (1 + exp(-logit)) without overflow."""
    return 0.5 * (1 + math.tanh(logit / 2))
