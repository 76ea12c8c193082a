"""What so many seeds can see: the power of the paired t test.

With n pairs whose differences have standard deviation s, the interval of the mean excludes a point that lies `effect`
from the truth with the probability that a noncentral t variable of n - 1 degrees and noncentrality effect sqrt(n) / s
exceeds the quantile of the interval (J. Cohen, Statistical Power Analysis for the Behavioral Sciences, 1988, chapter 2;
for non-inferiority, where the truth is no difference and the point the margin: S. A. Julious, Sample sizes for clinical
trials with Normal data, Statistics in Medicine 23, 2004). s is estimated from the same few seeds, so the answers are rough.
"""

import math

from cpdrun.report.intervals import t_quantile

USUAL = 0.8  # the power that studies are planned with, since Cohen
MOST_SEEDS = 10_000_000


def power(n: int, effect: float, deviation: float, ci: float) -> float:
    """Probability that the two-sided `ci` per cent interval of `n` paired differences lies wholly on one given side of a
    point that is `effect` away from the true mean difference. `effect` and `deviation` in the same unit, >= 0.
    """
    if n < 2:
        return 0.0
    if deviation == 0:
        return 1.0 if effect > 0 else 0.0
    from scipy.special import nctdtr

    return 1.0 - float(nctdtr(n - 1, effect * math.sqrt(n) / deviation, t_quantile(ci, n - 1)))


def visible_effect(n: int, deviation: float, ci: float, wanted: float = USUAL) -> float:
    """The smallest true difference that `n` pairs tell from none with probability `wanted`; infinite for one pair."""
    if n < 2:
        return math.inf
    low, high = 0.0, 1.0
    while power(n, high, 1.0, ci) < wanted:
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if power(n, middle, 1.0, ci) < wanted else (low, middle)
    return high * deviation


def seeds_needed(margin: float, deviation: float, ci: float, wanted: float = USUAL) -> int | None:
    """The fewest seeds that tell `margin` from none with probability `wanted`; None beyond ten million, or without a
    margin."""
    if margin <= 0:
        return None
    if deviation == 0:
        return 2
    low, high = 1, 2
    while power(high, margin, deviation, ci) < wanted:
        low, high = high, high * 2
        if high > MOST_SEEDS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if power(middle, margin, deviation, ci) < wanted else (low, middle)
    return high
