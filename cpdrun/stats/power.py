"""How many seeds would do: the power of a t interval to settle on which side of a boundary a mean lies."""

import math

from cpdrun.stats.intervals import t_quantile, unseen_share

MOST_SEEDS = 1000


def power(seeds: int, effect: float, ci: float) -> float:
    """The probability that the `ci` per cent t interval of a mean over `seeds` lies wholly on its side of a boundary
    `effect` standard deviations away.

    From the noncentral t distribution with seeds - 1 degrees and noncentrality effect * sqrt(seeds): N. L. Johnson,
    S. Kotz and N. Balakrishnan, "Continuous Univariate Distributions", volume 2 (1995), chapter 31.
    """
    from scipy.special import nctdtr

    if seeds < 2:
        return 0.0
    return 1 - float(nctdtr(seeds - 1, effect * math.sqrt(seeds), t_quantile(ci, seeds - 1)))


def seeds_needed(
    distance: float, deviation: float, ci: float, *, samples: float = math.nan, wanted: float = 0.8
) -> int | None:
    """The fewest seeds that settle with probability `wanted`, were the measured figures the true ones.

    `distance`: from the mean to the boundary; `deviation`: of single values; both in one unit. `samples`: of the
    test set, for shares (see `unseen_share`): the interval is no narrower than what equal counts leave open. None
    where MOST_SEEDS would not do, as when the mean lies on the boundary.
    """
    if not distance > 0:
        return None
    least = 2
    if math.isfinite(samples):
        least = next((k for k in range(2, MOST_SEEDS + 1) if unseen_share(k * samples, ci) <= distance), 0)
    if deviation <= 0:
        return least or None
    if not least or power(MOST_SEEDS, distance / deviation, ci) < wanted:
        return None
    low, high = 1, MOST_SEEDS  # power grows with the seeds
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(middle, distance / deviation, ci) >= wanted else (middle, high)
    return max(high, least)
