"""Every, most or some of several comparisons hold: how they share the error of what is claimed of them all.

Let the claim be that at least m of K comparisons hold (m = K: every; the first number above K / 2: most; 1: some). It
is certified when m of them are; it is refuted when r = K - m + 1 are refuted, for then fewer than m can hold. If the
claim is false, f >= r of them do not hold, and certifying it takes at least f - r + 1 wrong certificates among these;
each at an error a, Markov's inequality bounds the probability by f a / (f - r + 1), which is largest, r a, at f = r.
So a = alpha / r, and likewise alpha / m of refuting. Every: certified at alpha each, for one that fails is enough to
stop it (an intersection-union test: R. L. Berger, "Multiparameter hypothesis testing and acceptance sampling",
Technometrics 24 (1982)), refuted at alpha / K, for any may refute it (Bonferroni). Some is the mirror image. Nothing
is assumed of how the comparisons hang together: several may share their baseline's runs.

A comparison with two bounds is two: it holds where both do. Both must be certified, each at its whole share; either
may refute it, at half of its share.
"""

from collections.abc import Sequence

from cpdrun.stats.evidence import Verdict

QUANTIFIERS = ("every", "most", "some")


def must_hold(quantifier: str, comparisons: int) -> int:
    """How many of so many comparisons."""
    return {"every": comparisons, "most": comparisons // 2 + 1, "some": 1}[quantifier]


def shares(alpha: float, quantifier: str, comparisons: int) -> tuple[float, float]:
    """The error of certifying and that of refuting that each of at least one comparison may make."""
    needed = must_hold(quantifier, comparisons)
    return alpha / (comparisons - needed + 1), alpha / needed


def verdict(quantifier: str, verdicts: Sequence[Verdict]) -> Verdict:
    """Of the claim, from those of its comparisons at their shares; open without any."""
    needed = must_hold(quantifier, len(verdicts))
    if verdicts and verdicts.count(Verdict.CERTIFIED) >= needed:
        return Verdict.CERTIFIED
    if verdicts and verdicts.count(Verdict.REFUTED) > len(verdicts) - needed:
        return Verdict.REFUTED
    return Verdict.OPEN
