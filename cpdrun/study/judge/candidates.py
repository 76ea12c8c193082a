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
    """Which run of the baseline a candidate's run is compared with."""

    SEEDS = "seeds"  # the run of the same seed
    ORDER = "order"  # if the arms share no seed: the i-th run of each arm, sorted by seed
    SHUFFLED = "shuffled"  # the table has no seeds: at random, so the number of runs must be fixed beforehand
    TARGET = "target"  # every run with the same target value


@dataclass(frozen=True)
class Boundary:
    """A margin or a required improvement as typed: a number, or a percentage of the baseline's mean."""

    number: float
    is_relative: bool = False
    is_improvement: bool = False  # better by at least so much; otherwise worse by at most so much

    def margin(self, reference: float) -> float:
        """Return the margin in the metric's unit; an improvement is negative."""
        size = self.number / 100 * abs(reference) if self.is_relative else self.number
        return -size if self.is_improvement and size else size


@dataclass(frozen=True)
class JudgeQuestion:
    """What is asked of every candidate. `baseline` is the name of an arm, `target` a number in its place."""

    boundary: Boundary
    baseline: str | None = None
    target: float | None = None
    lower_is_better: bool = False
    confidence: float = 95.0  # per cent
    run_deviation: float | None = None  # the stated standard deviation between the runs of an arm
    resolution: float = 0.0
    worst: float | None = None  # the value of a failed run; None: the worst value of the table
    candidates: tuple[str, ...] = ()  # the arms to judge; none: all

    @property
    def alpha(self) -> float:
        return 1 - self.confidence / 100


@dataclass(frozen=True)
class ErrorProbabilities:
    """The probability of a wrong certificate, of a wrong refutation, and that an interval misses the true gap."""

    certify: float
    refute: float
    interval: float


@dataclass(frozen=True)
class Pairs:
    """The pairs of one candidate: the differences in order, with their seeds, and what became of its runs."""

    gaps: dict[Seed, float]  # positive is better
    failed: frozenset[Seed]  # seeds of pairs in which the candidate's run failed
    pairing: Pairing
    counts: FailureCounts
    unmatched: int  # runs of the candidate that have no run of the baseline
    is_barred: bool


@dataclass(frozen=True)
class JudgedArm:
    """The verdict on one candidate. `verdict` is open if a failed run bars a certificate."""

    candidate: str
    verdict: Verdict
    judgement: Judgement
    pairs: Pairs
    margin: float
    errors: ErrorProbabilities


def baseline_mean(table: Table, question: JudgeQuestion) -> float:
    """Return the mean of the baseline's runs, or the target. Raises UserError if no run of it has a value."""
    if question.target is not None:
        return question.target
    runs = table.find(question.baseline or "", "arm")
    values = [value for value in runs.values.values() if math.isfinite(value)]
    if not values:
        raise UserError(f"no run of the baseline {question.baseline!r} in {table.name} has a value.")
    return fmean(values)


def checked_margin(table: Table, question: JudgeQuestion) -> float:
    """Return the margin in the metric's unit. Raises UserError for one that every candidate, or none, would pass."""
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
    """Return the arms to judge, in the order of the table. Raises UserError if there is none."""
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
    seeds = ordered_seeds(compared.ours.keys() & compared.baseline.keys())
    worst = _worst(table, question) if question.worst is None else question.worst
    higher = not question.lower_is_better
    gaps = differences(compared.ours, compared.baseline, higher_is_better=higher, worst=worst)
    failed = frozenset(seed for seed in seeds if math.isnan(compared.ours[seed]))
    unmatched = len(_seeds(ours) - _seeds(theirs))
    return Pairs(
        dict(zip(seeds, gaps, strict=True)), failed, pairing, compared.counts, unmatched, compared.is_barred
    )


def judge_candidates(table: Table, question: JudgeQuestion) -> list[JudgedArm]:
    """Return the verdict on every candidate. They share the error probability equally.

    The standard deviation of the first pairs of the other candidates is pooled if there are at least three of them.
    """
    margin = checked_margin(table, question)
    pairs = {arm: form_pairs(table, question, arm) for arm in candidates_of(table, question)}
    everyone = [arm for arm in table.arms if arm != question.baseline]
    cells = {
        arm: list((pairs.get(arm) or form_pairs(table, question, arm)).gaps.values()) for arm in everyone
    }
    # a margin of infinity: without a margin, no candidate counts as broken
    pooled = priors(cells, margin if margin > 0 else math.inf, question.resolution)
    prior = stated_prior(question)
    share = question.alpha / len(pairs)
    errors = ErrorProbabilities(share, share, share)
    return [
        judge_pairs(arm, found, question, margin, errors, prior or pooled.get(arm, NO_PRIOR))
        for arm, found in pairs.items()
    ]


def stated_prior(question: JudgeQuestion) -> SpreadPrior | None:
    """Return the known standard deviation of a difference, if one is stated; of a pair, both runs vary."""
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
    """Return the verdict on one candidate's pairs."""
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
    """Return the runs with diverged ones as failed ones, so that their pairs are left out."""
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
