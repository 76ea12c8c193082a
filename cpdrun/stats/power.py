"""How many seeds would do: the power of a t interval to settle on which side of a boundary a mean lies."""

import math

from cpdrun.stats.intervals import t_quantile

MOST_SEEDS = 1000
_MOST_NONCENTRALITY = 1e6  # where the power is 1 to the last bit; scipy's function gives NaN from 1e10 on
USUAL = 0.8  # the power that studies are planned with (J. Cohen, "Statistical Power Analysis", 1988)


def power(seeds: int, effect: float, ci: float) -> float:
    """The probability that the `ci` per cent t interval of a mean over `seeds` lies wholly on its side of a boundary
    `effect` standard deviations away.

    From the noncentral t distribution with seeds - 1 degrees and noncentrality effect * sqrt(seeds): N. L. Johnson,
    S. Kotz and N. Balakrishnan, "Continuous Univariate Distributions", volume 2 (1995), chapter 31.
    """
    from scipy.special import nctdtr

    if seeds < 2:
        return 0.0
    noncentrality = min(effect * math.sqrt(seeds), _MOST_NONCENTRALITY)
    return 1 - float(nctdtr(seeds - 1, noncentrality, t_quantile(ci, seeds - 1)))


def visible_effect(seeds: int, ci: float, wanted: float = USUAL) -> float:
    """The smallest difference, in standard deviations of single ones, that `seeds` settle with probability `wanted`;
    infinite below two seeds. The inverse of `power`."""
    if seeds < 2:
        return math.inf
    low, high = 0.0, 1.0
    while power(seeds, high, ci) < wanted:
        high *= 2
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if power(seeds, middle, ci) >= wanted else (middle, high)
    return high


def seeds_needed(
    distance: float,
    deviation: float,
    ci: float,
    *,
    samples: float = math.nan,
    wanted: float = USUAL,
    most: int = MOST_SEEDS,
) -> int | None:
    """The fewest seeds that settle with probability `wanted`, were the measured figures the true ones.

    `distance`: from the mean to the boundary; `deviation`: of single values; both in one unit. `samples`: of the
    test set, for shares (see `unseen_share`): the interval is no narrower than what equal counts leave open. None
    where `most` would not do, as when the mean lies on the boundary.
    """
    if not distance > 0:
        return None
    least = 2
    if math.isfinite(samples) and distance < 1:  # where unseen_share(seeds * samples) falls to the distance
        least = max(least, math.ceil(math.log1p(-ci / 100) / math.log1p(-distance) / samples))
    if least > most:
        return None
    if deviation <= 0:
        return least
    if power(most, distance / deviation, ci) < wanted:
        return None
    low, high = 1, most  # power grows with the seeds
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(middle, distance / deviation, ci) >= wanted else (middle, high)
    return max(high, least)
