"""Define the study: the runs of one report, with their groups, facets, and verdicts.

Every part of a report is computed from its study.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

import pandas as pd

from cpdrun.costmodel import Network
from cpdrun.record import EpochRow, ExampleOutcomes
from cpdrun.stats.evidence import Judgement, differences, judge
from cpdrun.stats.failures import FailureCounts, compare_runs
from cpdrun.stats.ledger import Hypothesis, Ledger, Start
from cpdrun.study.axes import BitsAxis
from cpdrun.study.collect import SEED
from cpdrun.study.group import Facet, Group
from cpdrun.study.grouping import make_facets
from cpdrun.study.margin import Margin
from cpdrun.study.metric import CLASSES_IF_UNKNOWN, Metric, learnt, worst
from cpdrun.study.records import FiniteTestSet, finite_test_set, read_outcomes, rows_of, unit_of
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
    has_asked_margin: bool = False
    has_asked_confidence: bool = False
    may_be_share: bool = False
    tuned: Tuned = field(default_factory=Tuned, repr=False)
    ledger: Ledger = field(default_factory=Ledger)
    starts: tuple[Start, ...] = ()
    margin: Margin = field(default_factory=Margin)

    @property
    def tolerance(self) -> float:
        """The margin in the unit in which the metric is shown. If there is none, NaN, so that no gap is within it."""
        return self.margin.shown

    @cached_property
    def facets(self) -> list[Facet]:
        """The facets. The groups of a facet have the same values on `facet_axes` and are compared with each other."""
        return make_facets(self.groups, self.facet_axes, self.bits_axis)

    def of_facets(self, has_cases: bool) -> "Study":
        """Return the study restricted to some of its facets.

        Args:
            has_cases: If True, keep the facets with named cases. If False, keep all other facets.
        """
        chosen = [facet for facet in self.facets if facet.has_cases == has_cases]
        groups = dict.fromkeys(group for facet in chosen for group in facet.all_groups)
        return replace(self, groups=list(groups))

    @property
    def sends_alike(self) -> bool:
        """Whether the groups of each facet send equally many bytes, because only formats of other tensors vary."""
        return not self.bits_axis.is_of_gradients and all(
            len({group.wire_bytes for group in facet.groups if group.wire_bytes > 0}) < 2
            for facet in self.facets
        )

    # ---- baselines and verdicts

    @property
    def baseline_name(self) -> str:
        """The name of the baseline, which is usually `fp32`."""
        return self.bits_axis.baseline_name

    @property
    def margin_text(self) -> str:
        """The margin with its unit, such as `0.5 points`."""
        return self.metric.show_tolerance(self.tolerance)

    @property
    def difference_title(self) -> str:
        """The heading of the column with the differences to the baseline. For every metric, positive is better."""
        unit = f", {self.metric.points.strip()}" if self.metric.points else ""
        return f"against {self.baseline_name}{unit}{'' if self.metric.higher_is_better else ', +: better'}"

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
        baseline = self._baselines.get(group)
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

    def compare(self, one: Group, other: Group) -> Judgement:
        """Judge how much better one group is than another, from their own pairs and with a margin of 0.

        Such comparisons are chosen after looking at the means. They are therefore separate from the study's verdicts,
        and use no share of their error probability.
        """
        pairs = compare_runs(one.outcomes, other.outcomes)
        low = worst(self.metric, other.num_classes, other.values, 0.0)
        way = self.metric.higher_is_better
        gaps = differences(pairs.ours, pairs.baseline, higher_is_better=way, worst=low)
        alpha, samples = 1 - self.ci / 100, self.samples(one, other)
        resolution = 1 / samples if samples > 0 else 0.0
        return judge(
            gaps, 0.0, certify=alpha / 2, refute=alpha / 2, confidence=self.ci / 100, resolution=resolution
        )

    @cached_property
    def judged(self) -> dict[Group, Judged]:
        """The verdicts of the anytime-valid test, for all groups that are compared with a baseline."""
        ladders = [
            (facet.baseline, groups)
            for facet in self.facets
            if facet.baseline is not None and not self.baseline_problem(facet)
            for groups in facet.ladders.values()
        ]
        return self.judge(ladders, self.ledger)

    def baseline_of(self, group: Group) -> Group | None:
        """Return the baseline of a group, or None if there is no baseline that is fit to compare with.

        The baseline of a baseline is the group itself.
        """
        return self._baselines.get(group)

    @property
    def hypotheses(self) -> list[Hypothesis]:
        """The tested hypotheses with their weights and priors, to be added to the ledger of the sweep."""
        return [judged.hypothesis for judged in self.judged.values() if judged.hypothesis is not None]

    def judge(
        self, ladders: Sequence[tuple[Group, Sequence[Group]]], ledger: Ledger | None = None
    ) -> dict[Group, Judged]:
        """Judge ladders. They share the error probability with each other and with the hypotheses of a ledger.

        Args:
            ladders: For each ladder, its baseline and its candidates.
            ledger: The ledger of the hypotheses that were tested before. If it is None, there are none, and every
                ladder starts at its widest width.

        Returns:
            The verdicts, keyed by candidate.
        """
        samples = self.samples(*(group for _, groups in ladders for group in groups)) if ladders else math.nan
        margin = self.tolerance / self.metric.scale
        alpha, shared = 1 - self.ci / 100, ledger or Ledger()
        starts = () if ledger is None else self.starts
        return judge_groups(ladders, self.metric, margin, alpha, samples, shared, starts)

    def finite_test_set(self, group: Group) -> FiniteTestSet | None:
        """Return how much of the error of a group's gap is due to the choice of the test examples.

        Returns:
            The gap and its error. The result is None for a baseline, for a group without a baseline, and for a group
            that `may_be_within` excludes. It is also None if some runs of the group or of its baseline did not record
            which examples they answered correctly.
        """
        baseline = self._baselines.get(group)
        if baseline is None or baseline is group or not self.may_be_within(group):
            return None
        return finite_test_set(self._outcomes(group), self._outcomes(baseline), self.ci / 100)

    def _outcomes(self, group: Group) -> dict[Any, ExampleOutcomes | None]:
        """Return which examples a group's runs answered correctly, keyed by seed."""
        if group not in self._outcomes_read:
            runs = {self._seed_of[str(run.path)]: run for run in group.runs}
            self._outcomes_read[group] = {
                seed: read_outcomes(run, self.metric.name)
                for seed, run in runs.items()
                if seed in group.by_seed
            }
        return self._outcomes_read[group]

    @cached_property
    def _outcomes_read(self) -> dict[Group, dict[Any, ExampleOutcomes | None]]:
        return {}

    @cached_property
    def _seed_of(self) -> dict[str, Any]:
        return dict(zip(self.runs["run:path"], self.runs[SEED], strict=True))

    def samples(self, *groups: Group) -> float:
        """Return the number of test samples on which the metric of some groups is computed.

        If the groups differ, return the smallest number. If the metric is not a share of samples, or if the number is
        unknown for any group, return NaN.
        """
        counts = [group.test_samples for group in groups]
        known = self.metric.counts_samples and all(count > 0 for count in counts)
        return min(counts) if known else math.nan

    @cached_property
    def _baselines(self) -> dict[Group, Group | None]:
        return {
            group: None if self.baseline_problem(facet) else facet.baseline
            for facet in self.facets
            for group in facet.groups
        }

    # ---- descriptions and epochs

    def history(self, group: Group, runs: int | None = None) -> list[EpochRow]:
        """Return the rows of the curves of a group's runs, one run after the other.

        Args:
            group: The group.
            runs: The number of runs to include. None for all runs.
        """
        return [row for run in group.runs[:runs] for row in rows_of(run)]

    @property
    def counted_in(self) -> str:
        """The unit in which the rows of `history` are counted: "epoch", "step", or "row"."""
        return unit_of(run for group in self.groups for run in group.runs)
