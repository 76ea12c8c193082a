"""Define the study: the runs of one report, with their groups, facets, and verdicts.

Every part of a report is computed from its study.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

import pandas as pd

from cpdrun.costmodel import Network
from cpdrun.stats.evidence import Judgement, differences, judge
from cpdrun.stats.failures import FailureCounts, compare_runs
from cpdrun.study.axes import BitsAxis
from cpdrun.study.group import Facet, Group
from cpdrun.study.grouping import make_facets
from cpdrun.study.margin import Margin
from cpdrun.study.metric import CLASSES_IF_UNKNOWN, Metric, learnt, worst
from cpdrun.study.search_record import Asked, Tuned
from cpdrun.study.verdicts import Judged, LadderAnswer, answer_ladder, judge_groups


class BaselineFlaw(StrEnum):
    """The reason why a baseline is not fit to compare with."""

    DIVERGED = "diverged"
    NO_VALUE = "no value"  # The baseline's runs have finished, but their records lack the metric.
    NOT_FINISHED = "not finished"
    DID_NOT_LEARN = "did not learn"
    # The records lack the number of classes, so whether the baseline learned is unknown, and its accuracy is low.
    UNKNOWN_CLASSES = "unknown classes"


@dataclass(frozen=True)
class BaselineProblem:
    """Why the baseline of a facet is not fit to compare with.

    Attributes:
        kind: The reason.
        group: The baseline. None if it has no runs.
    """

    kind: BaselineFlaw
    group: Group | None = None


@dataclass(frozen=True)
class Study:
    """The runs of one report, the settings of their comparison, and the groups that are compared.

    Attributes:
        sweeps: The names of the sweeps.
        runs: The table of runs, as `collect` returns it.
        metric: The metric that is compared.
        ci: The confidence in percent.
        axes: The keys that the runs differ in, except format, aps, and world_size.
        bits_axis: The axis along which formats are compared, with its baseline.
        groups: The groups. The runs of a group differ only in their seed.
        facet_axes: The keys that distinguish facets. Groups with different values on these keys are not compared.
        networks: The networks for which the report predicts a speed-up, keyed by name.
        is_default_metric: Whether the metric is the default one.
        asked: The question that the search or the sweep recorded when it made the runs.
        has_asked_margin: Whether the margin is that of `asked`.
        has_asked_confidence: Whether the confidence is that of `asked`.
        may_be_share: Whether the metric may be a share although it was not declared as one.
        tuned: The runs with the values that a search tuned.
        ledger: The ledger of all hypotheses that were tested on the sweep.
        starts: The starts of the ladders that do not start at their widest width.
        margin: The margin.
    """

    sweeps: list[str]
    runs: pd.DataFrame
    metric: Metric
    ci: float
    axes: list[str]
    bits_axis: BitsAxis
    groups: list[Group] = field(repr=False)
    facet_axes: list[str]
    networks: dict[str, Network] = field(default_factory=dict)
    is_default_metric: bool = True
    asked: Asked = field(default_factory=Asked)
    tuned: Tuned = field(default_factory=Tuned, repr=False)
    margin: Margin = field(default_factory=Margin)

    @property
    def tolerance(self) -> float:
        """The margin in the unit in which the metric is shown. If there is none, NaN, so that no gap is within it."""
        return self.margin.shown

    @cached_property
    def facets(self) -> list[Facet]:
        """The facets. The groups of a facet have the same values on `facet_axes` and are compared with each other."""
        return make_facets(self.groups, self.facet_axes, self.bits_axis)

    # ---- baselines and verdicts

    @property
    def baseline_name(self) -> str:
        """The name of the baseline, which is usually `fp32`."""
        return self.bits_axis.baseline_name

    @property
    def margin_text(self) -> str:
        """The margin with its unit, such as `0.5 points`."""
        return self.metric.show_tolerance(self.tolerance)

    def baseline_problem(self, facet: Facet) -> BaselineProblem | None:
        """Return the reason why a facet's baseline is not fit to compare with, or None if it is fit."""
        fp32, baseline, metric = facet.fp32, facet.baseline, self.metric
        if fp32 is not None and fp32.diverged:
            return BaselineProblem(BaselineFlaw.DIVERGED, fp32)
        if baseline is None:
            has_finished = fp32 is not None and fp32.n_finished > 0
            return BaselineProblem(BaselineFlaw.NO_VALUE if has_finished else BaselineFlaw.NOT_FINISHED, fp32)
        verdict = learnt(metric, baseline.mean, baseline.num_classes)
        if verdict is False:
            return BaselineProblem(BaselineFlaw.DID_NOT_LEARN, baseline)
        if verdict is None and metric.is_fraction and not learnt(metric, baseline.mean, CLASSES_IF_UNKNOWN):
            return BaselineProblem(BaselineFlaw.UNKNOWN_CLASSES, baseline)
        return None

    def learnt(self, group: Group) -> bool:
        """Return whether a group learned, which means that its mean is clearly better than that of a guessing model.

        If the number of classes is unknown, a mean accuracy of at least a fifth of the baseline's counts as learned. If
        neither check is possible, the group counts as having learned.
        """
        verdict = learnt(self.metric, group.mean, group.num_classes)
        baseline = self.baselines.get(group)
        if verdict is None and self.metric.is_fraction and baseline is not None and group.values:
            return group.mean >= 0.2 * baseline.mean
        return verdict is not False

    def may_be_within(self, group: Group) -> bool:
        """Return whether a group may be within the margin.

        A group without a value is excluded. So is a group with a run that failed, diverged, or did not learn, and a
        group whose mean is not better than that of a guessing model (`learnt`).
        """
        failed = self.failures(group).failed or group.diverged or group.gave_up
        return bool(group.values) and not failed and self.learnt(group)

    def failures(self, group: Group) -> FailureCounts:
        """Return how many runs of a group failed. If the group is not compared with a baseline, all counts are 0."""
        judged = self.judged.get(group)
        return FailureCounts() if judged is None else judged.failures

    def against_baseline(self, group: Group) -> Judgement | None:
        """Return the judgement of a group's pairs with its baseline.

        For the baseline itself, for a group without pairs, and for a group without a baseline that is fit to compare
        with, the result is None.
        """
        judged = self.judged.get(group)
        return judged.judgement if judged is not None and judged.judgement.pairs else None

    def answer(self, facet: Facet, strategy: str) -> LadderAnswer:
        """Return a ladder's answer. The ladder consists of the facet's candidates with the given `Group.strategy`."""
        return answer_ladder(facet.ladders.get(strategy, []), self.judged, self.tolerance / self.metric.scale)

    @cached_property
    def judged(self) -> dict[Group, Judged]:
        """The verdicts of the anytime-valid test, for all groups that are compared with a baseline."""
        ladders = [
            (facet.baseline, groups)
            for facet in self.facets
            if facet.baseline is not None and not self.baseline_problem(facet)
            for groups in facet.ladders.values()
        ]
        return self.judge(ladders, self.asked)

    def judge(
        self, ladders: Sequence[tuple[Group, Sequence[Group]]], asked: Asked | None = None
    ) -> dict[Group, Judged]:
        """Return the verdict on each candidate of some ladders, which share the error probability.

        Args:
            ladders: The baseline and the candidates of each ladder.
            asked: The question with the ledger of earlier hypotheses and the starts of ladders. None for neither.
        """
        samples = self.samples(*(group for _, groups in ladders for group in groups)) if ladders else math.nan
        margin, alpha, asked = self.tolerance / self.metric.scale, 1 - self.ci / 100, asked or Asked()
        return judge_groups(ladders, self.metric, margin, alpha, samples, asked.ledger, asked.starts)

    def samples(self, *groups: Group) -> float:
        """Return the number of test samples on which the metric of some groups is computed.

        If the groups differ, return the smallest number. If the metric is not a share of samples, or if the number is
        unknown for any group, return NaN.
        """
        counts = [group.test_samples for group in groups]
        known = self.metric.counts_samples and all(count > 0 for count in counts)
        return min(counts) if known else math.nan

    @cached_property
    def baselines(self) -> dict[Group, Group | None]:
        """The baseline of each group. None if no baseline is fit to compare with. A baseline's baseline is itself."""
        return {
            group: None if self.baseline_problem(facet) else facet.baseline
            for facet in self.facets
            for group in facet.groups
        }


def compare(study: Study, one: Group, other: Group) -> Judgement:
    """Judge how much better one group is than another, from their own pairs and with a margin of 0.

    Such comparisons are chosen after looking at the means. They use no share of the verdicts' error probability.
    """
    pairs = compare_runs(one.outcomes, other.outcomes)
    low = worst(study.metric, other.num_classes, other.values, 0.0)
    way = study.metric.higher_is_better
    gaps = differences(pairs.ours, pairs.baseline, higher_is_better=way, worst=low)
    alpha, samples = 1 - study.ci / 100, study.samples(one, other)
    resolution = 1 / samples if samples > 0 else 0.0
    return judge(
        gaps, 0.0, certify=alpha / 2, refute=alpha / 2, confidence=study.ci / 100, resolution=resolution
    )
