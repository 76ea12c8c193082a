"""Compute a report's verdicts: which groups are certified, refuted, or open.

Reports use the same anytime-valid test as searches. A full grid of runs therefore gets no stronger verdicts than a
search, and verdicts stay valid if more seeds are run later.

A ladder consists of the groups of one facet that share a gradient scaling, from most bits to fewest. A width consists
of the groups of a ladder with the same number of bits. All ladders of a report share the error probability.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from cpdrun.config.identity import cell_name
from cpdrun.record import read_config
from cpdrun.stats.evidence import Judgment, PairsRange, Verdict, differences
from cpdrun.stats.failures import Compared, FailureCounts, are_identical, compare_runs
from cpdrun.stats.ladder import PairedLadder, judge_ladders
from cpdrun.stats.ledger import AskedLadder, Hypothesis, Ledger, Start
from cpdrun.study import formats
from cpdrun.study.group import Group
from cpdrun.study.metric import Metric, worst


class Kind(StrEnum):
    """The answer that readers see: the verdict, unless the runs equal the baseline's bit for bit."""

    CERTIFIED = "certified"
    OPEN = "open"
    NOT_TESTED = "not tested"  # The verdict is certified, but equal runs are no evidence.
    REFUTED = "refuted"


# The keys are kinds. Verdicts can be looked up too, because they have the same texts.
MARKS: dict[str, str] = {Kind.CERTIFIED: "✓", Kind.OPEN: "?", Kind.NOT_TESTED: "=", Kind.REFUTED: "✗"}


def _kind(verdict: Verdict, is_identical: bool) -> Kind:
    return Kind.NOT_TESTED if is_identical and verdict is Verdict.CERTIFIED else Kind(verdict)


@dataclass(frozen=True)
class Judged:
    """The verdict on a group.

    Attributes:
        verdict: The verdict to report. It is certified only if no run failed and each wider width, from the ladder's
            start on, has a certified group.
        judgment: The result of testing the group's own pairs.
        failures: How many of the group's runs failed.
        hypothesis: The tested hypothesis, to be added to the ledger.
        is_identical: Whether the runs equal the baseline's bit for bit, which is no evidence.
    """

    verdict: Verdict
    judgment: Judgment
    failures: FailureCounts = field(default_factory=FailureCounts)
    hypothesis: Hypothesis | None = None
    is_identical: bool = False

    @property
    def kind(self) -> Kind:
        return _kind(self.verdict, self.is_identical)

    @property
    def enough(self) -> tuple[float, float]:
        """The evidence that certifying and refuting need, each as the log10 of an e-value."""
        certify, refute = self.judgment.errors
        return -math.log10(certify), -math.log10(refute)


def judge_groups(
    ladders: Sequence[tuple[Group, Sequence[Group]]],
    metric: Metric,
    margin: float,
    alpha: float,
    samples: float,
    ledger: Ledger,
    starts: Sequence[Start],
) -> dict[Group, Judged]:
    """Return the verdicts on all groups, keyed by group.

    Args:
        ladders: The baseline and the groups of each ladder.
        metric: The compared metric.
        margin: The margin in the stored unit.
        alpha: The error probability of all hypotheses together.
        samples: The size of the test set if the metric counts samples, otherwise NaN.
        ledger: The ledger of earlier hypotheses. New ones get a weight from the error probability that is left.
        starts: The starts of the ladders that do not start at their widest width.
    """
    resolution = 1 / samples if samples > 0 else 0.0
    found = [_ladder(baseline, groups, metric, margin, ledger, starts) for baseline, groups in ladders]
    settled = judge_ladders(
        [each.paired for each in found],
        metric.name,
        margin,
        alpha=alpha,
        ledger=ledger,
        resolution=resolution,
    )
    return {
        group: Judged(
            width.verdict_of(judgment),
            judgment,
            each.compared[group].counts,
            hypothesis,
            are_identical(group.fingerprints, baseline.fingerprints),
        )
        for (baseline, _), each, widths in zip(ladders, found, settled, strict=True)
        for groups, width in zip(each.widths, widths, strict=True)
        for group, judgment, hypothesis in zip(groups, width.judgments, width.hypotheses, strict=True)
    }


@dataclass(frozen=True)
class _Ladder:
    """A ladder of groups with their runs.

    Attributes:
        widths: The groups of each width, most bits first.
        compared: The values and failures of each group and its baseline.
        paired: The pairs of all groups, as `cpdrun.stats.ladder` judges them.
    """

    widths: list[list[Group]]
    compared: dict[Group, Compared]
    paired: PairedLadder


def _ladder(
    baseline: Group,
    groups: Sequence[Group],
    metric: Metric,
    margin: float,
    ledger: Ledger,
    starts: Sequence[Start],
) -> _Ladder:
    by_bits: dict[float, list[Group]] = {}
    for group in sorted(groups, key=lambda group: formats.order(group.format)):
        by_bits.setdefault(formats.bits(group.format) or math.inf, []).append(group)
    bits = sorted(by_bits, reverse=True)
    widths = [by_bits[each] for each in bits]
    cells = {group: _cell(group) for group in (baseline, *groups)}
    start = next((each for each in starts if each.cells & {*cells.values()}), None)
    asked = AskedLadder(
        ledger.named(cells[baseline]),
        [[ledger.named(cells[group]) for group in width] for width in widths],
        min(sum(each > start.bits for each in bits), len(bits) - 1) if start else 0,
        bits,
    )
    aside = () if start is None or start.aside is None else (start.aside,)
    low = worst(metric, baseline.num_classes, baseline.values, margin)
    compared = {
        group: compare_runs(group.outcomes.without(aside), baseline.outcomes.without(aside))
        for width in widths
        for group in width
    }
    gaps = {
        group: differences(found.ours, found.baseline, higher_is_better=metric.higher_is_better, worst=low)
        for group, found in compared.items()
    }
    paired = PairedLadder(
        asked,
        [[gaps[group] for group in width] for width in widths],
        [[compared[group].is_barred for group in width] for width in widths],
    )
    return _Ladder(widths, compared, paired)


def _cell(group: Group) -> str:
    """Return the name under which the ledger knows a group."""
    for run in group.runs[:1]:
        try:
            return cell_name(read_config(run))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            break  # Another program wrote this run, so its config has no cell name.
    return f"{group.name} {group.strategy} {group.keys}"


_ROUNDING = 1e-12  # Rounding errors must not put a mean that is exactly at the margin outside of it.


@dataclass(frozen=True)
class LadderAnswer:
    """A ladder's answer: how many bits are enough.

    Attributes:
        certified: The certified group with the fewest bits. Ties go to the best mean.
        likely: The open group with the fewest bits that can still be certified and whose mean is within the margin. If
            there is none and nothing is certified, the group with the best mean in the first open width. Otherwise
            None.
        is_near: Whether the mean of `likely` is within the margin.
        judgment: The judgment of `likely`, with the number of further pairs that it and the wider open groups need.
        best: The group with the best mean, to be shown if `certified` and `likely` are None.
        refuted_bits: The bits of the widest width whose groups are all refuted. NaN if there is none.
        is_identical: Whether the runs of `certified` equal the baseline's bit for bit.
    """

    certified: Group | None = None
    likely: Group | None = None
    is_near: bool = False
    judgment: Judgment | None = None
    best: Group | None = None
    refuted_bits: float = math.nan
    is_identical: bool = False

    @property
    def verdict(self) -> Verdict:
        """The verdict on the ladder.

        The ladder is certified if one of its groups is. It is refuted if a width is refuted and no group can be
        certified anymore. Otherwise, it is open.
        """
        if self.certified is not None:
            return Verdict.CERTIFIED
        is_refuted = self.likely is None and not math.isnan(self.refuted_bits)
        return Verdict.REFUTED if is_refuted else Verdict.OPEN

    @property
    def kind(self) -> Kind:
        return _kind(self.verdict, self.is_identical)

    @property
    def group(self) -> Group | None:
        """The group to show: the certified one, or else an open one whose mean is within the margin."""
        return self.certified or (self.likely if self.is_near else None)


def answer_ladder(groups: Sequence[Group], judged: Mapping[Group, Judged], margin: float) -> LadderAnswer:
    """Return a ladder's answer.

    Widths are read from the widest down, as they are certified. The ladder ends at a width whose groups are all refuted
    or have failed runs, because no narrower width can be certified.

    Args:
        groups: The groups of the ladder.
        judged: The verdicts, keyed by group. Groups without a verdict are ignored.
        margin: The margin in the stored unit.
    """
    widths: dict[float, list[Group]] = {}
    for group in sorted(groups, key=lambda group: formats.order(group.format), reverse=True):
        if group in judged:
            widths.setdefault(formats.bits(group.format) or math.inf, []).append(group)

    def mean(group: Group) -> float:
        found = judged[group].judgment.mean
        return -math.inf if math.isnan(found) else found

    best = max((group for width in widths.values() for group in width), key=mean, default=None)
    answer, needed = LadderAnswer(best=best), []
    for bits, width in widths.items():
        verdicts = [judged[group].verdict for group in width]
        if certified := [group for group in width if judged[group].verdict is Verdict.CERTIFIED]:
            group = max(certified, key=mean)
            answer = replace(answer, certified=group, is_identical=judged[group].is_identical)
            continue
        if all(verdict is Verdict.REFUTED for verdict in verdicts):
            return replace(answer, refuted_bits=bits)
        able = [group for group in width if _is_open(judged[group])]
        if not able:
            return answer
        group = max(able, key=mean)
        needed.append(judged[group].judgment.more)
        is_near = mean(group) >= -margin - _ROUNDING
        if is_near or answer.group is None:
            judgment = replace(judged[group].judgment, more=_largest(needed))
            answer = replace(answer, likely=group, is_near=is_near, judgment=judgment)
        if not is_near:
            return answer
    return answer


def _is_open(judged: Judged) -> bool:
    """Return True if further pairs may certify a candidate."""
    is_candidate = judged.verdict is Verdict.OPEN and judged.judgment.verdict is not Verdict.REFUTED
    return is_candidate and judged.judgment.pairs > 0 and not judged.failures.failed


def _largest(needed: Sequence[PairsRange | None]) -> PairsRange | None:
    known = [more for more in needed if more is not None]
    return max(known) if len(known) == len(needed) else None
