"""Compute a study's answers: the verdict on each ladder, and facts about its baseline and test set.

A facet contains the runs that are compared with each other, and is one panel of a plot. A ladder consists of the
candidates of one facet that share a gradient scaling, sorted by bit width.
"""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cpdrun.record import SweepDir, read_manifest
from cpdrun.stats.evidence import Verdict
from cpdrun.stats.failures import identical_groups
from cpdrun.study import formats
from cpdrun.study.collect import SEED, sweep_names
from cpdrun.study.group import Facet, Group
from cpdrun.study.outlook import Outlook, Prospect, outlook
from cpdrun.study.study import BaselineProblem, Study
from cpdrun.study.test_set import FiniteTestSet, finite_test_set
from cpdrun.study.verdicts import Kind, LadderAnswer

# Up to this many facets are answered one by one. If there are more, they are summarized.
MOST_FACETS = 3


# ---- the answers for programs


@dataclass(frozen=True)
class LadderVerdict:
    """The machine-readable answer for one ladder: the candidates of one facet that share a gradient scaling.

    If no candidate could be compared, `candidate` and all attributes below it are null. Differences are in the metric's
    own unit.

    Attributes:
        facet: The facet's values on all axes other than the format and its scaling.
        scaling: How the gradients are scaled.
        verdict: The verdict on the ladder.
        candidate: The certified format with the fewest bits. If no format is certified, this is the format that is most
            likely to be certified, and if there is none either, the format with the best mean.
        bits: The candidate's number of bits per value. For a recipe, the mean bits of the operands of its products. If
            the products were not counted, its planned bits (`cpdrun.study.choices`).
        pairs: The candidate's number of pairs.
        mean: The mean difference between the candidate and the baseline. Positive is better.
        low: The lower end of the confidence interval of this difference.
        high: The upper end of this interval.
        own_low: The lower end of the confidence interval that uses the candidate's own pairs alone.
        own_high: The upper end of this interval.
        more: The expected number of further pairs until an open verdict is decided. Null if the verdict is not open or
            the number cannot be computed.
        more_range: The range that contains the number of further pairs in 80% of searches. Null if `more` is null.
        runs_ended: The number of the candidate's runs that have ended.
        runs_failed: The number of the candidate's runs that failed.
        at_most_fail: The upper confidence limit of the candidate's failure rate, as a share.
        is_identical: Whether the candidate's runs equal the baseline's runs bit for bit. Such runs are no evidence.
    """

    facet: str
    scaling: str
    verdict: Verdict
    candidate: str | None = None
    bits: float | None = None
    pairs: int | None = None
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    own_low: float | None = None
    own_high: float | None = None
    more: int | None = None
    more_range: list[int] | None = None
    runs_ended: int | None = None
    runs_failed: int | None = None
    at_most_fail: float | None = None
    is_identical: bool | None = None


def ladder_verdicts(study: Study) -> list[LadderVerdict]:
    """Return the answer of each ladder whose baseline can be used."""
    return [
        _ladder_verdict(study, facet, name, study.answer(facet, name))
        for facet in study.facets
        if not study.baseline_problem(facet)
        for name in facet.ladders
    ]


def _ladder_verdict(study: Study, facet: Facet, scaling: str, answer: LadderAnswer) -> LadderVerdict:
    group = answer.certified or answer.likely or answer.best
    if group is None:
        return LadderVerdict(facet.label, scaling, answer.verdict)
    judged = study.judged[group]
    found, failed = judged.judgment, judged.failures
    more = found.more if answer.judgment is None else answer.judgment.more
    more = more if answer.verdict is Verdict.OPEN else None
    return LadderVerdict(
        facet.label,
        scaling,
        answer.verdict,
        group.full_name,
        group.bits,
        found.pairs,
        mean=finite(found.mean),
        low=finite(found.low),
        high=finite(found.high),
        own_low=finite(found.own_low),
        own_high=finite(found.own_high),
        more=None if more is None else more.likely,
        more_range=None if more is None else [more.low, more.high],
        runs_ended=failed.ended,
        runs_failed=failed.failed,
        at_most_fail=failed.at_most(study.ci),
        is_identical=judged.is_identical,
    )


def finite(value: float) -> float | None:
    """Return the value, or None if it is NaN or infinite."""
    return value if math.isfinite(value) else None


def next_command(study: Study, sweeps: Sequence[SweepDir]) -> str:
    """Return the search command that adds pairs, with the overrides in the sweep's manifest.

    The result is empty if the margin is invalid, if further pairs cannot decide a verdict, if there are several sweeps,
    or if the overrides cannot be read.
    """
    facets = [facet for facet in study.facets if not study.baseline_problem(facet)]
    open_ = [
        study.answer(facet, name)
        for facet in facets
        for name in facet.ladders
        if _needs_pairs(study, facet, name)
    ]
    if study.margin.problem or not open_ or len(sweep_names(sweeps)) != 1:
        return ""
    try:
        manifest = read_manifest(sweeps[0])
        typed, axes = manifest["overrides"], manifest.get("axes")
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    if not isinstance(typed, list):
        return ""
    words = [shlex.quote(word) for word in typed if isinstance(word, str) and not word.startswith("seed=")]
    # A search that has used all seeds needs more of them. A seed that predicted the start is in no pair.
    pairs = [answer.judgment.pairs for answer in open_ if answer.judgment is not None]
    seeds = axes.get(SEED) if isinstance(axes, Mapping) else None
    if study.asked.by == "search" and isinstance(seeds, list) and pairs and min(pairs) >= len(seeds) - 1 > 0:
        words = [word for word in words if not word.startswith("search.most_seeds=")]
        words.append(f"search.most_seeds={2 * len(seeds)}")
    return " ".join(["cpdrun search", *words]) if words else ""


def _needs_pairs(study: Study, facet: Facet, scaling: str) -> bool:
    answer = study.answer(facet, scaling)
    if answer.verdict is not Verdict.OPEN:
        return False
    return answer.likely is None or ladder_outlook(study, answer).is_hopeful


def group_outlook(study: Study, group: Group) -> Outlook:
    """Return whether further pairs are likely to decide a candidate's verdict, and how many."""
    return outlook(study.judged[group].judgment, study.tolerance / study.metric.scale, study.samples(group))


def ladder_outlook(study: Study, answer: LadderAnswer) -> Outlook:
    """Return the outlook of the ladder's candidate that is most likely to be certified."""
    if answer.likely is None or answer.judgment is None:
        return Outlook(Prospect.NO_PAIRS)
    return outlook(answer.judgment, study.tolerance / study.metric.scale, study.samples(answer.likely))


# ---- the answers for readers


@dataclass(frozen=True)
class Ladder:
    """A ladder's answer with the groups to show.

    Attributes:
        scaling: How gradients are scaled.
        answer: The answer.
        outlook: Whether further pairs are likely to certify a candidate.
        refuted: The best group of the widest refuted width if the whole ladder is refuted. Otherwise None.
        has_narrower: Whether the ladder has groups with fewer bits than `refuted`.
        failed: The groups with failed runs.
    """

    scaling: str
    answer: LadderAnswer
    outlook: Outlook
    refuted: Group | None = None
    has_narrower: bool = False
    failed: list[Group] = field(default_factory=list)


def count_kinds(study: Study) -> dict[Kind, int]:
    """Return the number of compared groups of each kind of answer that occurs."""
    kinds = [judged.kind for judged in study.judged.values()]
    return {kind: kinds.count(kind) for kind in Kind if kind in kinds}


@dataclass(frozen=True)
class FacetAnswer:
    """The answers of one facet.

    Attributes:
        facet: The facet.
        problem: Why the baseline cannot be used. None if it can.
        best: The group with the best mean, to be shown if the baseline cannot be used. Otherwise None.
        ladders: The ladders' answers. Empty for named cases.
        cases: The named cases of each kind that occurs, best mean first.
        failed: The compared groups with failed runs.
        left_out: The compared groups with pairs that were left out because the baseline's run failed.
        identical: The names of groups whose runs are equal bit for bit, in lists of at least two.
        samples: The number of test samples. NaN if unknown.
        margin_samples: The margin in test samples. NaN if unknown.
        deciding: The certified or likely candidate of the first ladder that has one. None if there is none.
        other_test_set: The interval of the deciding candidate's gap on another test set. None if unknown.
    """

    facet: Facet
    problem: BaselineProblem | None = None
    best: Group | None = None
    ladders: list[Ladder] = field(default_factory=list)
    cases: dict[Kind, list[Group]] = field(default_factory=dict)
    failed: list[Group] = field(default_factory=list)
    left_out: list[Group] = field(default_factory=list)
    identical: list[list[str]] = field(default_factory=list)
    samples: float = math.nan
    margin_samples: float = math.nan
    deciding: Group | None = None
    other_test_set: FiniteTestSet | None = None

    @property
    def n_cases(self) -> int:
        return sum(map(len, self.cases.values()))


def facet_answer(study: Study, facet: Facet) -> FacetAnswer:
    """Return the answers of one facet."""
    problem = study.baseline_problem(facet)
    if problem is not None or facet.baseline is None:
        with_value = [group for group in facet.groups if group.values]
        best = max if study.metric.higher_is_better else min
        shown = best(with_value, key=lambda group: group.mean) if with_value else None
        return FacetAnswer(facet, problem, shown)
    ladders = [] if facet.has_cases else [_ladder(study, facet, name) for name in facet.ladders]
    judged = [group for groups in facet.ladders.values() for group in groups if group in study.judged]
    cells = {study.baseline_name: facet.baseline.fingerprints} | {
        group.full_name: group.fingerprints for groups in facet.strategies.values() for group in groups
    }
    samples = study.samples(facet.baseline)
    answers = [study.answer(facet, name) for name in facet.ladders]
    deciding = next((group for each in answers if (group := each.certified or each.likely) is not None), None)
    other = None if deciding is None or not math.isfinite(samples) else finite_test_set(study, deciding)
    return FacetAnswer(
        facet,
        ladders=ladders,
        cases=_cases(study, judged) if facet.has_cases else {},
        failed=[group for group in judged if study.failures(group).failed],
        left_out=[group for group in judged if study.failures(group).left_out],
        identical=identical_groups(cells),
        samples=samples,
        margin_samples=study.tolerance / study.metric.scale * samples,
        deciding=deciding,
        other_test_set=other if other is not None and math.isfinite(other.low) else None,
    )


def _ladder(study: Study, facet: Facet, scaling: str) -> Ladder:
    answer, groups = study.answer(facet, scaling), facet.ladders[scaling]
    refuted, has_narrower = None, False
    if answer.verdict is Verdict.REFUTED:
        width = [g for g in groups if (formats.bits(g.format) or math.inf) == answer.refuted_bits]
        refuted = max(width, key=lambda group: study.judged[group].judgment.mean)
        has_narrower = len(width) < len(groups)
    failed = [group for group in groups if study.failures(group).failed]
    return Ladder(scaling, answer, ladder_outlook(study, answer), refuted, has_narrower, failed)


def _cases(study: Study, groups: Sequence[Group]) -> dict[Kind, list[Group]]:
    """Return the named cases keyed by kind, best mean first."""
    ordered = sorted(groups, key=lambda group: -study.judged[group].judgment.mean)
    cases = {kind: [group for group in ordered if study.judged[group].kind is kind] for kind in Kind}
    return {kind: chosen for kind, chosen in cases.items() if chosen}
