"""One chain of formats, most bits first: what the anytime-valid tests of its candidates claim together.

A width is certified with the first of its formats that is; the next narrower one is asked only then. So nothing is
claimed below a width that is refuted or open, whatever the pairs recorded there say. This order needs no correction
(fixed-sequence testing: W. Maurer, L. A. Hothorn and W. Lehmacher, "Multiple comparisons in drug clinical trials and
preclinical assays: a-priori ordered hypotheses", Biometrie in der chemisch-pharmazeutischen Industrie 6 (1995)).

A chain may start at a narrower width than its widest (`start`). From there on it goes down as above, at FIRST of its
error; each wider width is a claim of its own, the k-th above the start at 2^-(k + 2) of the error, which is asked where
the start is refuted or stays open. Why that holds: let a hypothesis be that no format of a width is good enough. From
the start down, one that is true is rejected only if the first true one there is, with probability FIRST x alpha at
most; the k-th above it with 2^-(k + 2) x alpha; and FIRST + 1/8 + 1/16 + ... is at most 1 (Bonferroni over the
sequences; a fixed sequence is B. L. Wiens, "A fixed sequence Bonferroni procedure for testing multiple endpoints",
Pharmaceutical Statistics 2 (2003), its chain of unequal shares. As a graph, F. Bretz, W. Maurer, W. Brannath and
M. Posch, "A graphical approach to sequentially rejective multiple test procedures", Statistics in Medicine 28 (2009),
with edges from the start down alone: a wider claim that succeeds passes nothing on, for what it could reopen is
settled). Shares divide the evidence that is asked for, and evidence may be looked at after every pair, so that no share
depends on when one looks. What the start may depend on: nothing that is in a pair. A prediction reads one run of the
baseline, whose seed is therefore left out of the chain's pairs (`cpdrun.search.start`). And what is not claimed: where
the start is certified, nothing is said of wider widths.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cpdrun.stats.evidence import Judgement, Verdict, judge

FIRST = 0.75  # of the error, for the widths from the start down


def portions(widths: int, start: int) -> list[float]:
    """Of a chain's error what each of its widths is certified at; `start`: which is asked first, 0 the widest."""
    if start == 0:
        return [1.0] * widths
    return [2.0 ** -(start - i + 2) for i in range(start)] + [FIRST] * (widths - start)


def shares(alpha: float, formats: int, chains: int) -> tuple[float, float]:
    """The error of certifying and that of refuting that one of `formats` of one width in one of `chains` may make."""
    return alpha / (formats * chains), alpha / chains


@dataclass(frozen=True)
class Width:
    """The candidates of one number of bits, the likeliest first."""

    judgements: tuple[Judgement, ...]
    is_reached: bool  # every one before it in its sequence is certified
    errors: tuple[float, float] = (math.nan, math.nan)  # that certifying, and refuting, a candidate may make

    @property
    def certified(self) -> int | None:
        """Which candidate is certified; None where none may be called so."""
        found = [i for i, each in enumerate(self.judgements) if each.verdict is Verdict.CERTIFIED]
        return found[0] if found and self.is_reached else None

    def verdict_of(self, judgement: Judgement) -> Verdict:
        """What may be said of one of the candidates: certified only where every width before it is."""
        if judgement.verdict is Verdict.CERTIFIED and not self.is_reached:
            return Verdict.OPEN
        return judgement.verdict

    @property
    def verdict(self) -> Verdict:
        if self.certified is not None:
            return Verdict.CERTIFIED
        refuted = all(each.verdict is Verdict.REFUTED for each in self.judgements)
        return Verdict.REFUTED if refuted else Verdict.OPEN


def settle(
    gaps: Sequence[Sequence[Sequence[float]]],
    tolerance: float,
    *,
    alpha: float,
    chains: int,
    sizes: Sequence[int] | None = None,
    barred: Sequence[Sequence[bool]] | None = None,
    resolution: float = 0.0,
    most_pairs: int = 1000,
    start: int = 0,
    shared: Sequence[float] | None = None,
) -> list[Width]:
    """The verdicts of a chain, one of `chains` that share the error `alpha`.

    `gaps`: for each width, most bits first, for each of its formats the differences in the order of the seeds, as
    `evidence.differences` makes them; in the unit of `tolerance` and `resolution`. `sizes`: how many formats of each
    width share its error, where some of them are not among `gaps`. `barred`: formats of which a run failed: they are
    never certified, not even if they were before that run failed, and neither is what is narrower.
    `start`: the width that the chain starts at; `shared`: the portion of each width, where some are not among `gaps`.
    """
    found: list[Width] = []
    bars = barred or [[False] * len(formats) for formats in gaps]
    of_each = shared or portions(len(gaps), start)
    rows = zip(gaps, sizes or map(len, gaps), bars, of_each, strict=True)
    for i, (formats, size, of_width, portion) in enumerate(rows):
        certify, refute = shares(alpha, size, chains)
        errors = certify * portion, refute
        judgements = tuple(
            judge(
                each,
                tolerance,
                certify=errors[0],
                refute=errors[1],
                confidence=1 - alpha,
                resolution=resolution,
                most_pairs=most_pairs,
            )
            for each in formats
        )
        judgements = tuple(
            replace(each, verdict=Verdict.OPEN) if bar and each.verdict is Verdict.CERTIFIED else each
            for each, bar in zip(judgements, of_width, strict=True)
        )
        is_reached = i <= start or found[-1].certified is not None
        found.append(Width(judgements, is_reached, errors))
    return found
