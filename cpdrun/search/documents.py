"""The documents of `cpdrun search --json`, `search --plan --json` and `search --allocate --json`."""

from dataclasses import dataclass
from typing import Any, Literal

from cpdrun.launch.summary import SummaryDocument
from cpdrun.shell.document import optional
from cpdrun.stats.evidence import Verdict


@dataclass
class SearchCandidate:
    """The verdict on a candidate of a search. Differences are in the unit in which the metric is shown.

    Attributes:
        candidate: The name of the candidate.
        bits: Its bits per value.
        verdict: The verdict.
        pairs: The number of pairs.
        settled_at: The number of pairs after which the verdict was known.
        difference: The mean difference over seeds. Positive is better.
        low: The lower end of its interval, or null if it is unbounded.
        high: The upper end of the interval.
        more: About how many further pairs settle the question.
        is_identical: Whether its runs equal the baseline's bit for bit, so that they are no evidence.
        error_of_certifying: Its share of the error probability.
        runs_ended: The number of runs that have ended.
        runs_failed: The number of runs that failed, diverged or did not learn. If there is any, it is not certified.
        pairs_left_out: The number of pairs without a result because the baseline's run failed.
        at_most_fail: The share of runs that may fail although none did, or null if some failed.
        own_low: The lower end of the interval from the candidate's own pairs alone.
        own_high: The upper end of this interval.
        more_range: The range of further pairs that holds for 80 % of searches.
    """

    candidate: str
    bits: float
    verdict: Verdict
    pairs: int
    settled_at: int | None
    difference: float | None
    low: float | None
    high: float | None
    more: int | None
    is_identical: bool
    error_of_certifying: float
    runs_ended: int
    runs_failed: int
    pairs_left_out: int
    at_most_fail: float | None
    own_low: float | None = optional()
    own_high: float | None = optional()
    more_range: list[int] | None = optional()


@dataclass
class SearchChain:
    """The answer for the candidates that share a way of scaling.

    Attributes:
        chain: The way of scaling.
        problem: Why there is no answer.
        smallest: The certified candidate with the fewest bits.
        bits: Its bits per value.
        started_at: The position of the candidate with which the search started.
        is_over: Whether the search of this chain has ended.
        candidates: The candidates.
    """

    chain: str
    problem: str | None
    smallest: str | None
    bits: float | None
    started_at: int
    is_over: bool
    candidates: list[SearchCandidate]


@dataclass
class SearchDocument:
    """The answer of a search, and the verdict on every candidate.

    Attributes:
        sweep: The folder of the sweep.
        metric: The name of the metric.
        tolerance: The margin in the unit in which the metric is shown. Null if a relative margin is not known yet.
        margin: The margin and its origin as text.
        confidence: The confidence in percent.
        runs: The number of runs that have ended.
        chains: The answer of each way of scaling.
        says: The answer in sentences.
        dry_run: Whether no run was started.
        forecast: What the search may cost, in sentences.
        summaries: The numbers of runs of each round by how they ended.
        notes: What a user should know in addition.
        difference_is: What differences are.
        hypotheses: The number of hypotheses in the sweep's ledger. Each has a share of the error probability.
        tune: How keys are tuned, if they are.
    """

    sweep: str
    metric: str
    tolerance: float | None
    margin: str
    confidence: float
    runs: int
    chains: list[SearchChain]
    says: list[str]
    dry_run: bool
    forecast: list[str]
    summaries: list[SummaryDocument]
    notes: list[str]
    difference_is: Literal["mean over seeds"]
    hypotheses: int
    tune: dict[str, Any] | None = optional()


@dataclass
class NextRun:
    """A run that a search would start.

    Attributes:
        run: The name of the run.
        cell: The name of its cell.
        seed: Its seed.
        is_baseline: Whether it is a run of the baseline.
        candidates: The candidates whose verdicts it would help to decide.
        seconds: How long it is expected to take.
        seconds_of: The runs whose median this is.
        core_seconds: The core-seconds that it is expected to take.
        ahead: Whether it would only start because a core is idle.
        fits: Whether it is within the budget.
        overrides: The overrides of the run.
    """

    run: str
    cell: str
    seed: int
    is_baseline: bool
    candidates: list[str]
    seconds: float | None
    seconds_of: str | None
    core_seconds: float | None
    ahead: bool
    fits: bool | None
    overrides: list[str]


@dataclass
class NextCandidate:
    """How certain the answer for a candidate is.

    Attributes:
        candidate: The name of the candidate.
        bits: Its bits per value.
        verdict: The verdict.
        pairs: The number of pairs.
        difference: The mean difference. Positive is better.
        low: The lower end of its interval.
        high: The upper end of the interval.
        sure_certified: The confidence, in percent, at which it would be certified.
        sure_refuted: The confidence, in percent, at which it would be refuted.
        more: About how many further pairs settle the question.
        pairs_after: The number of pairs after the runs within the budget.
        likely_settled: Whether these pairs are likely to settle it.
    """

    candidate: str
    bits: float
    verdict: Verdict
    pairs: int
    difference: float | None
    low: float | None
    high: float | None
    sure_certified: float
    sure_refuted: float
    more: int | None
    pairs_after: int
    likely_settled: bool | None


@dataclass
class NextDocument:
    """The runs that a search would start next.

    Attributes:
        sweep: The folder of the sweep.
        metric: The name of the metric.
        tolerance: The margin in the unit in which the metric is shown.
        confidence: The confidence in percent.
        budget: The budget as it was typed.
        done: The number of runs that have ended.
        fit: The number of listed runs that are within the budget.
        runs: The runs in their order.
        candidates: The candidates.
        command: The search that runs them.
        says: The answer in sentences.
    """

    sweep: str
    metric: str
    tolerance: float | None
    confidence: float
    budget: str | None
    done: int
    fit: int
    runs: list[NextRun]
    candidates: list[NextCandidate]
    command: str | None
    says: list[str]


@dataclass
class FactorEffect:
    """The effect of one factor of a screen.

    Attributes:
        factor: The name of the factor.
        cost: How much worse the metric is at fewer bits.
        low: The lower end of its interval.
        high: The upper end of the interval.
    """

    factor: str
    cost: float | None
    low: float | None
    high: float | None


@dataclass
class ScreenDocument:
    """The effects of the factors of a screen, and an allocation of bits.

    Attributes:
        sweep: The folder of the sweep.
        factors: The factors.
        round: The number of the round.
        rows: The number of rows of the design.
        runs: The number of runs.
        most_runs: The largest number of runs of all rounds.
        metric: The name of the metric.
        effects: The effects. Null before the runs have ended.
        method: How intervals were computed.
        tolerance: The margin.
        diverged: The number of runs that diverged.
        allocation: The allocation of bits.
        certify: The command that certifies it.
        dry_run: Whether no run was started.
    """

    sweep: str
    factors: list[str]
    round: int
    rows: int
    runs: int
    most_runs: int
    metric: str | None
    effects: list[FactorEffect] | None
    method: str | None
    tolerance: float | None
    diverged: int | None
    allocation: dict[str, Any] | None
    certify: str | None
    dry_run: bool
