"""One chain of formats, most bits first: what the anytime-valid tests of its candidates claim together.

A width is certified with the first of its formats that is; the next narrower one is asked only then. So nothing is
claimed below a width that is refuted or open, whatever the pairs recorded there say. `cpdrun.stats.ledger` says how the
hypotheses of a chain share the error probability, and where a chain may start. A width is refuted when all of its
formats are. That errs only if a good format is refuted, so each may be refuted at the error probability of the whole
chain.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cpdrun.stats.evidence import NO_PRIOR, Judgement, Verdict, judge
from cpdrun.stats.ledger import AskedChain, Hypothesis, Ledger
from cpdrun.stats.pooled_spread import priors


@dataclass(frozen=True)
class PairedChain:
    """A chain as it is asked, with the pairs of its candidates, width by width.

    `gaps` holds the differences of each candidate in the order of the seeds, as `evidence.differences` returns them.
    `barred` says whether a run of it failed.
    """

    asked: AskedChain
    gaps: Sequence[Sequence[Sequence[float]]]
    barred: Sequence[Sequence[bool]]
    most_pairs: int = 1000


@dataclass(frozen=True)
class Width:
    """The candidates of one number of bits, the likeliest first, with their hypotheses for the ledger."""

    judgements: tuple[Judgement, ...]
    is_reached: bool  # every one before it in its sequence is certified
    hypotheses: tuple[Hypothesis, ...] = ()

    @property
    def certified(self) -> int | None:
        """Return the index of the certified candidate, None if no candidate may be called so."""
        found = [i for i, each in enumerate(self.judgements) if each.verdict is Verdict.CERTIFIED]
        return found[0] if found and self.is_reached else None

    def verdict_of(self, judgement: Judgement) -> Verdict:
        """Return the verdict of one of the candidates: certified only if every width before it is."""
        if judgement.verdict is Verdict.CERTIFIED and not self.is_reached:
            return Verdict.OPEN
        return judgement.verdict

    @property
    def verdict(self) -> Verdict:
        if self.certified is not None:
            return Verdict.CERTIFIED
        refuted = all(each.verdict is Verdict.REFUTED for each in self.judgements)
        return Verdict.REFUTED if refuted else Verdict.OPEN


def judge_chains(
    chains: Sequence[PairedChain],
    metric: str,
    margin: float,
    *,
    alpha: float,
    ledger: Ledger,
    resolution: float = 0.0,
) -> list[list[Width]]:
    """Return the verdicts of chains that share the error probability of one ledger.

    Hypotheses that the ledger lacks get a weight of what is left, and the priors that the pairs fix now. The caller
    adds them to the ledger. `margin` and `resolution` are in the unit of the gaps.
    """
    asked = ledger.ask(metric, [chain.asked for chain in chains])
    rows = [
        (hypothesis.key, gaps)
        for chain, widths in zip(chains, asked, strict=True)
        for of_width, width in zip(chain.gaps, widths, strict=True)
        for gaps, hypothesis in zip(of_width, width, strict=True)
    ]
    fixed = priors(dict(rows), margin, resolution)

    def with_prior(each: Hypothesis) -> Hypothesis:
        return each if each.prior is not None else replace(each, prior=fixed.get(each.key))

    return [
        settle(
            chain.gaps,
            margin,
            [[*map(with_prior, width)] for width in widths],
            alpha=alpha,
            barred=chain.barred,
            resolution=resolution,
            most_pairs=chain.most_pairs,
            start=chain.asked.start,
        )
        for chain, widths in zip(chains, asked, strict=True)
    ]


def settle(
    gaps: Sequence[Sequence[Sequence[float]]],
    margin: float,
    hypotheses: Sequence[Sequence[Hypothesis]],
    *,
    alpha: float,
    barred: Sequence[Sequence[bool]],
    resolution: float = 0.0,
    most_pairs: int = 1000,
    start: int = 0,
) -> list[Width]:
    """Return the verdicts of a chain.

    Args:
        gaps: for each width, most bits first, and each of its formats, the differences in the order of the seeds, as
            `evidence.differences` returns them. They are in the unit of `margin` and `resolution`.
        margin: how much worse is still good enough.
        hypotheses: of the same formats. While a prior is not fixed, there is none.
        alpha: the error probability of the whole ledger.
        barred: whether a run of the format failed. Such formats are never certified, not even if they were before that
            run failed, and neither is what is narrower.
        start: the index of the width that the chain starts at.
    """
    found: list[Width] = []
    refute = alpha * max(math.fsum(each.weight for each in of_width) for of_width in hypotheses)
    for i, (formats, of_width, bars) in enumerate(zip(gaps, hypotheses, barred, strict=True)):
        judgements = tuple(
            judge(
                each,
                margin,
                certify=alpha * hypothesis.weight,
                refute=refute,
                confidence=1 - alpha,
                resolution=resolution,
                prior=hypothesis.prior or NO_PRIOR,
                most_pairs=most_pairs,
            )
            for each, hypothesis in zip(formats, of_width, strict=True)
        )
        judgements = tuple(
            replace(each, verdict=Verdict.OPEN) if bar and each.verdict is Verdict.CERTIFIED else each
            for each, bar in zip(judgements, bars, strict=True)
        )
        is_reached = i <= start or found[-1].certified is not None
        found.append(Width(judgements, is_reached, tuple(of_width)))
    return found
