"""Compare every candidate of a table with its baseline, or with a target value, and return the verdicts."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from typing import Any

from cpdrun.errors import UserError
from cpdrun.stats.evidence import (
    NO_PRIOR,
    Judgement,
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
    """The way in which runs of a candidate are paired with runs of the baseline."""

    SEEDS = "seeds"  # Runs of the same seed are paired.
    ORDER = "order"  # The arms share no seed. The i-th runs of both arms are paired, sorted by seed.
    # The table has no seeds. Runs are paired at random, so the number of runs must be fixed beforehand.
    SHUFFLED = "shuffled"
    TARGET = "target"  # Every run is compared with the same target value.


@dataclass(frozen=True)
class Boundary:
    """A margin or a required improvement, as the user typed it.

    Attributes:
        number: The size, as a number in the metric's unit or a percentage of the baseline's mean.
        is_relative: Whether `number` is a percentage.
        is_improvement: Whether a candidate must be better by at least this size. If False, it may be worse by at most
            this size.
    """

    number: float
    is_relative: bool = False
    is_improvement: bool = False

    def margin(self, reference: float) -> float:
        """Return the margin in the metric's unit. A required improvement is a negative margin.

        Args:
            reference: The baseline's mean or the target, to which a percentage refers.
        """
        size = self.number / 100 * abs(reference) if self.is_relative else self.number
        return -size if self.is_improvement and size else size


@dataclass(frozen=True)
class JudgeQuestion:
    """The question that is asked about every candidate.

    Attributes:
        boundary: The margin or the required improvement.
        baseline: The name of the baseline's arm. None if there is a target.
        target: The number that takes the place of a baseline. None if there is a baseline.
        lower_is_better: Whether smaller values of the metric are better.
        confidence: The confidence in per cent.
        run_deviation: The stated standard deviation between the runs of an arm. None if it is not stated.
        resolution: The step in which the metric counts. 0 if it is continuous.
        worst: The value that a failed run counts as. None for the worst value in the table.
        candidates: The arms to judge. Empty for all arms.
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
    """The error probabilities of the verdict on one candidate.

    Attributes:
        certify: The probability of a wrong certificate.
        refute: The probability of a wrong refutation.
        interval: The probability that the interval does not contain the true gap.
    """

    certify: float
    refute: float
    interval: float


@dataclass(frozen=True)
class Pairs:
    """The pairs of one candidate, and the failures among its runs.

    Attributes:
        gaps: The differences by seed, in the order in which they are judged. Positive is better.
        failed: The seeds of the pairs in which the candidate's run failed.
        pairing: The way in which the runs were paired.
        counts: The numbers of failed runs.
        unmatched: The number of the candidate's runs that have no run of the baseline to be paired with.
        is_barred: Whether failed runs bar the candidate from being certified.
    """

    gaps: dict[Seed, float]
    failed: frozenset[Seed]
    pairing: Pairing
    counts: FailureCounts
    unmatched: int
    is_barred: bool


@dataclass(frozen=True)
class JudgedArm:
    """The verdict on one candidate.

    Attributes:
        candidate: The name of the candidate's arm.
        verdict: The verdict to report. It is open if the pairs would certify the candidate but a failed run bars it.
        judgement: What the pairs show.
        pairs: The pairs.
        margin: The margin in the metric's unit.
        errors: The error probabilities of the verdict.
    """

    candidate: str
    verdict: Verdict
    judgement: Judgement
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
    """Return the margin in the metric's unit.

    Raises:
        UserError: Every candidate or no candidate could pass this margin, it is a percentage of 0, or the baseline has
            no value.
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
            "5% for 5 % of the baseline."
        )
    is_passed_by_zero = not question.lower_is_better and margin >= reference > 0
    if is_passed_by_zero:
        raise UserError(f"a margin of {margin:g} makes no sense: it is not below {what}.")
    return margin


def candidates_of(table: Table, question: JudgeQuestion) -> list[str]:
    """Return the names of the arms to judge, in the order of the table.

    Raises:
        UserError: The table has no candidate, lacks an arm that the question names, or the baseline is a candidate too.
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
    """Return the differences of one candidate, in the order of the seeds."""
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
    return Pairs(
        dict(zip(shared, gaps, strict=True)), failed, pairing, compared.counts, unmatched, compared.is_barred
    )


def judge_candidates(table: Table, question: JudgeQuestion) -> list[JudgedArm]:
    """Return the verdict on every candidate. The candidates share the error probability equally.

    If there are at least three other candidates, the standard deviations of their first pairs are pooled into a prior
    for the candidate's standard deviation.
    """
    margin = checked_margin(table, question)
    pairs = {arm: form_pairs(table, question, arm) for arm in candidates_of(table, question)}
    everyone = [arm for arm in table.arms if arm != question.baseline]
    cells = {
        arm: list((pairs.get(arm) or form_pairs(table, question, arm)).gaps.values()) for arm in everyone
    }
    # The margin is infinite if it is not positive, so that no candidate counts as broken.
    pooled = priors(cells, margin if margin > 0 else math.inf, question.resolution)
    prior = stated_prior(question)
    share = question.alpha / len(pairs)
    errors = ErrorProbabilities(share, share, share)
    return [
        judge_pairs(arm, found, question, margin, errors, prior or pooled.get(arm, NO_PRIOR))
        for arm, found in pairs.items()
    ]


def stated_prior(question: JudgeQuestion) -> SpreadPrior | None:
    """Return the prior for a stated standard deviation; None if the question does not state one.

    In a pair, both runs vary, so the standard deviation of a difference is sqrt(2) times that of a run. The difference
    to a target has the standard deviation of a run.
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
    """Return the verdict on one candidate's pairs.

    Args:
        candidate: The name of the candidate's arm.
        pairs: The candidate's pairs.
        question: The question; only its resolution is used.
        margin: The margin in the metric's unit.
        errors: The error probabilities of the verdict.
        prior: The prior for the standard deviation of a difference.
    """
    judgement = judge(
        list(pairs.gaps.values()),
        margin,
        certify=errors.certify,
        refute=errors.refute,
        confidence=1 - errors.interval,
        resolution=question.resolution,
        prior=prior,
    )
    is_certified = judgement.verdict is Verdict.CERTIFIED
    verdict = Verdict.OPEN if is_certified and pairs.is_barred else judgement.verdict
    return JudgedArm(candidate, verdict, judgement, pairs, margin, errors)


def _as_baseline(runs: Runs) -> Runs:
    """Return the baseline's runs with diverged runs counted as failed runs, so that their pairs are left out."""
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
