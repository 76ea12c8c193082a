"""Judge all candidates of a ladder together.

A ladder consists of the candidates that are compared with one baseline and share a gradient scaling, from most bits to
fewest. A width is the set of a ladder's candidates with the same number of bits. The rules are:

- A width is certified if one of its candidates is.
- A width may be certified only if the next wider width is. Below a refuted or open width, nothing is claimed.
- A width is refuted if all of its candidates are. This is wrong only if a good candidate is refuted, so each may be
  refuted at the error probability of the whole ladder.

`cpdrun.stats.ledger` defines the share of each hypothesis in the error probability, and where a ladder may start.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cpdrun.stats.evidence import NO_PRIOR, Judgment, Verdict, judge
from cpdrun.stats.ledger import AskedLadder, Hypothesis, Ledger
from cpdrun.stats.pooled_spread import priors


@dataclass(frozen=True)
class PairedLadder:
    """A ladder of candidates with their pairs.

    Attributes:
        asked: The names of the candidates, and the start of the ladder.
        gaps: The differences of each candidate's pairs by width, as `evidence.differences` returns them.
        barred: For each candidate by width, whether one of its runs failed.
        most_pairs: The largest total number of pairs for which `Judgment.more` is computed.
    """

    asked: AskedLadder
    gaps: Sequence[Sequence[Sequence[float]]]
    barred: Sequence[Sequence[bool]]
    most_pairs: int = 1000


@dataclass(frozen=True)
class Width:
    """The judged candidates of one bit width.

    Attributes:
        judgments: The judgments of the candidates, in the given order.
        is_reached: Whether all wider widths of the same sequence are certified.
        hypotheses: The hypotheses of the candidates, to be added to the ledger.
    """

    judgments: tuple[Judgment, ...]
    is_reached: bool
    hypotheses: tuple[Hypothesis, ...] = ()

    @property
    def certified(self) -> int | None:
        """The index of the first certified candidate. None if there is none or the width is not reached."""
        found = [i for i, each in enumerate(self.judgments) if each.verdict is Verdict.CERTIFIED]
        return found[0] if found and self.is_reached else None

    def verdict_of(self, judgment: Judgment) -> Verdict:
        """Return the verdict on a candidate. It is certified only if the width is reached."""
        if judgment.verdict is Verdict.CERTIFIED and not self.is_reached:
            return Verdict.OPEN
        return judgment.verdict

    @property
    def verdict(self) -> Verdict:
        """The verdict on the width: certified if one candidate is, refuted if all are."""
        if self.certified is not None:
            return Verdict.CERTIFIED
        refuted = all(each.verdict is Verdict.REFUTED for each in self.judgments)
        return Verdict.REFUTED if refuted else Verdict.OPEN


def judge_ladders(
    ladders: Sequence[PairedLadder],
    metric: str,
    margin: float,
    *,
    alpha: float,
    ledger: Ledger,
    resolution: float = 0.0,
) -> list[list[Width]]:
    """Judge several ladders that share the error probability of one ledger.

    A new hypothesis gets its weight from the error probability that is left, and its prior from the pairs so far. The
    caller adds the new hypotheses to the ledger.

    Args:
        ladders: The ladders.
        metric: The name of the metric.
        margin: How much worse is still good enough, in the unit of the differences.
        alpha: The error probability of the whole ledger.
        ledger: The hypotheses that were tested before.
        resolution: The smallest step between two values of the metric, in the unit of the differences.

    Returns:
        The widths of each ladder, most bits first.
    """
    asked = ledger.ask(metric, [ladder.asked for ladder in ladders])
    rows = [
        (hypothesis.key, gaps)
        for ladder, widths in zip(ladders, asked, strict=True)
        for of_width, width in zip(ladder.gaps, widths, strict=True)
        for gaps, hypothesis in zip(of_width, width, strict=True)
    ]
    fixed = priors(dict(rows), margin, resolution)

    def with_prior(each: Hypothesis) -> Hypothesis:
        return each if each.prior is not None else replace(each, prior=fixed.get(each.key))

    return [
        settle(
            ladder.gaps,
            margin,
            [[*map(with_prior, width)] for width in widths],
            alpha=alpha,
            barred=ladder.barred,
            resolution=resolution,
            most_pairs=ladder.most_pairs,
            start=ladder.asked.start,
        )
        for ladder, widths in zip(ladders, asked, strict=True)
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
    """Judge one ladder, and return its widths, most bits first.

    Args:
        gaps: The differences of each candidate's pairs by width, as `evidence.differences` returns them.
        margin: How much worse is still good enough, in the unit of `gaps`.
        hypotheses: The hypotheses of the candidates by width. One without a prior is tested without a prior.
        alpha: The error probability of the whole ledger.
        barred: For each candidate by width, whether one of its runs failed. It is then never certified, even if it was
            certified before.
        resolution: The smallest step between two values of the metric.
        most_pairs: The largest total number of pairs for which `Judgment.more` is computed.
        start: The index of the width at which the ladder starts.
    """
    found: list[Width] = []
    refute = alpha * max(math.fsum(each.weight for each in of_width) for of_width in hypotheses)
    for i, (formats, of_width, bars) in enumerate(zip(gaps, hypotheses, barred, strict=True)):
        judgments = tuple(
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
        judgments = tuple(
            replace(each, verdict=Verdict.OPEN) if bar and each.verdict is Verdict.CERTIFIED else each
            for each, bar in zip(judgments, bars, strict=True)
        )
        is_reached = i <= start or found[-1].certified is not None
        found.append(Width(judgments, is_reached, tuple(of_width)))
    return found
