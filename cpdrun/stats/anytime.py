"""Is a candidate at most a tolerance worse than the baseline? A test that may be looked at after every pair of runs.

Let d be the differences candidate less baseline of one seed each (positive: better), x = d + tolerance, and z the sum
of x over the root of the sum of its squares. For normal x of any spread the likelihood of z under a mean of `effect`
standard deviations over that under a mean of 0 is a martingale where the mean is 0: a Bayes factor with the right Haar
prior on the standard deviation, which is the best that scale-invariant data allow (M. F. Perez-Ortiz, T. Lardy,
R. de Heide and P. Grünwald, "E-statistics, group invariance and anytime-valid testing", arXiv 2208.07610; H. Wang and
A. Ramdas, "Anytime-valid t-tests and confidence sequences for Gaussian means with unknown variance", arXiv 2310.03722).
Where the mean is below 0 it is a supermartingale: after each x it and the likelihood ratio of the true mean to 0 are
monotone in z in opposite directions, so that they are negatively correlated (Chebyshev's association inequality), and
the mean of their product is at most 1. So is the average over several effects. By Ville's inequality the
probability that the evidence for x > 0 ever reaches 1 / alpha, though more than the tolerance is missing, is at most
alpha: stopping early, going on tomorrow and looking in between cost nothing. The mirror, -x, refutes.

A difference is certified or refuted from the first pair on at which its evidence is enough, in the order of the seeds.

Assumed is that differences are independent, of one distribution, and not far from normal. Where they are skewed
towards rare bad runs, what is rare is not seen in few pairs and no test of the mean can know it:
scripts/simulate_search.py shows how much that costs.

Several questions share the error (`shares`). Along one chain of formats, most bits first, each is asked only when the
one before it was certified: all may have the whole of alpha, for one too few bits is claimed only if the first format
that is worse than allowed is certified (fixed-sequence testing: W. Maurer, L. A. Hothorn and W. Lehmacher, "Multiple
comparisons in drug clinical trials and preclinical assays: a-priori ordered hypotheses", Biometrie in der
chemisch-pharmazeutischen Industrie 6 (1995)). Of k formats of one width any may open the next: each has alpha / k, so
that a width of which none is good enough is passed with probability alpha at most (Bonferroni). A width is refuted
when all of its formats are; that errs only if a good one is refuted, so that refuting needs no such share. A chain may
start below its widest, where a prediction says so: `cpdrun.stats.chain` has its shares. Chains beside each other (with
and without scaling, several numbers of workers) have equal shares of both.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from numbers import Real
from statistics import fmean
from typing import Any

from cpdrun.stats.intervals import deviation

# Standard deviations: small ones settle after many pairs, large ones after few. The last is for what is broken: three
# pairs refute it, though four chains share the error.
EFFECTS = (0.5, 1.0, 2.0, 4.0, 16.0)
_SPREADLESS = 1e-9  # relative: smaller than what subtracting two values leaves to rounding


class Verdict(StrEnum):
    CERTIFIED = "certified"  # at most the tolerance worse
    REFUTED = "refuted"  # more than the tolerance worse
    OPEN = "open"


@dataclass(frozen=True)
class Judgement:
    """What the pairs say of one candidate. Differences are in the metric's unit, positive is better."""

    verdict: Verdict
    pairs: int
    settled_at: int | None  # pairs, when it was settled
    mean: float  # of all differences; NaN without any
    low: float  # one end of the anytime interval, at the level of certifying; infinite where it is open
    high: float  # and the other, at the level of refuting
    log_certify: float  # largest evidence so far, natural logarithm; certified at log(1 / alpha)
    log_refute: float
    deviation: float = math.nan  # of a single difference
    more: int | None = None  # about how many more pairs would settle it; None: more than were asked for


def shares(alpha: float, formats: int, chains: int) -> tuple[float, float]:
    """The error of certifying and that of refuting that one of `formats` of one width in one of `chains` may make."""
    return alpha / (formats * chains), alpha / chains


def log_evidence(z: float, pairs: int) -> float:
    """Natural logarithm of the e-value for a mean above 0, from z = sum(x) / sqrt(sum(x ** 2)) of so many pairs; z is
    at least 0, for below there is no evidence."""
    terms = [_log_ratio(z, pairs, effect) for effect in EFFECTS]
    top = max(terms)
    return top + math.log(math.fsum(math.exp(term - top) for term in terms) / len(terms))


def _log_ratio(z: float, n: int, effect: float) -> float:
    """log of the likelihood of z with a mean of `effect` standard deviations over that with a mean of 0.

    With w = effect * z: exp(-n effect^2 / 2) / (2^(n/2 - 1) Gamma(n/2)) times I_(n-1), where I_k is the integral of
    y^k exp(-y^2 / 2 + w y) over y > 0, the y being the root of the sum of squares over the standard deviation. By parts
    I_k = w I_(k-1) + (k - 1) I_(k-2): the ratios of neighbours are followed, which cannot overflow.
    """
    w = effect * z
    first = math.sqrt(2 * math.pi) * (1 + math.erf(w / math.sqrt(2))) / 2  # I_0 / exp(w^2 / 2)
    log_integral = w * w / 2 + math.log(first)
    ratio = w + math.exp(-w * w / 2) / first
    for k in range(1, n):
        log_integral += math.log(ratio)
        ratio = w + k / ratio
    return log_integral - n * effect**2 / 2 - (n / 2 - 1) * math.log(2) - math.lgamma(n / 2)


@cache
def critical_z(pairs: int, alpha: float) -> float:
    """The z from which on the evidence of so many pairs is 1 / alpha; infinite where none is enough."""
    enough, most = math.log(1 / alpha), math.sqrt(pairs)
    if pairs < 2 or log_evidence(most, pairs) < enough:
        return math.inf
    low, high = 0.0, most
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if log_evidence(middle, pairs) >= enough else (middle, high)
    return high


def critical_t(pairs: int, alpha: float) -> float:
    """The same as a factor on the standard error: mean - critical_t * deviation / sqrt(pairs) is the lower end of a
    confidence sequence, which is below the true mean after every number of pairs with probability 1 - alpha."""
    z = critical_z(pairs, alpha)
    if math.isinf(z):
        return math.inf
    rest = pairs - z * z
    return z * math.sqrt((pairs - 1) / rest) if rest > 0 else math.inf


def differences(
    ours: Mapping[Any, float],
    baseline: Mapping[Any, float],
    *,
    higher_is_better: bool = True,
    worst: float,
) -> list[float]:
    """Candidate less baseline for every seed that both have, in the order of the seeds; positive is better.

    NaN stands for a run that diverged: it counts as `worst`, the worst value that the metric can have (0 for an
    accuracy, a guess's for a loss). A seed that diverged with both says nothing and is left out, as is one that
    either lacks.
    """
    sign = 1.0 if higher_is_better else -1.0
    pairs = [(ours[seed], baseline[seed]) for seed in _ordered(ours.keys() & baseline.keys())]
    known = [(a, b) for a, b in pairs if not (math.isnan(a) and math.isnan(b))]
    return [sign * ((worst if math.isnan(a) else a) - (worst if math.isnan(b) else b)) for a, b in known]


def judge(
    gaps: Sequence[float],
    tolerance: float,
    *,
    certify: float,
    refute: float,
    resolution: float = 0.0,
    most_pairs: int = 1000,
) -> Judgement:
    """The verdict on differences in the order of their seeds, at errors `certify` and `refute`.

    `resolution`: the step in which the metric counts, 1 / samples for an accuracy; what rounding to it may hide is
    added to the spread, so that counts which happen to be equal prove no more than they can. Where it is 0, equal
    differences have measured no spread and settle nothing. `most_pairs`: further than that `more` does not look.
    `tolerance` may be below 0: the boundary lies at -tolerance, wherever that is.
    """
    verdict, settled_at = Verdict.OPEN, None
    evidence = {Verdict.CERTIFIED: 0.0, Verdict.REFUTED: 0.0}
    low, high = -math.inf, math.inf
    for n in range(2, len(gaps) + 1):
        mean, spread = _moments(gaps[:n], resolution)
        if spread <= _SPREADLESS * (abs(mean) + abs(tolerance)):
            continue
        z = _z(mean + tolerance, spread, n)
        for side, sign, alpha in ((Verdict.CERTIFIED, 1, certify), (Verdict.REFUTED, -1, refute)):
            if sign * z > 0:
                evidence[side] = max(evidence[side], log_evidence(sign * z, n))
            if settled_at is None and evidence[side] >= math.log(1 / alpha):
                verdict, settled_at = side, n
        ends = (
            mean - critical_t(n, certify) * spread / math.sqrt(n),
            mean + critical_t(n, refute) * spread / math.sqrt(n),
        )
        low, high = max(low, ends[0]), min(high, ends[1])
        if low > high:
            low, high = ends
    mean, spread = _moments(gaps, resolution)
    more = 0 if settled_at else _more(len(gaps), mean + tolerance, spread, certify, refute, most_pairs)
    return Judgement(
        verdict,
        len(gaps),
        settled_at,
        mean,
        low,
        high,
        evidence[Verdict.CERTIFIED],
        evidence[Verdict.REFUTED],
        spread,
        more,
    )


def trace(gaps: Sequence[float], tolerance: float, resolution: float = 0.0) -> list[float]:
    """log10 of the evidence after 2, 3 ... pairs: for certifying above 0, that for refuting with a minus below it; 0
    where there is none, for evidence against what one believes anyway is not kept."""
    found = []
    for n in range(2, len(gaps) + 1):
        mean, spread = _moments(gaps[:n], resolution)
        z = _z(mean + tolerance, spread, n) if spread > _SPREADLESS * (abs(mean) + abs(tolerance)) else 0.0
        found.append(math.copysign(max(0.0, log_evidence(abs(z), n)) / math.log(10), z))
    return found


def pairs_needed(
    distance: float, spread: float, *, certify: float, refute: float, fewest: int, most: int
) -> int | None:
    """How many pairs would settle it, were the mean `distance` above the boundary and `spread` the deviation of single
    differences, both as measured; at least `fewest`, None where `most` are not enough. Half of the searches need more.
    """
    if not spread > 0 or distance == 0 or not math.isfinite(spread * distance):
        return None
    enough = math.log(1 / (certify if distance > 0 else refute))

    def settle(pairs: int) -> bool:
        return log_evidence(abs(_z(distance, spread, pairs)), pairs) >= enough

    if most < fewest or not settle(most):
        return None
    low, high = max(1, fewest - 1), most  # the same figures over more pairs are more evidence
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if settle(middle) else (middle, high)
    return high


def _more(pairs: int, distance: float, spread: float, certify: float, refute: float, most: int) -> int | None:
    found = pairs_needed(distance, spread, certify=certify, refute=refute, fewest=pairs + 1, most=most)
    return None if found is None else found - pairs


def _moments(gaps: Sequence[float], resolution: float) -> tuple[float, float]:
    """Mean and deviation, rounding of either of two values included."""
    if not gaps:
        return math.nan, math.nan
    spread = math.hypot(deviation(gaps), resolution / math.sqrt(6)) if len(gaps) > 1 else math.nan
    return fmean(gaps), spread


def _z(mean: float, spread: float, n: int) -> float:
    """sum(x) / sqrt(sum(x ** 2)) of n values of this mean and deviation."""
    return math.copysign(math.sqrt(n / (1 + (n - 1) / n * (spread / mean) ** 2)), mean) if mean else 0.0


def _ordered(seeds: Any) -> list[Any]:
    """Numbers by their size, whatever a table has made of them, then all else."""

    def key(seed: Any) -> tuple[bool, Any, str]:
        is_number = isinstance(seed, Real)
        return not is_number, seed if is_number else 0, str(seed)

    return sorted(seeds, key=key)
