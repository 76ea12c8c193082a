"""Anytime-valid evidence for or against one hypothesis: a candidate is at most `margin` worse than its baseline.

A pair consists of the candidate's run and the baseline's run of the same seed. Let d be the difference of a pair
(candidate minus baseline, positive is better), and let x = d + margin. The evidence depends on the statistic

    T = sum(x) / sqrt(sum(x^2) + (n - 1) resolution^2 / 6 + nu s0^2)

of n pairs. `s0` is a prior estimate of the standard deviation of x, which comes from the runs of other candidates. `nu`
is the prior's weight in degrees of freedom. Without a prior, nu is 0.

The e-value is the likelihood ratio of T between two hypotheses: the mean of x is `effect` standard deviations, or it
is 0. It assumes that x is normal. The variance of x is fixed if nu = 0. Otherwise it is drawn from an inverse gamma
distribution with shape nu / 2 and scale nu s0^2 / 2. The e-value controls the error as follows:

- If the mean is 0, the likelihood ratio is a martingale. For nu = 0 it is a Bayes factor with the right Haar prior on
  the standard deviation (M. F. Perez-Ortiz, T. Lardy, R. de Heide, and P. Grünwald, "E-statistics, group invariance and
  anytime-valid testing", arXiv 2208.07610; H. Wang and A. Ramdas, "Anytime-valid t-tests and confidence sequences for
  Gaussian means with unknown variance", arXiv 2310.03722).
- If the mean is below 0, the likelihood ratio is a supermartingale. After each x, this ratio increases with T and the
  likelihood ratio of the true mean decreases with T, so the two are negatively correlated (Chebyshev's association
  inequality).
- An average of likelihood ratios over several effects keeps these properties.
- By Ville's inequality, a candidate that is worse by more than the margin therefore reaches an e-value of 1 / alpha
  with probability at most alpha, over all numbers of pairs together. The evidence may be checked after every pair, and
  a search may stop early or continue later, without any correction.

The same e-value computed from -x is evidence that the candidate is worse by more than the margin.

The test assumes that differences are independent, identically distributed, and not far from normal. A failure that is
too rare to occur in the observed pairs is invisible to any test of the mean.
scripts/research/simulations/simulate_search.py shows how often candidates are certified wrongly if differences are
skewed or have heavy tails. With a prior, the test also assumes that the candidate's standard deviation
resembles those of the other candidates. A candidate that is twice as noisy as the others is certified wrongly more
often. This is why nu is small (`cpdrun.stats.pooled_spread`), and why results also print the interval without the
prior.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from numbers import Real
from statistics import fmean
from typing import Any

from cpdrun.stats.means import deviation

# The effects over which the e-value averages, in standard deviations. A small effect decides a hypothesis after many
# pairs, a large effect after few. The largest effect is for broken formats: three pairs refute such a format even if
# four ladders share the error probability.
EFFECTS = (0.5, 1.0, 2.0, 4.0, 16.0)
# A certificate needs at least this many pairs, because one pair cannot show that a candidate is much noisier than those
# from which its prior was estimated. If the standard deviation is known, one pair is enough.
FEWEST_PAIRS = 2
# If a relative spread is below this, it may come from the rounding error of subtracting two values.
_SPREADLESS = 1e-9
# In 80% of searches, the number of further pairs is between 0.5 and 2 times the expected number.
_LEAST, _MOST = 0.5, 2.0


class Verdict(StrEnum):
    """The verdict on a candidate."""

    CERTIFIED = "certified"  # The candidate is worse than the baseline by at most the margin.
    REFUTED = "refuted"  # The candidate is worse than the baseline by more than the margin.
    OPEN = "open"  # The evidence is not sufficient for either verdict.


@dataclass(frozen=True)
class SpreadPrior:
    """A prior for the standard deviation of a candidate's differences, from other candidates' runs.

    Attributes:
        deviation: The estimate of the standard deviation of a single difference.
        degrees: The weight of the estimate in whole degrees of freedom. 0 for no prior, infinity for a known deviation.
    """

    deviation: float
    degrees: float

    def effect(self, margin: float) -> float | None:
        """Return the effect of a candidate that is exactly as good as its baseline, in standard deviations.

        Its mean is |margin| away from the boundary, so this is |margin| / deviation, or the largest of
        EFFECTS if that is smaller. The result is None without a prior, or if the margin is 0.
        """
        if not (self.degrees > 0 and self.deviation > 0 and margin):
            return None
        return min(abs(margin) / self.deviation, EFFECTS[-1])


NO_PRIOR = SpreadPrior(0.0, 0.0)


@dataclass(frozen=True, order=True)
class PairsRange:
    """The number of further pairs that are likely to decide a verdict.

    Attributes:
        likely: The expected number.
        low: The lower end of the range that contains the number in 80% of searches.
        high: The upper end of this range.
    """

    likely: int
    low: int
    high: int

    def __str__(self) -> str:
        return f"about {self.likely}; {self.low} to {self.high}"


@dataclass(frozen=True)
class Judgment:
    """The result of testing the pairs of one candidate.

    Differences are in the metric's unit, and positive is better. An end of an interval is infinite if the pairs do not
    limit that side.

    Attributes:
        verdict: The verdict.
        pairs: The number of pairs.
        settled_at: The number of pairs at which the verdict was reached. None while it is open.
        mean: The mean difference. NaN without pairs.
        low: The lower end of the confidence interval with the prior, which results print.
        high: The upper end of this interval.
        own_low: The lower end of the confidence interval without the prior.
        own_high: The upper end of this interval.
        log_certify: The natural logarithm of the largest e-value for "within the margin" so far.
        log_refute: The natural logarithm of the largest e-value for "worse by more than the margin" so far.
        deviation: The standard deviation of a single difference, rounding included. NaN with fewer than two pairs.
        prior: The prior for the standard deviation.
        more: The number of further pairs that are likely to decide the verdict. None if unknown.
        trace: The evidence after 1, 2, ... pairs, as the log10 of an e-value. It is positive for "within the margin"
            and negative for "worse by more than the margin".
        errors: The allowed probabilities of a wrong certificate and of a wrong refutation.
    """

    verdict: Verdict
    pairs: int
    settled_at: int | None
    mean: float
    low: float
    high: float
    own_low: float
    own_high: float
    log_certify: float
    log_refute: float
    deviation: float = math.nan
    prior: SpreadPrior = NO_PRIOR
    more: PairsRange | None = None
    trace: tuple[float, ...] = ()
    errors: tuple[float, float] = (math.nan, math.nan)


def log_evidence(
    statistic: float, pairs: int, prior_degrees: float = 0.0, equal_effect: float | None = None
) -> float:
    """Return the natural logarithm of the e-value for a mean of x above 0.

    Args:
        statistic: The statistic T of the module's docstring, at least 0. If `prior_degrees` is infinite, sum(x) / s0.
        pairs: The number of pairs, n.
        prior_degrees: The weight of the prior, nu, rounded down.
        equal_effect: An effect with half of the average's weight, as `SpreadPrior.effect` returns it. EFFECTS share the
            other half. None to average over EFFECTS only.
    """
    mixture = _log_mean([_log_ratio(statistic, pairs, effect, prior_degrees) for effect in EFFECTS])
    if equal_effect is None:
        return mixture
    return _log_mean([mixture, _log_ratio(statistic, pairs, equal_effect, prior_degrees)])


def _enough(alpha: float) -> float:
    return -math.log(alpha) if alpha > 0 else math.inf


def _log_mean(logs: Sequence[float]) -> float:
    top = max(logs)
    return top + math.log(math.fsum(math.exp(each - top) for each in logs) / len(logs))


def _log_ratio(statistic: float, n: int, effect: float, degrees: float) -> float:
    """Return the log of T's likelihood ratio between a mean of `effect` standard deviations and a mean of 0.

    Let w = effect * T and k = n + nu. The likelihood ratio is exp(-n effect^2 / 2) I_(k-1) / (2^(k/2 - 1) Gamma(k/2)),
    where I_j is the integral of y^j exp(-y^2 / 2 + w y) over y > 0. Integration by parts gives
    I_j = w I_(j-1) + (j - 1) I_(j-2). The recursion computes the ratios of consecutive integrals, which cannot
    overflow.
    """
    if math.isinf(degrees):
        return effect * statistic - n * effect**2 / 2
    w, k = effect * statistic, n + int(degrees)
    first = math.sqrt(2 * math.pi) * (1 + math.erf(w / math.sqrt(2))) / 2  # I_0 / exp(w^2 / 2)
    log_integral = w * w / 2 + math.log(first)
    ratio = w + math.exp(-w * w / 2) / first
    for j in range(1, k):
        log_integral += math.log(ratio)
        ratio = w + j / ratio
    return log_integral - n * effect**2 / 2 - (k / 2 - 1) * math.log(2) - math.lgamma(k / 2)


@lru_cache(65536)
def critical_statistic(
    pairs: int, alpha: float, prior_degrees: float = 0.0, equal_effect: float | None = None
) -> float:
    """Return the smallest T whose e-value is at least 1 / alpha. Infinity if there is none.

    The arguments are those of `log_evidence`.
    """
    enough = _enough(alpha)
    most = math.sqrt(pairs)
    if math.isinf(prior_degrees):
        most = (enough + math.log(2 * len(EFFECTS))) / EFFECTS[0] + pairs * EFFECTS[0] / 2
    is_known = pairs + prior_degrees > 1
    if not is_known or log_evidence(most, pairs, prior_degrees, equal_effect) < enough:
        return math.inf
    low, high = 0.0, most
    for _ in range(50):
        middle = (low + high) / 2
        is_enough = log_evidence(middle, pairs, prior_degrees, equal_effect) >= enough
        low, high = (low, middle) if is_enough else (middle, high)
    return high


def half_width(
    pairs: int,
    spread: float,
    alpha: float,
    prior: SpreadPrior = NO_PRIOR,
    equal_effect: float | None = None,
) -> float:
    """Return the half width of a confidence interval, which can be infinity.

    If the mean is this far from a boundary, the e-value is 1 / alpha, and T equals the critical statistic c. The half
    width is c sqrt(W / (n (n - c^2))) with W = (n - 1) spread^2 + nu s0^2, or c s0 / n if the standard deviation is
    known. Here, `spread` is the standard deviation of single differences, rounding included.
    """
    critical = critical_statistic(pairs, alpha, prior.degrees, equal_effect)
    if math.isinf(prior.degrees):
        return critical * prior.deviation / pairs
    rest = pairs - critical**2
    return critical * math.sqrt(_squares(pairs, spread, prior) / (pairs * rest)) if rest > 0 else math.inf


def _squares(pairs: int, spread: float, prior: SpreadPrior) -> float:
    own = (pairs - 1) * spread**2 if pairs > 1 else 0.0
    return own + int(prior.degrees) * prior.deviation**2


def differences(
    ours: Mapping[Any, float],
    baseline: Mapping[Any, float],
    *,
    higher_is_better: bool = True,
    worst: float,
) -> list[float]:
    """Return candidate minus baseline for every shared seed, sorted by seed. Positive is better.

    A seed is left out if both of its runs diverged.

    Args:
        ours: The candidate's metric, keyed by seed. A run that diverged has NaN.
        baseline: The baseline's metric, keyed by seed. A run that diverged has NaN.
        higher_is_better: Whether larger values of the metric are better.
        worst: The value that replaces NaN, such as 0 for an accuracy or the loss of a guessing model.
    """
    sign = 1.0 if higher_is_better else -1.0
    pairs = [(ours[seed], baseline[seed]) for seed in ordered_seeds(ours.keys() & baseline.keys())]
    known = [(a, b) for a, b in pairs if not (math.isnan(a) and math.isnan(b))]
    return [sign * ((worst if math.isnan(a) else a) - (worst if math.isnan(b) else b)) for a, b in known]


def judge(
    gaps: Sequence[float],
    margin: float,
    *,
    certify: float,
    refute: float,
    confidence: float,
    resolution: float = 0.0,
    prior: SpreadPrior = NO_PRIOR,
    most_pairs: int = 1000,
) -> Judgment:
    """Return the verdict on one candidate, from the differences of its pairs.

    The evidence is checked after every pair. Once it is strong enough, the verdict is final. Without a prior, equal
    differences have no measured spread, so they are no evidence.

    Args:
        gaps: The differences, sorted by seed, as `differences` returns them.
        margin: How much worse is still good enough, in the unit of `gaps`. A negative margin requires an improvement.
        certify: The allowed probability of a wrong certificate.
        refute: The allowed probability of a wrong refutation.
        confidence: The confidence of the two-sided intervals as a share, simultaneous over all numbers of pairs.
        resolution: The smallest step of the metric, such as 1 / samples for an accuracy. The spread that rounding may
            hide is added, so that differences equal by chance are no strong evidence.
        prior: The prior for the standard deviation. It must not depend on `gaps`.
        most_pairs: The largest total number of pairs for which `Judgment.more` is computed.
    """
    effect = prior.effect(margin)
    verdict, settled_at = Verdict.OPEN, None
    best = {Verdict.CERTIFIED: 0.0, Verdict.REFUTED: 0.0}
    enough = {Verdict.CERTIFIED: _enough(certify), Verdict.REFUTED: _enough(refute)}
    trace = [0.0] * len(gaps)
    for n, mean, spread in _looks(gaps, margin, resolution, prior):
        statistic = _statistic(mean + margin, spread, n, prior)
        side = Verdict.CERTIFIED if statistic > 0 else Verdict.REFUTED
        if side is Verdict.CERTIFIED and not _can_certify(n, prior):
            continue
        log = max(0.0, log_evidence(abs(statistic), n, prior.degrees, effect))
        trace[n - 1] = math.copysign(log / math.log(10), statistic)
        best[side] = max(best[side], log)
        if settled_at is None and best[side] >= enough[side]:
            verdict, settled_at = side, n
    tail = (1 - confidence) / 2
    own_low, own_high = low, high = _interval(
        _looks(gaps, margin, resolution, NO_PRIOR), tail, NO_PRIOR, None
    )
    if prior.degrees:
        low, high = _interval(_looks(gaps, margin, resolution, prior), tail, prior, effect)
    mean, spread = _moments(gaps, resolution)
    total = pairs_needed(
        mean + margin,
        _pooled(len(gaps), spread, prior),
        certify=certify,
        refute=refute,
        fewest=len(gaps) + 1,
        most=most_pairs,
        prior=prior,
        equal_effect=effect,
    )
    likely = None if total is None else total - len(gaps)
    return Judgment(
        verdict=verdict,
        pairs=len(gaps),
        settled_at=settled_at,
        mean=mean,
        low=low,
        high=high,
        own_low=own_low,
        own_high=own_high,
        log_certify=best[Verdict.CERTIFIED],
        log_refute=best[Verdict.REFUTED],
        deviation=spread,
        prior=prior,
        more=_range(0) if settled_at else None if likely is None else _range(likely),
        trace=tuple(trace),
        errors=(certify, refute),
    )


def pairs_needed(
    distance: float,
    spread: float,
    *,
    certify: float,
    refute: float,
    fewest: int,
    most: int,
    prior: SpreadPrior = NO_PRIOR,
    equal_effect: float | None = None,
) -> int | None:
    """Return how many pairs decide the verdict if further pairs have the same mean and spread.

    About half of all searches need more pairs than this.

    Args:
        distance: The distance of the mean above the boundary. Negative if the mean is below it.
        spread: The standard deviation of single differences.
        certify: The allowed probability of a wrong certificate.
        refute: The allowed probability of a wrong refutation.
        fewest: The smallest number to return.
        most: The largest number to return.
        prior: The prior for the standard deviation.
        equal_effect: As for `log_evidence`.

    Returns:
        The total number of pairs. None if `most` are not enough, or if `distance` or `spread` is 0 or not finite.
    """
    if not spread > 0 or distance == 0 or not math.isfinite(spread * distance):
        return None
    enough = _enough(certify if distance > 0 else refute)

    def settle(pairs: int) -> bool:
        statistic = abs(_statistic(distance, spread, pairs, prior))
        return log_evidence(statistic, pairs, prior.degrees, equal_effect) >= enough

    if most < fewest or not settle(most):
        return None
    # Bisection: with the same mean and spread, more pairs give more evidence.
    low, high = max(1, fewest - 1), most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if settle(middle) else (middle, high)
    return high


def _range(likely: int) -> PairsRange:
    return PairsRange(likely, max(min(1, likely), round(_LEAST * likely)), math.ceil(_MOST * likely))


def _looks(
    gaps: Sequence[float], margin: float, resolution: float, prior: SpreadPrior
) -> Iterator[tuple[int, float, float]]:
    """Yield n and the mean and spread of the first n pairs, for every n for which an e-value exists."""
    for n in range(1, len(gaps) + 1):
        mean, spread = _moments(gaps[:n], resolution)
        if prior.degrees or (n > 1 and spread > _SPREADLESS * (abs(mean) + abs(margin))):
            yield n, mean, spread


def _can_certify(pairs: int, prior: SpreadPrior) -> bool:
    return pairs >= FEWEST_PAIRS or math.isinf(prior.degrees)


def _interval(
    looks: Iterator[tuple[int, float, float]], tail: float, prior: SpreadPrior, effect: float | None
) -> tuple[float, float]:
    """Return the intersection of the intervals after each number of pairs.

    The lower end, which certifies, needs FEWEST_PAIRS. If the intersection becomes empty, start again with the latest
    interval alone.
    """
    low, high = -math.inf, math.inf
    for n, mean, spread in looks:
        half = half_width(n, spread, tail, prior, effect)
        below = mean - half if _can_certify(n, prior) else -math.inf
        low, high = max(low, below), min(high, mean + half)
        if low > high:
            low, high = below, mean + half
    return low, high


def _moments(gaps: Sequence[float], resolution: float) -> tuple[float, float]:
    """Return the mean and the standard deviation of differences, including the metric's rounding error."""
    if not gaps:
        return math.nan, math.nan
    spread = math.hypot(deviation(gaps), resolution / math.sqrt(6)) if len(gaps) > 1 else math.nan
    return fmean(gaps), spread


def _pooled(pairs: int, spread: float, prior: SpreadPrior) -> float:
    if math.isinf(prior.degrees):
        return prior.deviation
    degrees = max(pairs - 1, 0) + int(prior.degrees)
    return math.sqrt(_squares(pairs, spread, prior) / degrees) if degrees else math.nan


def _statistic(mean: float, spread: float, n: int, prior: SpreadPrior) -> float:
    if not mean:
        return 0.0
    if math.isinf(prior.degrees):
        return n * mean / prior.deviation
    own = (n - 1) / n * (spread / mean) ** 2 if n > 1 else 0.0
    pooled = int(prior.degrees) / n * (prior.deviation / mean) ** 2
    return math.copysign(math.sqrt(n / (1 + own + pooled)), mean)


def ordered_seeds(seeds: Any) -> list[Any]:
    """Return the seeds in order: numbers by size, then all others by their text."""

    def key(seed: Any) -> tuple[bool, Any, str]:
        is_number = isinstance(seed, Real)
        return not is_number, seed if is_number else 0, str(seed)

    return sorted(seeds, key=key)
