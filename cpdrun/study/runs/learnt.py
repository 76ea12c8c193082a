"""Whether a run learnt at all: a baseline that did not is nothing to compare with.

A model that guesses among K classes is right once in K, and its cross-entropy is ln K. Accuracies count as learnt
from twice that share on, or from a tenth of the way between it and 1 where that is less (Cohen's kappa of 0.1); a
loss, below 95 % of the guess's. Heuristic thresholds: what they must tell apart lies far from both.
"""

import math
from collections.abc import Sequence
from statistics import fmean

from cpdrun.study.metric import Metric

TOLERANCES = 10  # worse than the baseline is a diverged run, where neither the metric nor a guess is bounded
CLASSES_IF_UNKNOWN = 10  # older records do not say; used only to doubt, never to vouch


def guess(metric: Metric, classes: float) -> float:
    """What guessing among `classes` gives, in the metric's own unit; NaN where that is not known."""
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
    """Whether `value` is better than a guess's; None where nothing says so."""
    by_chance = guess(metric, classes)
    if not (math.isfinite(by_chance) and math.isfinite(value)):
        return None
    if metric.is_fraction:
        return value >= min(2 * by_chance, by_chance + 0.1 * (1 - by_chance))
    return value < 0.95 * by_chance


def worst(metric: Metric, classes: float, baseline: Sequence[float], tolerance: float) -> float:
    """What a diverged run counts as: 0 of a fraction, what guessing gives of a loss; where that is not known, so many
    tolerances worse than the mean of the baseline's values."""
    if metric.is_fraction:
        return 0.0
    by_chance = guess(metric, classes)
    if math.isfinite(by_chance):
        return by_chance
    healthy = [value for value in baseline if math.isfinite(value)]
    sign = -1 if metric.higher_is_better else 1
    return (fmean(healthy) if healthy else 0.0) + sign * TOLERANCES * tolerance
