"""Two-level screening designs, and what their runs say: which of many factors matter, found in few runs.

A design is some columns of a Hadamard matrix of order N (R. L. Plackett and J. P. Burman, "The design of optimum
multifactorial experiments", Biometrika 33 (1946)): N runs, each with every factor high (-1) or low (+1), any two
columns orthogonal, so that each effect is a difference of two means of N / 2 runs, as if it alone had been varied.
Folded over (G. E. P. Box and K. B. Wilson, Journal of the Royal Statistical Society B 13 (1951)) each run has a mirror
image with all levels swapped: then no interaction of two factors bears on any effect of one, at twice the runs. The
fold-over of a Hadamard matrix H is the left half of the one of twice the order, [[H, H], [-H, H]], so that all columns
of H, the constant one too, carry a factor: 12 factors take 24 runs.

How sure an effect is:

- Each run repeated with S >= 2 seeds: the same seeds for every row, which are blocks. The noise is what rows and seeds
  do not explain, y_rs - y_r. - y_.s + y.., of (N - 1)(S - 1) degrees of freedom; it takes nothing from the model of
  main effects, so that interactions are not taken for noise. Student's t.
- One seed: R. V. Lenth, "Quick and easy analysis of unreplicated factorials", Technometrics 31 (1989): of the N - 1
  contrasts, those that carry no factor included, most are noise alone; s0 = 1.5 median |c|, and the pseudo standard
  error is 1.5 median of the |c| below 2.5 s0. Taken as t of (N - 1) / 3 degrees of freedom, as there.

Several factors are judged at once: verdicts hold together, at the family's error (S. Holm, "A simple sequentially
rejective multiple test procedure", Scandinavian Journal of Statistics 6 (1979)); intervals hold one by one.

Shapes: N runs, K factors, S seeds. Values are float64 and finite; NaN and inf raise ValueError: what a diverged run
counts as is the caller's to say.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy.linalg import hadamard as sylvester
from scipy.special import stdtr, stdtrit

# first rows of the cyclic designs of Plackett and Burman (1946); N - 1 signs
GENERATORS = {
    12: "++-+++---+-",
    20: "++--++++-+-+----++-",
    24: "+++++-+-++--++--+-+----",
    36: "-+-+++---+++++-+++--+----+-+-++--+-",
}
LARGEST = 512  # runs; beyond, nobody trains them
HIGH, LOW = -1, +1


class Sensitivity(StrEnum):
    SENSITIVE = "sensitive"  # shown to cost something
    HARMLESS = "harmless"  # shown to cost less than the margin
    OPEN = "not shown to be either"


@dataclass(frozen=True, eq=False)
class Design:
    """hadamard_NxN: int, +1 and -1, columns orthogonal; columns: which K of them carry the factors, in order."""

    hadamard_NxN: np.ndarray
    columns: tuple[int, ...]
    is_folded: bool

    @property
    def runs(self) -> int:
        return len(self.hadamard_NxN)

    @property
    def levels(self) -> np.ndarray:
        """(N, K): LOW where the run has a factor's low bits."""
        return self.hadamard_NxN[:, list(self.columns)]

    @property
    def _constant(self) -> int:
        return int(np.flatnonzero((self.hadamard_NxN == 1).all(axis=0))[0])


@dataclass(frozen=True)
class Effect:
    """How much worse the metric is with a factor low than high, and its interval; `p_sensitive` and `p_harmless` are
    one-sided, already adjusted for all factors."""

    mean: float
    low: float
    high: float
    p_sensitive: float
    p_harmless: float
    verdict: Sensitivity


@dataclass(frozen=True)
class Effects:
    """Of all factors, in the order of the design's columns; `error`: the standard error that all share, with its
    `degrees` of freedom; `method`: how it was found, in words."""

    factors: tuple[Effect, ...]
    error: float
    degrees: float
    method: str

    def bound(self, low: Sequence[int], confidence: float) -> float:
        """What these factors together cost at most, one-sided at `confidence` per cent, were effects to add up.

        Estimates are uncorrelated, so noise grows by the root of their number: this is less than the sum of their upper
        ends. An effect below zero counts as none: noise that looks like a gain pays for nothing.
        """
        costs = math.fsum(max(0.0, self.factors[i].mean) for i in low)
        return costs + self.margin(len(low), confidence)

    def margin(self, count: int, confidence: float) -> float:
        """The noise's part of `bound`, of so many factors."""
        return joint_margin([(self, count)], confidence)


def joint_margin(parts: Sequence[tuple[Effects, int]], confidence: float) -> float:
    """The noise of a sum of effects of several screens, so many of each, one-sided at `confidence` per cent: t
    times the root of the sum of squared errors, of the degrees of freedom of F. E. Satterthwaite, "An approximate
    distribution of estimates of variance components", Biometrics Bulletin 2 (1946). 0 where no error is above 0."""
    squares = [(count * of.error**2, of.degrees) for of, count in parts]
    variance = math.fsum(square for square, _ in squares)
    if variance == 0:
        return 0.0
    degrees = 1 / math.fsum((square / variance) ** 2 / own for square, own in squares)
    return float(stdtrit(degrees, confidence / 100)) * math.sqrt(variance)


def hadamard_matrix(order: int) -> np.ndarray:
    """A Hadamard matrix of this order, (order, order) of int64, first column constant: Sylvester's where the order is a
    power of two (scipy), Plackett and Burman's cyclic ones, or either doubled. Raises ValueError for others."""
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
    """Numbers of runs for which there is a matrix, up to LARGEST."""
    found = {2**i for i in range(2, LARGEST.bit_length())}
    for order in GENERATORS:
        found |= {order * 2**i for i in range(LARGEST.bit_length()) if order * 2**i <= LARGEST}
    return sorted(found)


def design(factors: int, *, foldover: bool = True) -> Design:
    """The smallest one for so many factors: folded over 2n runs, the least n >= factors; else n runs, n > factors. No
    row stands there twice, for a run that is read twice has no noise: 1 and 2 factors take 2 and 4, and have next to
    nothing to be judged by where each is run once. Raises ValueError for fewer than one, and for more than fit in
    LARGEST runs."""
    needed = factors if foldover else factors + 1
    most = LARGEST // 2 if foldover else LARGEST
    order = next((order for order in (1, 2, *orders()) if needed <= order <= most), None)
    if factors < 1 or order is None:
        raise ValueError(f"{factors} factors: a design takes 1 to {most if foldover else most - 1}")
    h = hadamard_matrix(order)
    if not foldover:
        return Design(h, tuple(range(1, factors + 1)), is_folded=False)
    # the constant column of h becomes the one that tells a run from its mirror image: the last to be used
    return Design(np.block([[h, h], [-h, h]]), tuple([*range(1, order), 0][:factors]), is_folded=True)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given: at most alpha exactly where the step-down test rejects."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    found, largest = [1.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        found[i] = largest
    return found


def lenth(contrasts: Sequence[float]) -> float:
    """The pseudo standard error of contrasts of which most are noise alone; 0 where more than half of them are 0."""
    sizes = np.abs(np.asarray(contrasts, dtype=float))
    s0 = 1.5 * np.median(sizes)
    small = sizes[sizes < 2.5 * s0]
    return float(1.5 * np.median(small)) if len(small) else 0.0


def effects(
    of: Design, worse_NxS: Sequence[Sequence[float]], *, margin: float, confidence: float = 95.0
) -> Effects:
    """`worse_NxS`: the metric of each run and seed, more being worse; `margin`: the cost below which a factor is
    harmless, in its unit; `confidence`: per cent, of each interval, and of all verdicts of a kind together.

    Where nothing varies from seed to seed at all the error is 0, and what differs counts as shown. Raises ValueError
    for values that are not finite, and for a wrong number of them.
    """
    y_NxS = np.asarray(worse_NxS, dtype=float)
    if y_NxS.ndim != 2 or len(y_NxS) != of.runs or y_NxS.shape[1] < 1:
        raise ValueError(f"{of.runs} runs of the same seeds are needed, not values of shape {y_NxS.shape}")
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
    """Standard error of an effect, degrees of freedom, and how they were found."""
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
    """p-value, one-sided, of `larger` not being above `smaller`."""
    if error == 0:
        return 0.0 if larger > smaller else 1.0
    return float(stdtr(degrees, (smaller - larger) / error))


def _verdict(p_sensitive: float, p_harmless: float, alpha: float) -> Sensitivity:
    if p_sensitive <= alpha:
        return Sensitivity.SENSITIVE
    return Sensitivity.HARMLESS if p_harmless <= alpha else Sensitivity.OPEN
