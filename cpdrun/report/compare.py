"""One set of seeds against another: how far apart, and how sure that is."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from cpdrun.report.intervals import deviation, mean_interval, t_quantile


@dataclass(frozen=True)
class Difference:
    """How much better than the baseline, in the metric's unit; positive is better."""

    mean: float
    half_width: float  # NaN with too few seeds
    method: str  # "paired", "Welch", or "one seed"

    def settled(self, tolerance: float) -> bool:
        """Whether the interval lies wholly above or wholly below `-tolerance`."""
        if not math.isfinite(self.half_width):
            return False
        return self.mean - self.half_width >= -tolerance or self.mean + self.half_width < -tolerance


def difference(
    ours: Mapping[Any, float], baseline: Mapping[Any, float], *, ci: float, higher_is_better: bool = True
) -> Difference:
    """The mean of `ours` less that of `baseline`, each a value by seed, with its `ci` per cent interval.

    Paired over the seeds when both ran the same ones (a seed fixes data order and initial weights), Welch's
    interval otherwise; with a single seed on either side there is no interval.
    """
    sign = 1.0 if higher_is_better else -1.0
    mean = sign * (fmean(ours.values()) - fmean(baseline.values()))
    if len(ours) < 2 or len(baseline) < 2:
        return Difference(mean, math.nan, "one seed")
    if ours.keys() == baseline.keys():
        return Difference(mean, mean_interval([ours[s] - baseline[s] for s in ours], ci)[1], "paired")
    va, vb = (
        deviation(list(ours.values())) ** 2 / len(ours),
        deviation(list(baseline.values())) ** 2 / len(baseline),
    )
    if va + vb == 0:
        return Difference(mean, 0.0, "Welch")
    degrees = (va + vb) ** 2 / (va**2 / (len(ours) - 1) + vb**2 / (len(baseline) - 1))
    return Difference(mean, t_quantile(ci, degrees) * math.sqrt(va + vb), "Welch")
