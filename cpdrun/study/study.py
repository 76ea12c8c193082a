"""Define the class `Study`: the runs of one report with their groups, facets, and verdicts.

All parts of a report are computed from its study. `cpdrun.study.reader` creates it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

import pandas as pd

from cpdrun.costmodel import Network
from cpdrun.stats.evidence import Judgment, differences, judge
from cpdrun.stats.failures import FailureCounts, compare_runs
from cpdrun.study.axes import BitsAxis
from cpdrun.study.group import Facet, Group
from cpdrun.study.grouping import make_facets
from cpdrun.study.margin import Margin
from cpdrun.study.metric import CLASSES_IF_UNKNOWN, Metric, learnt, worst
from cpdrun.study.search_record import Asked, Tuned
from cpdrun.study.verdicts import Judged, LadderAnswer, answer_ladder, judge_groups


class BaselineFlaw(StrEnum):
    """A reason why a facet's baseline cannot be used for a comparison."""

    DIVERGED = "diverged"
    NO_VALUE = "no value"  # The baseline's runs have finished, but their records lack the metric.
    NOT_FINISHED = "not finished"
    DID_NOT_LEARN = "did not learn"
    # The accuracy is low, and the records lack the number of classes.
    UNKNOWN_CLASSES = "unknown classes"


@dataclass(frozen=True)
class BaselineProblem:
    """The flaw of a facet's baseline.

    Attributes:
        kind: The flaw.
        group: The baseline. None if it has no runs.
    """

    kind: BaselineFlaw
    group: Group | None = None


@dataclass(frozen=True)
class Study:
    """The runs of one report with the settings of their comparison.

    Attributes:
        sweeps: The names of the sweeps.
        runs: The table of runs, as `collect` returns it.
        metric: The compared metric.
        ci: The confidence in percent.
        axes: The config keys that differ between runs, except format, aps, and world_size.
        bits_axis: The axis along which formats are compared, with its baseline.
        groups: The groups. The runs of a group differ only in their seed.
        facet_axes: The keys that distinguish facets. Only groups with the same values on these keys are compared.
        networks: The networks for which the report predicts a speed-up, keyed by name.
        is_default_metric: Whether the user typed no other metric than the default.
        asked: The question that sweep.yaml records. The margin and the confidence are None unless the study uses them.
        tuned: The runs with the values that a search tuned.
        margin: The margin with its origin.
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
        """The margin in the unit in which the metric is shown. NaN if there is none; no gap is then within it."""
        return self.margin.shown

    @cached_property
    def facets(self) -> list[Facet]:
        """The facets. The groups of a facet have the same values on `facet_axes`."""
        return make_facets(self.groups, self.facet_axes, self.bits_axis)

    # ---- baselines and verdicts

    @property
    def baseline_name(self) -> str:
        """The baseline's name, usually `fp32`."""
        return self.bits_axis.baseline_name

    @property
    def margin_text(self) -> str:
        """The margin with its unit, such as `0.5 points`."""
        return self.metric.show_tolerance(self.tolerance)

    def baseline_problem(self, facet: Facet) -> BaselineProblem | None:
        """Return why a facet's baseline cannot be used, or None if it can."""
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
        """Return True if a group's mean is clearly better than that of a guessing model.

        If the number of classes is unknown, an accuracy of at least a fifth of the baseline's is enough. If neither
        check is possible, return True.
        """
        verdict = learnt(self.metric, group.mean, group.num_classes)
        baseline = self.baselines.get(group)
        if verdict is None and self.metric.is_fraction and baseline is not None and group.values:
            return group.mean >= 0.2 * baseline.mean
        return verdict is not False

    def may_be_within(self, group: Group) -> bool:
        """Return True if all runs of a group succeeded and it learned, so it may be within the margin."""
        failed = self.failures(group).failed or group.diverged or group.gave_up_seeds
        return bool(group.values) and not failed and self.learnt(group)

    def failures(self, group: Group) -> FailureCounts:
        """Return how many runs of a group failed. Zeros if the group is not compared with a baseline."""
        judged = self.judged.get(group)
        return FailureCounts() if judged is None else judged.failures

    def against_baseline(self, group: Group) -> Judgment | None:
        """Return the judgment of a group's pairs with its baseline, or None if it has no pairs."""
        judged = self.judged.get(group)
        return judged.judgment if judged is not None and judged.judgment.pairs else None

    def answer(self, facet: Facet, strategy: str) -> LadderAnswer:
        """Return the answer of the facet's ladder with this label (`Facet.ladders`)."""
        return answer_ladder(facet.ladders.get(strategy, []), self.judged, self.tolerance / self.metric.scale)

    @cached_property
    def judged(self) -> dict[Group, Judged]:
        """The verdicts on all groups that are compared with a baseline."""
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

        Each ladder is a baseline with its candidates. `asked` has the ledger of earlier hypotheses and the starts of
        ladders.
        """
        samples = self.samples(*(group for _, groups in ladders for group in groups)) if ladders else math.nan
        margin, alpha, asked = self.tolerance / self.metric.scale, 1 - self.ci / 100, asked or Asked()
        return judge_groups(ladders, self.metric, margin, alpha, samples, asked.ledger, asked.starts)

    def samples(self, *groups: Group) -> float:
        """Return the smallest number of test samples that the metric of some groups counts.

        NaN if the metric does not count samples, or if the number is unknown for a group.
        """
        counts = [group.figures["test_samples"] for group in groups]
        known = self.metric.counts_samples and all(count > 0 for count in counts)
        return min(counts) if known else math.nan

    @cached_property
    def baselines(self) -> dict[Group, Group | None]:
        """The baseline of each group. None if it cannot be used for a comparison. A baseline is its own baseline."""
        return {
            group: None if self.baseline_problem(facet) else facet.baseline
            for facet in self.facets
            for group in facet.groups
        }


def compare(study: Study, one: Group, other: Group) -> Judgment:
    """Judge how much better one group is than another, with a margin of 0.

    Users choose such comparisons after looking at the means. They are separate from the verdicts and use no share of
    their error probability.
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
