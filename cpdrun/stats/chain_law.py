"""How many bits a sum of N gradients needs: a law of the excess loss against the longest run of rounded additions.

    r = c (1 - exp(-z / c)),   z = (k / K)^s,   log2 K = a + b m + h (E - E0)

r: logarithm of a run's loss over that of fp32 with the same workers, order and seed; c: that of a guess's loss, past
which nothing gets; k: rounded additions one after the other into one sum, between which nothing is rescaled; E exponent
and m mantissa bits, E0 the least E. K is the capacity of a format: the chain where r would be about 1.

Why this form. An addend g of a sum S is lost where |g| < |S| 2^-(m+1), half a unit of S's last place (stagnation),
and below half the smallest subnormal, which for the same E lies one binade lower for each digit more. With APS the sum
of k + 1 addends is put below the largest value, so that an addend stands log2(k + 1) binades below it: either way the
chain that a format bears grows by a factor for each mantissa bit, b doublings. Agreeing gradients (S grows as k) give
b = 1, and so does the range; gradients that are noise (S as sqrt k) give b = 2. The errors of k roundings that do not
agree add to 2^-m sqrt(k) of S (N. J. Higham and T. Mary, SIAM Journal on Scientific Computing 41, 2019): b = 2 again.
s, how fast the loss follows, is fitted; h is what an exponent bit adds in doublings. How r bends towards c is a choice:
of this and c z / (c + z), this one came nearer on 64 workers of digits_workers, after both were looked at.

Legend: R runs, P parameters of the law.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from cpdrun.stats.robust_fit import DRAWS, Array, Space, fit, percentiles
from cpdrun.stats.scaling_law import Estimate, NoLawError

HUBER = 0.05  # of r: single runs of the same cell differ by about as much
MOST_DIGITS = 23
NAMES = ("a", "b", "h", "log s")


@dataclass(frozen=True)
class Sums:
    """One row a run, each an array (R,): chain k >= 1, workers N, exponent_bits, mantissa_bits, excess r, ceiling c;
    group: runs that are drawn together, as a rule all seeds of a cell, so that intervals hold what the form misses."""

    chain: Array
    workers: Array
    exponent_bits: Array
    mantissa_bits: Array
    excess: Array
    ceiling: Array
    group: np.ndarray

    def __len__(self) -> int:
        return len(self.excess)

    def take(self, chosen: Any) -> "Sums":
        return Sums(**{field.name: getattr(self, field.name)[chosen] for field in fields(self)})

    @property
    def formats(self) -> list[tuple[float, float]]:
        """(E, m), each once."""
        return sorted(set(zip(self.exponent_bits.tolist(), self.mantissa_bits.tolist(), strict=True)))


@dataclass(frozen=True)
class Needed:
    """The fewest bits a value by the law, and the ends of their interval; inf: more than any format. `by`: E and m."""

    bits: float
    low: float
    high: float
    by: tuple[int, int] | None


class ChainLaw:
    """The law above, fitted."""

    def __init__(self, sums: Sums, *, starts: int = 16, draws: int = DRAWS, seed: int = 0):
        """Raises NoLawError where `sums` cannot hold a law."""
        refuse(sums)
        self.sums, self.least_exponent = sums, float(sums.exponent_bits.min())
        several = len(np.unique(sums.exponent_bits)) > 1
        h = (-2.0, 16.0, 0.0, 4.0) if several else (-1e-6, 1e-6, -1e-7, 1e-7)
        space = Space(
            NAMES,
            np.array([-4.0, 0.0, h[0], math.log(0.2)]),
            np.array([24.0, 6.0, h[1], math.log(5)]),
            np.array([0.0, 0.5, h[2], math.log(0.5)]),
            np.array([10.0, 2.0, h[3], math.log(2)]),
        )
        self.fitted = fit(
            lambda theta, rows: self._model(theta, sums.take(rows)),
            sums.excess,
            space,
            groups=list(sums.group),
            strata=list(sums.workers),
            starts=starts,
            draws=draws,
            seed=seed,
            huber=HUBER,
        )

    def _model(self, theta: Array, sums: Sums) -> tuple[Array, Array]:
        """r (R,) and its derivatives (R, 4)."""
        a, b, h, log_s = theta
        s, more = math.exp(log_s), sums.exponent_bits - self.least_exponent
        doublings = np.log2(sums.chain) - a - b * sums.mantissa_bits - h * more
        z = np.exp2(np.clip(s * doublings, -400, 400))
        left = np.exp(-np.minimum(z / sums.ceiling, 700.0))
        excess = sums.ceiling * (1 - left)
        by_log = left * z * math.log(2) * s  # d r / d doublings
        slope = [-by_log, -by_log * sums.mantissa_bits, -by_log * more, by_log * doublings]
        return excess, np.array(slope).T

    def excess(self, asked: Sums, ci: float = 95) -> tuple[Array, Array, Array]:
        """r by the law (R,), and the interval of a run's: the law's draws with what is left over of the fit added."""
        every = np.array([self._model(theta, asked)[0] for theta in self.fitted.all()])
        n, p = len(self.sums), len(self.fitted.theta)
        left = self.fitted.left_over * math.sqrt(n / max(n - p, 1))
        of_runs = every[1:] + np.random.default_rng(0).choice(left, size=every[1:].shape)
        ends = [percentiles(of_runs[:, i], ci) for i in range(len(asked))]
        low, high = np.array(ends).T.reshape(2, -1)
        return every[0], low, high

    def estimates(self, ci: float) -> dict[str, Estimate]:
        """a, b, h and s; an end of inf is not bounded."""
        found = {}
        for i, name in enumerate(("a", "b", "h", "s")):
            draws, value = self.fitted.drawn[:, i], self.fitted.theta[i]
            if name == "s":
                draws, value = np.exp(draws), math.exp(value)
            below, above = self.fitted.bounded(i, ci)
            known = not self.fitted.undetermined[i] and name not in self.unseen
            low, high = percentiles(draws, ci)
            found[name] = Estimate(
                float(value) if known else math.nan,
                low if below and known else -math.inf,
                high if above and known else math.inf,
            )
        return found

    @property
    def unseen(self) -> dict[str, str]:
        values = np.unique(self.sums.exponent_bits)
        return {} if len(values) > 1 else {"h": f"all formats have {values[0]:g} exponent bits"}

    def capacity(self, exponent_bits: float, mantissa_bits: float, most: float, ci: float) -> Estimate:
        """The longest chain whose r is at most `most`, far below the ceiling."""
        every = np.array(
            [self._capacity(theta, exponent_bits, mantissa_bits, most) for theta in self.fitted.all()]
        )
        low, high = percentiles(every[1:], ci)
        ends = [self.fitted.bounded(i, ci) for i in range(3)]
        bounded_below = all(below for below, _ in ends[:2])
        bounded_above = all(above for _, above in ends[: 3 if exponent_bits > self.least_exponent else 2])
        return Estimate(float(every[0]), low if bounded_below else 0.0, high if bounded_above else math.inf)

    def _capacity(self, theta: Array, exponent_bits: float, mantissa_bits: float, most: float) -> float:
        a, b, h, log_s = theta
        log2 = (
            a
            + b * mantissa_bits
            + h * (exponent_bits - self.least_exponent)
            + math.log2(most) / math.exp(log_s)
        )
        return float(np.exp2(np.clip(log2, -60, 200)))

    def fewest(self, chain: float, most: float, ci: float) -> Needed:
        """The format of fewest bits whose r at `chain` is at most `most`, with the exponent bits that were seen and no
        fewer digits than were seen with them: nothing is known of fewer."""
        every = [self._fewest(theta, chain, most) for theta in self.fitted.all()]
        bits = np.array([one[0] for one in every])
        finite = np.where(np.isinf(bits), 999.0, bits)[1:]
        tail = (50 - ci / 2) / 100
        low, high = (float(np.quantile(finite, q, method="inverted_cdf")) for q in (tail, 1 - tail))
        low, high = (math.inf if end == 999 else end for end in (low, high))
        return Needed(bits[0], low, high, by=every[0][1])

    def _fewest(self, theta: Array, chain: float, most: float) -> tuple[float, tuple[int, int] | None]:
        found: list[tuple[float, tuple[int, int]]] = []
        unknown = self.fitted.undetermined[2]
        for exponent in sorted({e for e, _ in self.sums.formats}):
            if unknown and exponent > self.least_exponent:
                continue
            least = int(min(m for e, m in self.sums.formats if e == exponent))
            for digits in range(least, MOST_DIGITS + 1):
                if self._capacity(theta, exponent, digits, most) >= chain:
                    found.append((1 + exponent + digits, (int(exponent), digits)))
                    break
        return min(found, default=(math.inf, None))


def refuse(sums: Sums) -> None:
    """Raises NoLawError, in a line, for runs that cannot hold the law."""
    if len(sums) == 0:
        raise NoLawError(
            "a law of workers needs finished runs in fp32 and in other formats with APS: there is none"
        )
    for values, word in ((sums.chain, "chain of additions"), (sums.mantissa_bits, "number of mantissa bits")):
        if len(np.unique(values)) < 2:
            raise NoLawError(
                f"a law of workers needs more than one {word}: all {len(sums)} runs have {values[0]:g}"
            )
    if np.all(sums.excess >= 0.9 * sums.ceiling):
        raise NoLawError(f"a law of workers needs runs that learnt: none of {len(sums)} with a format did")


def tolerated(excess: Array, within: Sequence[bool]) -> float:
    """The r that tells cells within the tolerance from those beyond with fewest errors, halfway between two cells; NaN
    where there are none of either kind."""
    inside = np.asarray(within, dtype=bool)
    if not inside.any() or inside.all():
        return math.nan
    order = np.argsort(excess, kind="stable")
    r, ok = np.asarray(excess)[order], inside[order]
    wrong = [int(np.sum(~ok[: i + 1]) + np.sum(ok[i + 1 :])) for i in range(len(r) - 1)]
    i = int(np.argmin(wrong))
    return float(max((r[i] + r[i + 1]) / 2, 1e-3))


@dataclass(frozen=True)
class HeldOutWorkers:
    """A law of fewer workers, asked for the most: rows of `measured`, r by the law, and the ends for a run."""

    law: ChainLaw
    measured: Sums
    predicted: Array
    low: Array
    high: Array

    @property
    def within(self) -> int:
        return int(np.sum((self.measured.excess >= self.low) & (self.measured.excess <= self.high)))

    @property
    def factor(self) -> float:
        """How many times longer the longest chain is than the law has seen."""
        return float(self.measured.chain.max() / self.law.sums.chain.max())


def hold_out_most_workers(sums: Sums, *, ci: float = 95, **settings: Any) -> HeldOutWorkers:
    """Fit without the largest number of workers, then predict it. Raises NoLawError where the rest holds no law."""
    refuse(sums)
    largest = sums.workers == sums.workers.max()
    if largest.all():
        raise NoLawError(
            f"to leave the most workers out a law needs two numbers of them: all runs have {sums.workers[0]:g}"
        )
    law = ChainLaw(sums.take(~largest), **settings)
    measured = sums.take(largest)
    return HeldOutWorkers(law, measured, *law.excess(measured, ci))
