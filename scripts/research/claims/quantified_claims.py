"""Claims that every, most or some of several comparisons hold, and how the comparisons share the error probability.

A claim says that at least m of K comparisons hold: m = K for "every", the first number above K / 2 for "most", and 1
for "some". The claim is certified if m comparisons are certified. It is refuted if r = K - m + 1 comparisons are
refuted, because fewer than m can hold then.

If the claim is false, f >= r comparisons do not hold, and certifying the claim takes at least f - r + 1 wrong
certificates among them. If each is wrong with probability a, Markov's inequality bounds the probability of this by
f a / (f - r + 1). The bound is largest at f = r, where it is r a. Each comparison may therefore be certified at the
error probability alpha / r, and by the same argument refuted at alpha / m.

For "every", each comparison is certified at alpha, because a single comparison that is not certified prevents the claim
from being certified (an intersection-union test: R. L. Berger, "Multiparameter hypothesis testing and acceptance
sampling", Technometrics 24 (1982)). Each is refuted at alpha / K, because any of them may refute the claim
(Bonferroni). "Some" is the mirror image. No assumption is made about the dependence between comparisons: several of
them may share runs of the baseline.

A comparison with two bounds counts as two tests and holds if both bounds hold. Both bounds must be certified, each at
the whole share of the comparison. Either bound may refute the comparison, at half of its share.
"""

from collections.abc import Sequence

from cpdrun.stats.evidence import Verdict

QUANTIFIERS = ("every", "most", "some")


def must_hold(quantifier: str, comparisons: int) -> int:
    """Return the number of comparisons that must hold for a claim to be true.

    Args:
        quantifier: "every", "most" or "some".
        comparisons: The number of comparisons.
    """
    return {"every": comparisons, "most": comparisons // 2 + 1, "some": 1}[quantifier]


def shares(alpha: float, quantifier: str, comparisons: int) -> tuple[float, float]:
    """Return the error probabilities at which each comparison may be certified and refuted.

    Args:
        alpha: The error probability of the claim.
        quantifier: "every", "most" or "some".
        comparisons: The number of comparisons, at least 1.
    """
    needed = must_hold(quantifier, comparisons)
    return alpha / (comparisons - needed + 1), alpha / needed


def verdict(quantifier: str, verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict on a claim from the verdicts on its comparisons. Without comparisons, it is open.

    Args:
        quantifier: "every", "most" or "some".
        verdicts: The verdicts on the comparisons, tested at the error probabilities that `shares` returns.
    """
    needed = must_hold(quantifier, len(verdicts))
    if verdicts and verdicts.count(Verdict.CERTIFIED) >= needed:
        return Verdict.CERTIFIED
    if verdicts and verdicts.count(Verdict.REFUTED) > len(verdicts) - needed:
        return Verdict.REFUTED
    return Verdict.OPEN
