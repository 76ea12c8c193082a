"""Judge every candidate of a table of results against a baseline or a target value.

An arm is a column or label of the table whose runs belong together: the baseline, or one candidate.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from typing import Any

from cpdrun.errors import UserError
from cpdrun.stats.evidence import (
    NO_PRIOR,
    Judgment,
    SpreadPrior,
    Verdict,
    differences,
    judge,
    ordered_seeds,
)
from cpdrun.stats.failures import Failure, FailureCounts, Runs, compare_runs
from cpdrun.stats.pooled_spread import priors
from cpdrun.study.judge.table import Seed, Table


class Pairing(StrEnum):
    """How a candidate's runs are paired with the baseline's runs."""

    SEEDS = "seeds"  # Runs of the same seed are paired.
    ORDER = "order"  # The arms share no seed. Both are sorted by seed, and their i-th runs are paired.
    # The table has no seeds. Runs are paired at random, so the user must fix the number of runs beforehand.
    SHUFFLED = "shuffled"
    TARGET = "target"  # Every run is compared with the same target value.


@dataclass(frozen=True)
class Boundary:
    """A margin or a required improvement, as the user typed it.

    Attributes:
        number: The size, in the metric's unit or in percent of the baseline's mean or the target.
        is_relative: Whether `number` is a percentage.
        is_improvement: Whether the candidate must be better by this size. If not, it may be worse by this size.
    """

    number: float
    is_relative: bool = False
    is_improvement: bool = False

    def margin(self, reference: float) -> float:
        """Return the margin in the metric's unit. A required improvement is a negative margin.

        A percentage refers to the `reference`, which is the baseline's mean or the target.
        """
        size = self.number / 100 * abs(reference) if self.is_relative else self.number
        return -size if self.is_improvement and size else size


@dataclass(frozen=True)
class JudgeQuestion:
    """The user's request to `cpdrun judge`.

    Attributes:
        boundary: The margin or the required improvement.
        baseline: The name of the baseline's arm. None if there is a target.
        target: The value that candidates are compared with. None if there is a baseline.
        lower_is_better: Whether smaller values of the metric are better.
        confidence: The confidence in percent.
        run_deviation: The standard deviation between the runs of an arm, if the user stated it.
        resolution: The smallest step between two values of the metric. 0 if the metric is continuous.
        worst: The value that a failed run counts as. None for the worst value in the table.
        candidates: The names of the arms to judge. Empty for all arms.
    """

    boundary: Boundary
    baseline: str | None = None
    target: float | None = None
    lower_is_better: bool = False
    confidence: float = 95.0
    run_deviation: float | None = None
    resolution: float = 0.0
    worst: float | None = None
    candidates: tuple[str, ...] = ()

    @property
    def alpha(self) -> float:
        """The error probability that all candidates share."""
        return 1 - self.confidence / 100


@dataclass(frozen=True)
class ErrorProbabilities:
    """The allowed error probabilities of one verdict.

    Attributes:
        certify: The probability of a wrong certificate.
        refute: The probability of a wrong refutation.
        interval: The probability that the interval misses the true mean difference.
    """

    certify: float
    refute: float
    interval: float


@dataclass(frozen=True)
class Pairs:
    """One candidate's pairs, and the failures of its runs.

    Attributes:
        gaps: The differences keyed by seed, in the order in which they are judged. Positive is better.
        failed: The seeds of the pairs in which the candidate's run failed.
        pairing: How the runs were paired.
        counts: How many of the candidate's runs failed.
        unmatched: The number of the candidate's runs without a run of the baseline to pair with.
    """

    gaps: dict[Seed, float]
    failed: frozenset[Seed]
    pairing: Pairing
    counts: FailureCounts
    unmatched: int

    @property
    def is_barred(self) -> bool:
        """Whether the candidate cannot be certified, because some of its runs failed."""
        return self.counts.failed > 0


@dataclass(frozen=True)
class JudgedArm:
    """The verdict on one candidate.

    Attributes:
        candidate: The name of the candidate's arm.
        verdict: The verdict to report. A failed run makes it open instead of certified.
        judgment: The result of testing the pairs, without regard to failed runs.
        pairs: The pairs.
        margin: The margin in the metric's unit.
        errors: The allowed error probabilities of the verdict.
    """

    candidate: str
    verdict: Verdict
    judgment: Judgment
    pairs: Pairs
    margin: float
    errors: ErrorProbabilities


def baseline_mean(table: Table, question: JudgeQuestion) -> float:
    """Return the mean of the baseline's runs, or the target if there is one.

    Raises:
        UserError: The table has no such baseline, or no run of the baseline has a value.
    """
    if question.target is not None:
        return question.target
    runs = table.find(question.baseline or "", "arm")
    values = [value for value in runs.values.values() if math.isfinite(value)]
    if not values:
        raise UserError(f"no run of the baseline {question.baseline!r} in {table.name} has a value.")
    return fmean(values)


def checked_margin(table: Table, question: JudgeQuestion) -> float:
    """Return the margin in the metric's unit. Refuse one that makes no sense for the table.

    Raises:
        UserError: Every candidate or no candidate could pass, the margin is a percentage of 0, or the baseline has no
            value.
    """
    reference, boundary = baseline_mean(table, question), question.boundary
    what = "the target" if question.baseline is None else f"the baseline's mean {reference:g}"
    if boundary.is_relative and reference == 0:
        raise UserError(f"a margin in percent needs {what} to differ from 0. Write it as a number.")
    margin = boundary.margin(reference)
    values = table.values
    if abs(margin) >= 1 and all(0 <= value <= 1 for value in values):
        raise UserError(
            f"a margin of {abs(margin):g} makes no sense for values between 0 and 1. Write 0.05 for 5 points, or "
            "5% for 5% of the baseline."
        )
    is_passed_by_zero = not question.lower_is_better and margin >= reference > 0
    if is_passed_by_zero:
        raise UserError(f"a margin of {margin:g} makes no sense: it is not below {what}.")
    return margin


def is_share_margin_for_percentages(table: Table, question: JudgeQuestion) -> bool:
    """Return whether a margin such as 0.01 was typed for values such as 97.5, which look like percentages."""
    boundary, values = question.boundary, table.values
    return (
        not boundary.is_relative and 0 < boundary.number <= 0.1 and all(1 < value <= 100 for value in values)
    )


def candidates_of(table: Table, question: JudgeQuestion) -> list[str]:
    """Return the names of the arms to judge, in the order of the table.

    Raises:
        UserError: The table has no candidate, lacks a requested arm, or the baseline is requested as a candidate.
    """
    if question.baseline is not None:
        table.find(question.baseline, "baseline")
    for arm in question.candidates:
        table.find(arm, "candidate")
        if arm == question.baseline:
            raise UserError(f"{arm!r} cannot be both the baseline and a candidate.")
    found = [arm for arm in table.arms if arm != question.baseline]
    if not found:
        raise UserError(
            f"{table.name} has only one arm, {question.baseline!r}. A candidate is needed to compare with it."
        )
    return [arm for arm in found if not question.candidates or arm in question.candidates]


def form_pairs(table: Table, question: JudgeQuestion, candidate: str) -> Pairs:
    """Pair a candidate's runs with the baseline's runs or with the target."""
    ours = table.arms[candidate]
    if question.target is not None:
        seeds = ours.values.keys() | ours.failures.keys()
        theirs, pairing = Runs(dict.fromkeys(seeds, question.target)), Pairing.TARGET
    else:
        theirs = _as_baseline(table.arms[question.baseline or ""])
        is_matched = bool(_seeds(ours) & _seeds(theirs))
        pairing = Pairing.SEEDS if is_matched else Pairing.ORDER
        if table.is_shuffled:
            pairing = Pairing.SHUFFLED
        if not is_matched:
            ours, theirs = _numbered(ours), _numbered(theirs)
    compared = compare_runs(ours, theirs)
    shared = ordered_seeds(compared.ours.keys() & compared.baseline.keys())
    worst = _worst(table, question) if question.worst is None else question.worst
    higher = not question.lower_is_better
    gaps = differences(compared.ours, compared.baseline, higher_is_better=higher, worst=worst)
    failed = frozenset(seed for seed in shared if math.isnan(compared.ours[seed]))
    unmatched = len(_seeds(ours) - _seeds(theirs))
    return Pairs(dict(zip(shared, gaps, strict=True)), failed, pairing, compared.counts, unmatched)


def judge_candidates(table: Table, question: JudgeQuestion) -> list[JudgedArm]:
    """Return the verdict on every candidate. They share the error probability equally.

    The prior for a candidate's standard deviation is the one that the user stated. Otherwise, it is estimated from the
    first pairs of at least three other candidates.
    """
    margin = checked_margin(table, question)
    pairs = {arm: form_pairs(table, question, arm) for arm in candidates_of(table, question)}
    everyone = [arm for arm in table.arms if arm != question.baseline]
    cells = {
        arm: list((pairs.get(arm) or form_pairs(table, question, arm)).gaps.values()) for arm in everyone
    }
    # If the margin is not positive, pass an infinite margin instead, so that no candidate counts as broken.
    pooled = priors(cells, margin if margin > 0 else math.inf, question.resolution)
    prior = stated_prior(question)
    share = question.alpha / len(pairs)
    errors = ErrorProbabilities(share, share, share)
    return [
        judge_pairs(arm, found, question, margin, errors, prior or pooled.get(arm, NO_PRIOR))
        for arm, found in pairs.items()
    ]


def stated_prior(question: JudgeQuestion) -> SpreadPrior | None:
    """Return the prior for the standard deviation that the user stated, or None.

    Both runs of a pair vary, so a difference has sqrt(2) times the standard deviation of a run. With a target, only the
    candidate's run varies.
    """
    if question.run_deviation is None:
        return None
    runs_of_a_pair = 1 if question.target is not None else 2
    return SpreadPrior(question.run_deviation * math.sqrt(runs_of_a_pair), math.inf)


def judge_pairs(
    candidate: str,
    pairs: Pairs,
    question: JudgeQuestion,
    margin: float,
    errors: ErrorProbabilities,
    prior: SpreadPrior,
) -> JudgedArm:
    """Return the verdict on one candidate's pairs. The only part of the question that is used is its resolution."""
    judgment = judge(
        list(pairs.gaps.values()),
        margin,
        certify=errors.certify,
        refute=errors.refute,
        confidence=1 - errors.interval,
        resolution=question.resolution,
        prior=prior,
    )
    is_certified = judgment.verdict is Verdict.CERTIFIED
    verdict = Verdict.OPEN if is_certified and pairs.is_barred else judgment.verdict
    return JudgedArm(candidate, verdict, judgment, pairs, margin, errors)


def _as_baseline(runs: Runs) -> Runs:
    """Mark the baseline's diverged runs as failed, so that their pairs are left out."""
    lost = {seed: Failure.ERROR for seed, value in runs.values.items() if math.isnan(value)}
    values = {seed: value for seed, value in runs.values.items() if seed not in lost}
    return Runs(values, {**runs.failures, **lost})


def _worst(table: Table, question: JudgeQuestion) -> float:
    values = [*table.values, *([] if question.target is None else [question.target])]
    choose: Callable[[Sequence[float]], float] = max if question.lower_is_better else min
    return choose(values) if values else math.nan


def _seeds(runs: Runs) -> set[Seed]:
    return set(runs.values) | set(runs.failures)


def _numbered(runs: Runs) -> Runs:
    number = {seed: index for index, seed in enumerate(ordered_seeds(_seeds(runs)))}

    def renamed(by_seed: Mapping[Any, Any]) -> dict[Any, Any]:
        return {number[seed]: value for seed, value in by_seed.items()}

    return Runs(renamed(runs.values), renamed(runs.failures))
