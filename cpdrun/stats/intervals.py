"""Confidence intervals of a mean over a few seeds and of an accuracy on a finite test set.

There are two sources of error. The first is the seed: another initialization and data order give another model. The
second is the test set: the same model has another accuracy on another sample of the same size. All seeds share one
test set, so more seeds do not reduce the second error.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean


@dataclass(frozen=True)
class Interval:
    """A mean and the ends of its interval; NaN ends where it is unknown."""

    mean: float
    low: float = math.nan
    high: float = math.nan

    @property
    def is_known(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)


@cache
def t_quantile(ci: float, degrees: float) -> float:
    """The factor on a standard error that makes a two-sided interval of `ci` per cent (Student 1908)."""
    from scipy.special import stdtrit  # 0.2 s; scipy.stats.t is the same function for 0.8 s

    return float(stdtrit(degrees, 0.5 + ci / 200))


def mean_interval(values: Sequence[float], ci: float) -> tuple[float, float]:
    """Mean of `values` and half-width of its `ci` per cent interval; NaN where too few values leave it open.

    The seeds are taken as independent draws of a normal: with n seeds, mean ± t(n-1) s / sqrt(n).
    """
    n = len(values)
    if n == 0:
        return math.nan, math.nan
    if n == 1:
        return float(values[0]), math.nan
    mean = fmean(values)
    return mean, t_quantile(ci, n - 1) * deviation(values) / math.sqrt(n)


def deviation(values: Sequence[float]) -> float:
    """Standard deviation of a sample of at least two (statistics.stdev, exact in fractions, is far slower)."""
    mean = fmean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def wilson(share: float, samples: float, ci: float) -> tuple[float, float]:
    """Ends of the `ci` per cent interval of a share counted over `samples` independent ones; within 0 and 1.

    The score interval: E. B. Wilson, "Probable inference, the law of succession, and statistical inference",
    Journal of the American Statistical Association 22 (1927). Unlike share ± z s it has a width at 0 and 1.
    """
    from scipy.special import ndtri

    z = float(ndtri(0.5 + ci / 200))
    middle = (share + z * z / (2 * samples)) / (1 + z * z / samples)
    half = z * math.sqrt(share * (1 - share) / samples + z * z / (4 * samples**2)) / (1 + z * z / samples)
    return min(max(middle - half, 0.0), share), max(min(middle + half, 1.0), share)


def share_interval(values: Sequence[float], samples: float, ci: float) -> Interval:
    """The mean of shares 0..1, one a seed, counted over the same `samples` (NaN: unknown), with both errors.

    Student's interval over the seeds and Wilson's over the samples, put together as two independent errors: the
    distance to each end is the root of the sum of the squares of the two distances (G. Y. Zou and A. Donner,
    "Construction of confidence limits about effect measures: a general approach", Statistics in Medicine 27
    (2008)). Ends lie within 0 and 1. With one seed it is unknown; so it is where all seeds are equal and the
    number of samples is not known, for then nothing measures either error.
    """
    mean, half = mean_interval(values, ci)
    if not math.isfinite(half):
        return Interval(mean)
    low, high = mean - half, mean + half
    if not 0 <= mean <= 1:  # no share after all
        return Interval(mean, low, high)
    if math.isfinite(samples) and samples > 0:
        below, above = wilson(mean, samples, ci)
        low, high = mean - math.hypot(half, mean - below), mean + math.hypot(half, above - mean)
    elif is_zero(half):
        return Interval(mean)
    return Interval(mean, max(low, 0.0), min(high, 1.0))


def most_failing(failed: int, samples: int, ci: float) -> float:
    """Return the upper limit, at `ci` per cent, of a share of which `failed` were seen among `samples`.

    This is the exact one-sided limit of C. J. Clopper and E. S. Pearson, "The use of confidence or fiducial limits
    illustrated in the case of the binomial", Biometrika 26 (1934). For 0 of n it is about 3 / n at 95 %, the rule of
    three.
    """
    if failed >= samples:
        return 1.0
    if not failed:
        return float(1 - (1 - ci / 100) ** (1 / samples))
    low, high = failed / samples, 1.0
    for _ in range(60):
        share = (low + high) / 2
        at_most = math.fsum(
            math.comb(samples, k) * share**k * (1 - share) ** (samples - k) for k in range(failed + 1)
        )
        low, high = (share, high) if at_most > 1 - ci / 100 else (low, share)
    return high


def is_zero(width: float) -> bool:
    """Whether an interval has no width, rounding aside: equal values have measured no spread."""
    return abs(width) < 1e-12
