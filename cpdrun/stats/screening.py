"""Design two-level screening experiments, and estimate from few runs which factors matter.

A factor is a part of a model whose bit width is either high or low. A design assigns a level of every factor to each
run. It consists of columns of a Hadamard matrix of order N (R. L. Plackett and J. P. Burman, "The design of optimum
multifactorial experiments", Biometrika 33 (1946)). The N rows are the runs; -1 is the high level and +1 the low level.
Any two columns are orthogonal, so each effect is the difference between two means of N / 2 runs, as if only that factor
had been varied.

In a folded-over design, each run has a mirror image with all levels swapped (G. E. P. Box and K. B. Wilson, Journal of
the Royal Statistical Society B 13 (1951)). It takes twice as many runs, but interactions of two factors no longer bias
the main effects. The fold-over of a Hadamard matrix H is the left half of [[H, H], [-H, H]]. All columns of H, even the
constant one, can therefore carry a factor: 12 factors take 24 runs.

The standard error of an effect is computed in one of two ways:

- With S >= 2 seeds, every run is repeated with the same seeds, which are treated as blocks. The noise is estimated from
  the residuals y_rs - y_r. - y_.s + y.. with (N - 1)(S - 1) degrees of freedom. No model of main effects is assumed, so
  interactions are not mistaken for noise. The test is Student's t.
- With a single seed, Lenth's method is used (R. V. Lenth, "Quick and easy analysis of unreplicated factorials",
  Technometrics 31 (1989)). It assumes that most of the N - 1 contrasts c are noise. Let s0 = 1.5 median |c|. The pseudo
  standard error is 1.5 times the median of all |c| below 2.5 s0. As in the paper, the test uses the t distribution with
  (N - 1) / 3 degrees of freedom.

The verdicts on all factors hold jointly, at the familywise error rate (S. Holm, "A simple sequentially rejective
multiple test procedure", Scandinavian Journal of Statistics 6 (1979)). Each confidence interval holds only on its own.

Shapes: N runs, K factors, S seeds. Values are float64 and finite. NaN and inf raise ValueError, because the caller must
decide which value a diverged run counts as.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy.linalg import hadamard as sylvester
from scipy.special import stdtr, stdtrit

# The first rows of the cyclic designs of Plackett and Burman (1946), keyed by N. Each row has N - 1 signs.
GENERATORS = {
    12: "++-+++---+-",
    20: "++--++++-+-+----++-",
    24: "+++++-+-++--++--+-+----",
    36: "-+-+++---+++++-+++--+----+-+-++--+-",
}
LARGEST = 512  # A design has at most this many runs, because nobody trains more.
HIGH, LOW = -1, +1


class Sensitivity(StrEnum):
    """The verdict on a factor, as reports show it."""

    SENSITIVE = "sensitive"  # The cost of the low level is significantly above 0.
    HARMLESS = "harmless"  # The cost of the low level is significantly below the margin.
    OPEN = "not shown to be either"


@dataclass(frozen=True, eq=False)
class Design:
    """A two-level screening design.

    Attributes:
        hadamard_NxN: The Hadamard matrix, an int64 array of +1 and -1 with orthogonal columns.
        columns: The index of the column that carries each of the K factors.
        is_folded: Whether each run has a mirror image with all levels swapped.
    """

    hadamard_NxN: np.ndarray
    columns: tuple[int, ...]
    is_folded: bool

    @property
    def runs(self) -> int:
        """The number of runs N, without seeds."""
        return len(self.hadamard_NxN)

    @property
    def levels(self) -> np.ndarray:
        """The level of each factor in each run, an int64 array of shape (N, K)."""
        return self.hadamard_NxN[:, list(self.columns)]

    @property
    def _constant(self) -> int:
        return int(np.flatnonzero((self.hadamard_NxN == 1).all(axis=0))[0])


@dataclass(frozen=True)
class Effect:
    """How much worse the metric is at a factor's low level than at its high level.

    Attributes:
        mean: The estimate, in the metric's unit. Positive is worse.
        low: The lower end of the two-sided confidence interval.
        high: The upper end of the interval.
        p_sensitive: The one-sided p-value for an effect above 0, adjusted for the number of factors.
        p_harmless: The one-sided p-value for an effect below the margin, adjusted for the number of factors.
        verdict: The verdict at the requested confidence.
    """

    mean: float
    low: float
    high: float
    p_sensitive: float
    p_harmless: float
    verdict: Sensitivity


@dataclass(frozen=True)
class Effects:
    """The effects of all factors of a design.

    Attributes:
        factors: The effects, in the order of the design's factors.
        error: The standard error, which is the same for all effects.
        degrees: The degrees of freedom of `error`.
        method: How `error` was computed, as text.
    """

    factors: tuple[Effect, ...]
    error: float
    degrees: float
    method: str

    def bound(self, low: Sequence[int], confidence: float) -> float:
        """Return an upper confidence limit for the total cost of setting the factors `low` low.

        It assumes additive effects. The estimates are uncorrelated, so the noise of their sum grows with the square
        root of their number. A negative effect counts as 0, so that noise that looks like a gain offsets no cost. The
        confidence is one-sided and in percent.
        """
        costs = math.fsum(max(0.0, self.factors[i].mean) for i in low)
        return costs + self.margin(len(low), confidence)

    def margin(self, count: int, confidence: float) -> float:
        """Return the part of `bound` that is due to noise, for `count` factors."""
        return joint_margin([(self, count)], confidence)


def joint_margin(parts: Sequence[tuple[Effects, int]], confidence: float) -> float:
    """Return the one-sided margin of error for a sum of effects from several experiments.

    It is the t quantile times the square root of the sum of the squared standard errors, with the degrees of freedom of
    F. E. Satterthwaite, "An approximate distribution of estimates of variance components", Biometrics Bulletin 2
    (1946). Each part is an experiment with the number of its effects in the sum.
    """
    squares = [(count * of.error**2, of.degrees) for of, count in parts]
    variance = math.fsum(square for square, _ in squares)
    if variance == 0:
        return 0.0
    degrees = 1 / math.fsum((square / variance) ** 2 / own for square, own in squares)
    return float(stdtrit(degrees, confidence / 100)) * math.sqrt(variance)


def hadamard_matrix(order: int) -> np.ndarray:
    """Return a Hadamard matrix whose first column is constant, as an int64 array.

    For a power of two, it is Sylvester's (from scipy). Otherwise, it is a cyclic matrix of Plackett and Burman,
    possibly doubled.

    Raises:
        ValueError: No matrix of this order is known here.
    """
    if order not in (1, 2, *orders()):
        raise ValueError(f"no Hadamard matrix of order {order} is known here")
    if order & (order - 1) == 0:
        return sylvester(order).astype(np.int64)
    if order in GENERATORS:
        first = np.array([1 if sign == "+" else -1 for sign in GENERATORS[order]])
        cyclic = np.array([np.roll(first, i) for i in range(order - 1)])
        return np.hstack([np.ones((order, 1), np.int64), np.vstack([cyclic, -np.ones(order - 1, np.int64)])])
    half = hadamard_matrix(order // 2)
    return np.block([[half, half], [half, -half]])


def orders() -> list[int]:
    """Return the orders from 4 to LARGEST with a known Hadamard matrix, in ascending order."""
    found = {2**i for i in range(2, LARGEST.bit_length())}
    for order in GENERATORS:
        found |= {order * 2**i for i in range(LARGEST.bit_length()) if order * 2**i <= LARGEST}
    return sorted(found)


def design(factors: int, *, foldover: bool = True) -> Design:
    """Return the smallest design for a number of factors.

    With foldover, it has 2n runs for the smallest order n of at least `factors`. Without foldover, it has n runs for
    the smallest order n above `factors`. No row occurs twice, because equal runs would show no noise. With foldover, 1
    factor takes 2 runs and 2 factors take 4; with a single seed, so few hardly show the noise.

    Args:
        factors: The number of factors.
        foldover: Whether to add a mirror image of each run.

    Raises:
        ValueError: There is no factor, or the design would need more than LARGEST runs.
    """
    needed = factors if foldover else factors + 1
    most = LARGEST // 2 if foldover else LARGEST
    order = next((order for order in (1, 2, *orders()) if needed <= order <= most), None)
    if factors < 1 or order is None:
        raise ValueError(f"{factors} factors: a design takes 1 to {most if foldover else most - 1}")
    h = hadamard_matrix(order)
    if not foldover:
        return Design(h, tuple(range(1, factors + 1)), is_folded=False)
    # The constant column of h distinguishes a run from its mirror image, so it is used last.
    return Design(np.block([[h, h], [-h, h]]), tuple([*range(1, order), 0][:factors]), is_folded=True)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values, in the order of `p_values`.

    Holm's step-down test at level alpha rejects a hypothesis exactly if its adjusted p-value is at most alpha.
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    found, largest = [1.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        found[i] = largest
    return found


def lenth(contrasts: Sequence[float]) -> float:
    """Return Lenth's pseudo standard error of contrasts, assuming that most of them are noise.

    It is 0 if more than half of the contrasts are 0.
    """
    sizes = np.abs(np.asarray(contrasts, dtype=float))
    s0 = 1.5 * np.median(sizes)
    small = sizes[sizes < 2.5 * s0]
    return float(1.5 * np.median(small)) if len(small) else 0.0


def effects(
    of: Design, worse_NxS: Sequence[Sequence[float]], *, margin: float, confidence: float = 95.0
) -> Effects:
    """Return the effects of all factors of a design.

    If all of several seeds give the same values, the standard error is 0, and any difference is significant.

    Args:
        of: The design.
        worse_NxS: The metric of each run and seed, with a sign such that larger values are worse.
        margin: The cost below which a factor is harmless, in the metric's unit.
        confidence: The confidence in percent of each interval, and jointly of all verdicts "sensitive" and of all
            verdicts "harmless".

    Raises:
        ValueError: A value is not finite, or the number of rows differs from the number of the design's runs.
    """
    y_NxS = np.asarray(worse_NxS, dtype=float)
    if y_NxS.ndim != 2 or len(y_NxS) != of.runs or y_NxS.shape[1] < 1:
        raise ValueError(f"expected values of shape ({of.runs}, seeds), got {tuple(y_NxS.shape)}")
    if not np.isfinite(y_NxS).all():
        raise ValueError("a value is not finite")
    contrasts = 2 / of.runs * of.hadamard_NxN.T @ y_NxS.mean(axis=1)
    error, degrees, method = _error(of, y_NxS, contrasts)
    means = [float(contrasts[column]) for column in of.columns]
    of_zero = holm([_above(mean, 0.0, error, degrees) for mean in means])
    of_margin = holm([_above(margin, mean, error, degrees) for mean in means])
    half = float(stdtrit(degrees, 0.5 + confidence / 200)) * error
    alpha = 1 - confidence / 100
    found = [
        Effect(mean, mean - half, mean + half, p, q, _verdict(p, q, alpha))
        for mean, p, q in zip(means, of_zero, of_margin, strict=True)
    ]
    return Effects(tuple(found), error, degrees, method)


def _error(of: Design, y_NxS: np.ndarray, contrasts: np.ndarray) -> tuple[float, float, str]:
    """Return the standard error of an effect, its degrees of freedom, and the method as text."""
    n, seeds = y_NxS.shape
    if seeds > 1:
        rest = y_NxS - y_NxS.mean(axis=1, keepdims=True) - y_NxS.mean(axis=0) + y_NxS.mean()
        degrees = (n - 1) * (seeds - 1)
        noise = math.sqrt(float((rest**2).sum()) / degrees)
        words = f"Student's t of {degrees} degrees of freedom: {seeds} seeds as blocks"
        return 2 * noise / math.sqrt(n * seeds), degrees, words
    others = np.delete(contrasts, of._constant)
    return lenth(others.tolist()), len(others) / 3, f"Lenth's method over {len(others)} contrasts: one seed"


def _above(larger: float, smaller: float, error: float, degrees: float) -> float:
    """Return the one-sided p-value for the null hypothesis that `larger` is not above `smaller`."""
    if error == 0:
        return 0.0 if larger > smaller else 1.0
    return float(stdtr(degrees, (smaller - larger) / error))


def _verdict(p_sensitive: float, p_harmless: float, alpha: float) -> Sensitivity:
    if p_sensitive <= alpha:
        return Sensitivity.SENSITIVE
    return Sensitivity.HARMLESS if p_harmless <= alpha else Sensitivity.OPEN
