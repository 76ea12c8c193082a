"""The answer of a chain, from the verdicts on its groups.

A chain consists of the formats of one facet that are scaled in the same way.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cpdrun.stats.evidence import Judgement, PairsRange, Verdict
from cpdrun.study.axes import formats
from cpdrun.study.groups.group import Group
from cpdrun.study.groups.verdicts import Judged

_ROUNDING = 1e-12  # so that a mean exactly at the margin counts as within the margin


@dataclass(frozen=True)
class ChainAnswer:
    """The answer of a chain.

    Attributes:
        certified: The certified format with the fewest bits. If several have equally many, the one with the best mean.
        likely: The open format with the fewest bits that can still be certified and whose mean is within the margin. If
            there is neither such a format nor a certified format, the format with the best mean in the first open
            width.
        is_near: Whether the mean of `likely` is within the margin.
        judgement: The judgement of `likely`. Its `more` is the number of pairs that `likely` and all wider open formats
            need.
        best: The judged format with the best mean, to show if `certified` and `likely` are None.
        refuted_bits: The bits of the widest width whose formats are all refuted. NaN if there is none.
    """

    certified: Group | None = None
    likely: Group | None = None
    is_near: bool = False
    judgement: Judgement | None = None
    best: Group | None = None
    refuted_bits: float = math.nan

    @property
    def verdict(self) -> Verdict:
        """The verdict on the chain: refuted only if no format is certified or may still be certified."""
        if self.certified is not None:
            return Verdict.CERTIFIED
        is_refuted = self.likely is None and not math.isnan(self.refuted_bits)
        return Verdict.REFUTED if is_refuted else Verdict.OPEN

    @property
    def group(self) -> Group | None:
        """The format to show for the chain: the certified format, or the open format that may be good enough."""
        return self.certified or (self.likely if self.is_near else None)


def answer_chain(groups: Sequence[Group], judged: Mapping[Group, Judged], margin: float) -> ChainAnswer:
    """Return the answer of a chain.

    Widths are read from the widest to the narrowest, in the order in which they are certified. A width in which every
    format is refuted or has failed runs ends the chain, because no narrower width can be certified.

    Args:
        groups: The groups of the chain.
        judged: The verdicts by group. Groups without a verdict are ignored.
        margin: The margin in the unit of the stored metric.
    """
    widths: dict[float, list[Group]] = {}
    for group in sorted(groups, key=lambda group: formats.order(group.format), reverse=True):
        if group in judged:
            widths.setdefault(formats.bits(group.format) or math.inf, []).append(group)

    def mean(group: Group) -> float:
        found = judged[group].judgement.mean
        return -math.inf if math.isnan(found) else found

    best = max((group for width in widths.values() for group in width), key=mean, default=None)
    answer, needed = ChainAnswer(best=best), []
    for bits, width in widths.items():
        verdicts = [judged[group].verdict for group in width]
        if certified := [group for group in width if judged[group].verdict is Verdict.CERTIFIED]:
            answer = replace(answer, certified=max(certified, key=mean))
            continue
        if all(verdict is Verdict.REFUTED for verdict in verdicts):
            return replace(answer, refuted_bits=bits)
        able = [group for group in width if _is_open(judged[group])]
        if not able:
            return answer
        group = max(able, key=mean)
        needed.append(judged[group].judgement.more)
        is_near = mean(group) >= -margin - _ROUNDING
        if is_near or answer.group is None:
            judgement = replace(judged[group].judgement, more=_largest(needed))
            answer = replace(answer, likely=group, is_near=is_near, judgement=judgement)
        if not is_near:
            return answer
    return answer


def _is_open(judged: Judged) -> bool:
    """Return whether further pairs may certify a candidate."""
    is_candidate = judged.verdict is Verdict.OPEN and judged.judgement.verdict is not Verdict.REFUTED
    return is_candidate and judged.judgement.pairs > 0 and not judged.failures.failed


def _largest(needed: Sequence[PairsRange | None]) -> PairsRange | None:
    known = [more for more in needed if more is not None]
    return max(known) if len(known) == len(needed) else None
