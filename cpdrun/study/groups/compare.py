"""One set of seeds against another: how far apart, how sure that is, and how many seeds would settle it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from cpdrun.stats.intervals import deviation, is_zero, mean_interval, t_quantile, unseen_share


@dataclass(frozen=True)
class Difference:
    """How much better than the baseline, in the metric's unit; positive is better."""

    mean: float
    half_width: float  # NaN with too few seeds
    method: str  # "paired", "Welch", or "one seed"
    deviation: float = math.nan  # of one seed's difference
    ci: float = 95  # per cent
    samples: float = math.nan  # of the test set, where the metric is a share of them


def difference(
    ours: Mapping[Any, float],
    baseline: Mapping[Any, float],
    *,
    ci: float,
    higher_is_better: bool = True,
    samples: float = math.nan,
) -> Difference:
    """The mean of `ours` less that of `baseline`, each a value by seed, with its `ci` per cent interval.

    Paired over the seeds of `ours` where the baseline ran all of them (a seed fixes data order and initial weights; a
    search gives the baseline more seeds), else of all values, with Welch's interval; with a single seed on either side
    there is no interval. `samples` is the size of the test
    set where values are shares of it, else NaN: the interval is then no narrower than what counts that are equal
    for every seed leave open (the rule of three over all samples judged). Without it equal counts give no interval.
    """
    sign = 1.0 if higher_is_better else -1.0
    if len(ours) > 1 and ours.keys() < baseline.keys():
        baseline = {seed: baseline[seed] for seed in ours}
    mean = sign * (fmean(ours.values()) - fmean(baseline.values()))
    if len(ours) < 2 or len(baseline) < 2:
        return Difference(mean, math.nan, "one seed", ci=ci, samples=samples)
    if ours.keys() == baseline.keys():
        gaps = [ours[seed] - baseline[seed] for seed in ours]
        method, spread, half = "paired", deviation(gaps), mean_interval(gaps, ci)[1]
    else:
        method, (spread, half) = "Welch", _welch(list(ours.values()), list(baseline.values()), ci)
    if math.isfinite(samples):
        half = max(half, unseen_share(samples * min(len(ours), len(baseline)), ci))
    elif is_zero(half):
        half = math.nan
    return Difference(mean, half, method, spread, ci, samples)


def _welch(ours: list[float], baseline: list[float], ci: float) -> tuple[float, float]:
    """Standard deviation of a single difference, and half-width of the interval of the means' difference: B. L. Welch,
    "The generalization of 'Student's' problem when several different population variances are involved", Biometrika
    34 (1947)."""
    va, vb = deviation(ours) ** 2, deviation(baseline) ** 2
    a, b = va / len(ours), vb / len(baseline)
    if a + b == 0:
        return 0.0, 0.0
    degrees = (a + b) ** 2 / (a**2 / (len(ours) - 1) + b**2 / (len(baseline) - 1))
    return math.sqrt(va + vb), t_quantile(ci, degrees) * math.sqrt(a + b)
