"""Decide whether a run learned anything. A baseline that did not learn is not fit to compare with.

A model that guesses among K classes has an accuracy of 1 / K and a cross-entropy of ln K. A run learned if its accuracy
is at least 2 / K or at least a tenth of the way from 1 / K to 1 (Cohen's kappa of 0.1), whichever is smaller, or if its
loss is below 95 % of the guess's loss. The thresholds are heuristic; runs that learn and runs that do not are usually
far from them.
"""

import math
from collections.abc import Sequence
from statistics import fmean

from cpdrun.study.metric import Metric

# A diverged run counts as worse than the baseline by this many margins if the metric's worst value is unknown.
TOLERANCES = 10
# The number of classes to assume for older records, which lack it. It may only show that a run did not learn.
CLASSES_IF_UNKNOWN = 10


def guess(metric: Metric, classes: float) -> float:
    """Return the metric of a model that guesses, in the unit of the stored metric; NaN if it is unknown.

    Args:
        metric: The metric.
        classes: The number of classes. NaN if unknown.
    """
    name = metric.name.lower()
    if not (math.isfinite(classes) and classes > 1):
        return math.nan
    if "top5" in name:
        return min(5 / classes, 1.0)
    if metric.is_fraction:
        return 1 / classes
    if "perplexity" in name:
        return float(classes)
    return {"nats": math.log(classes), "bits": math.log2(classes)}.get(metric.measure.shown, math.nan)


def learnt(metric: Metric, value: float, classes: float) -> bool | None:
    """Return whether a value is better than that of a guess; None if the value of a guess is unknown.

    Args:
        metric: The metric.
        value: The value, in the unit of the stored metric.
        classes: The number of classes. NaN if unknown.
    """
    by_chance = guess(metric, classes)
    if not (math.isfinite(by_chance) and math.isfinite(value)):
        return None
    if metric.is_fraction:
        return value >= min(2 * by_chance, by_chance + 0.1 * (1 - by_chance))
    return value < 0.95 * by_chance


def worst(metric: Metric, classes: float, baseline: Sequence[float], tolerance: float) -> float:
    """Return the value that a diverged run counts as.

    It is 0 for a fraction, and the value of a guess for a loss. If the value of a guess is unknown, it is the mean of
    the baseline's values made worse by TOLERANCES margins.

    Args:
        metric: The metric.
        classes: The number of classes. NaN if unknown.
        baseline: The values of the baseline's runs.
        tolerance: The margin in the unit of the stored metric.
    """
    if metric.is_fraction:
        return 0.0
    by_chance = guess(metric, classes)
    if math.isfinite(by_chance):
        return by_chance
    healthy = [value for value in baseline if math.isfinite(value)]
    sign = -1 if metric.higher_is_better else 1
    return (fmean(healthy) if healthy else 0.0) + sign * TOLERANCES * tolerance
