"""Plan the next runs of a search, and forecast its cost.

The choice of a run depends on all results before it, so a plan is valid only until further runs end. The budget of a
plan limits further runs and does not count runs that have ended.
"""

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Literal

from cpdrun.search.ladders import Candidate, LadderState
from cpdrun.search.results import Results
from cpdrun.search.schedule import FIRST_PAIRS, wanted_runs
from cpdrun.search.settings import Budget
from cpdrun.stats.ended_runs import RunKey
from cpdrun.stats.evidence import Judgment, Verdict, pairs_needed
from cpdrun.stats.ladder import Width
from cpdrun.stats.means import deviation
from cpdrun.study.answers import finite

# The multiples of the margin for which a forecast shows the cost.
TOLERANCES = (0.5, 1.0, 2.0)

SecondsOf = Literal["runs of this cell", "other runs of the sweep"]


@dataclass(frozen=True)
class NextRun:
    """A run that a search would start.

    Attributes:
        run: The name of the run.
        cell: The label of the candidate, or the name of the baseline.
        seed: The seed.
        is_baseline: Whether this is a run of the baseline.
        candidates: The labels of the candidates that the run helps to decide.
        seconds: The expected wall time in seconds; None if no run has ended.
        seconds_of: The runs from which `seconds` is estimated; None if no run has ended.
        core_seconds: The expected wall time times the number of cores; None if no run has ended.
        ahead: Whether the run only keeps idle cores busy.
        fits: Whether the run is within the budget; None if unknown or without a budget.
        overrides: The command-line overrides of the run.
    """

    run: str
    cell: str
    seed: int
    is_baseline: bool
    candidates: list[str]
    seconds: float | None
    seconds_of: SecondsOf | None
    core_seconds: float | None
    ahead: bool
    fits: bool | None
    overrides: list[str]


@dataclass(frozen=True)
class NextCandidate:
    """A candidate now, and as expected after the next runs.

    Attributes:
        candidate: The label of the candidate.
        bits: The bit width.
        verdict: The verdict so far.
        pairs: The number of pairs so far.
        difference: The mean difference so far; None without pairs.
        low: The lower end of the confidence interval of the difference; None if it has no lower end.
        high: The upper end of the confidence interval of the difference; None if it has no upper end.
        sure_certified: The confidence, in percent, at which the evidence so far would certify the candidate. It takes
            the candidate's share of the error probability into account.
        sure_refuted: The confidence, in percent, at which the evidence so far would refute the candidate.
        more: The number of further pairs that will likely decide the candidate; None if unknown.
        more_range: The range that contains this number in 80% of searches; None if `more` is None.
        pairs_after: The number of pairs after the next runs within the budget.
        likely_settled: Whether those runs will likely decide the candidate; None if `more` is unknown.
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
    more_range: list[int] | None
    pairs_after: int
    likely_settled: bool | None


@dataclass(kw_only=True)
class SearchPlan:
    """The runs that a search would start now.

    Attributes:
        sweep: The folder of the sweep.
        metric: The name of the metric.
        tolerance: The margin in the displayed unit; None while it is unknown.
        confidence: The confidence in percent.
        budget: The limit of further runs, if any.
        done: The number of runs that have ended.
        fit: The number of planned runs within the budget, or for which this is unknown.
        runs: The planned runs, most useful first.
        candidates: The candidates that the planned runs help to decide.
        command: The command that starts the runs within the budget; None if there are none.
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


def plan_runs(results: Results, budget: Budget | None, words: Sequence[str]) -> SearchPlan:
    """Return the runs that a search would start now, most useful first.

    `words` are the command-line overrides, for `SearchPlan.command`.
    """
    states = results.answerable_states()
    inputs = states, results.ended, set[RunKey](), results.rules(), results.question.tuning
    needed, every = (list(wanted_runs(*inputs, ahead=ahead)) for ahead in (False, True))
    seconds = {name: _seconds(results, name) for name in {name for name, _ in every}}
    runs = [_next_run(results, states, key, {*every}, seconds[key[0]], key not in needed) for key in every]
    runs = list(_within(runs, budget))
    coming = {key for key, run in zip(every, runs, strict=True) if run.fits is not False}
    labels = {label for run in runs for label in run.candidates}
    rows = (row for state in states for row in state)
    command = None
    if coming:  # `cpdrun search --budget` also counts the runs that have ended
        command = f"{shlex.join(['cpdrun', 'search', *words])} --budget {results.runs + len(coming)}"
    return SearchPlan(
        sweep=str(results.directory.path),
        metric=results.metric.name,
        tolerance=finite(results.tolerance),
        confidence=results.question.settings.confidence,
        budget=None if budget is None else str(budget),
        done=results.runs,
        fit=len(coming),
        runs=runs,
        candidates=[_next_candidate(results, *row, coming) for row in rows if row[0].label in labels],
        command=command,
    )


def _next_run(
    results: Results,
    states: Sequence[LadderState],
    key: RunKey,
    listed: set[RunKey],
    known: tuple[float | None, SecondsOf | None],
    is_ahead: bool,
) -> NextRun:
    name, seed = key
    planned = results.cells[name][seed]
    seconds, source = known
    own, paired = _evidence_on(results, states, key, listed)
    return NextRun(
        run=planned.name,
        cell=own[0].label if own else results.question.baseline_name,
        seed=seed,
        is_baseline=not own,
        candidates=list(dict.fromkeys(candidate.label for candidate in own or paired)),
        seconds=seconds,
        seconds_of=source,
        core_seconds=None
        if seconds is None
        else seconds * planned.config["nproc"] * planned.config["threads"],
        ahead=is_ahead,
        fits=None,
        overrides=list(planned.overrides),
    )


def _evidence_on(
    results: Results, states: Sequence[LadderState], key: RunKey, listed: set[RunKey]
) -> tuple[list[Candidate], list[Candidate]]:
    """Return the candidates that a run belongs to, and those that a baseline run helps to decide.

    The latter are the candidates of each ladder with a planned or ended run of the same seed, or else the active
    candidate.
    """
    name, seed = key
    cells = {arm: cell for cell, arms in results.question.tuning.arms.items() for arm in arms}
    cell = cells.get(name, name)
    own: list[Candidate] = []
    others: list[Candidate] = []
    for state in states:
        own += [c for c, _, _ in state if c.name in (name, cell)]
        of_baseline = [c for c, _, _ in state if c.baseline in (name, cell)]
        paired = [c for c in of_baseline if (c.name, seed) in listed or results.ended.has((c.name, seed))]
        others += paired or ([state.active[0]] if state.active and of_baseline else [])
    return own, others


def _seconds(results: Results, name: str) -> tuple[float | None, SecondsOf | None]:
    """Return the expected seconds of a cell's run, and their source.

    This is the median over the cell's own runs, or over all runs if none of them has ended.
    """
    done = [results.run((name, seed)).result() for seed in results.cells[name]]
    own = [result.wall_seconds for result in done if result is not None and result.wall_seconds is not None]
    every = [seconds for seconds in results.seconds if math.isfinite(seconds)]
    if own:
        return median(own), "runs of this cell"
    return (median(every), "other runs of the sweep") if every else (None, None)


def _within(runs: Sequence[NextRun], budget: Budget | None) -> Iterator[NextRun]:
    """Yield the runs with `fits` set."""
    spent = 0.0
    for count, run in enumerate(runs, 1):
        fits = None
        if budget is not None and budget.runs is not None:
            fits = count <= budget.runs
        elif budget is not None and budget.core_hours is not None and run.core_seconds is not None:
            spent += run.core_seconds
            fits = spent <= budget.core_hours * 3600
        yield replace(run, fits=fits)


def _next_candidate(
    results: Results, candidate: Candidate, judgment: Judgment, width: Width, coming: set[RunKey]
) -> NextCandidate:
    certified, refuted = confidence_so_far(results, judgment)
    more, after = judgment.more, judgment.pairs + _further_pairs(results, candidate, coming)
    return NextCandidate(
        candidate=candidate.label,
        bits=candidate.bits,
        verdict=width.verdict_of(judgment),
        pairs=judgment.pairs,
        difference=finite(judgment.mean),
        low=finite(judgment.low),
        high=finite(judgment.high),
        sure_certified=certified,
        sure_refuted=refuted,
        more=None if more is None else more.likely,
        more_range=None if more is None else [more.low, more.high],
        pairs_after=after,
        likely_settled=None if more is None else after >= judgment.pairs + more.likely,
    )


def confidence_so_far(results: Results, judgment: Judgment) -> tuple[float, float]:
    """Return the confidences, in percent, that the evidence so far supports.

    The first is for certifying the candidate, and the second for refuting it. They are at least 0 and below 100.
    """
    alpha, (certify, refute) = results.question.settings.alpha, judgment.errors
    sides = ((judgment.log_certify, certify), (judgment.log_refute, refute))
    certified, refuted = (100 * (1 - min(1.0, alpha / share * math.exp(-log))) for log, share in sides)
    return certified, refuted


def _further_pairs(results: Results, candidate: Candidate, coming: set[RunKey]) -> int:
    """Return the number of pairs that the coming runs complete."""

    def has(key: RunKey) -> bool:
        return key in coming or results.ended.has(key)

    seeds = {seed for name, seed in coming if name in (candidate.name, candidate.baseline)}
    return sum(has((candidate.name, seed)) and has((candidate.baseline, seed)) for seed in seeds)


# ---- The cost of the whole search


@dataclass(frozen=True)
class Noise:
    """The noise of a paired difference.

    Attributes:
        deviation: The standard deviation of a paired difference, in the metric's stored unit.
        source: The origin of the estimate.
        count: The number of candidates or baseline runs in the estimate.
    """

    deviation: float
    source: Literal["candidates", "baseline runs"]
    count: int


@dataclass(frozen=True)
class CostForecast:
    """The likely cost of a search from now on.

    Attributes:
        tuning_runs: The number of tuning runs that are still needed.
        noise: The noise of a paired difference. If it is unknown, `pairs` is empty, and `runs` and `seconds` are None.
        pairs: For each multiple of the margin in TOLERANCES, the number of pairs that will likely decide a width with
            one format; None if it exceeds `most_pairs`.
        most_pairs: The maximum number of pairs that is considered.
        runs: The number of runs that are still needed, including tuning; None if `search.most_seeds` pairs are likely
            too few.
        seconds: The seconds until all those runs have ended; None if unknown.
    """

    tuning_runs: int
    noise: Noise | None
    pairs: list[int | None]
    most_pairs: int
    runs: int | None
    seconds: float | None


def forecast_cost(
    results: Results, slots: int | None, states: list[LadderState] | None = None
) -> CostForecast:
    """Forecast the cost of the search from now on, with `slots` runs at the same time."""
    states = results.states() if states is None else states
    noise, most = _noise(results, states), 10 * results.question.settings.most_seeds
    if noise is None:
        return CostForecast(_tuning_runs(results, states), None, [], most, None, None)
    runs = _likely_runs(results, states, noise.deviation)
    seconds = None
    if runs is not None and slots is not None and results.seconds:
        mean = fmean(results.seconds)
        seconds = runs * mean / slots if math.isfinite(mean) else None
    pairs = [_pairs(states, results, factor, noise.deviation, most) for factor in TOLERANCES]
    return CostForecast(_tuning_runs(results, states), noise, pairs, most, runs, seconds)


def _noise(results: Results, states: Sequence[LadderState]) -> Noise | None:
    """Return the noise of a paired difference, if known.

    This is the pooled standard deviation over candidates with two pairs or more that are not refuted. If there are
    none, it is sqrt(2) times the deviation of a baseline's runs, a rough estimate that ignores the common seed of a
    pair.
    """
    known = [
        (judgment.pairs - 1, judgment.deviation)
        for state in states
        for _, judgment, _ in state
        if judgment.pairs >= 2 and judgment.verdict is not Verdict.REFUTED
    ]
    degrees = sum(n for n, _ in known)
    if degrees:
        pooled = math.sqrt(math.fsum(n * sd**2 for n, sd in known) / degrees)
        return Noise(pooled, "candidates", len(known)) if pooled > 0 else None
    for name in {state.ladder.baseline for state in states}:
        values = [value for value in results.ended.values.get(name, {}).values() if math.isfinite(value)]
        if len(values) >= 2 and deviation(values) > 0:
            return Noise(deviation(values) * math.sqrt(2), "baseline runs", len(values))
    return None


def _tuning_runs(results: Results, states: Sequence[LadderState]) -> int:
    """Return the number of tuning runs that are still needed.

    Each ladder is assumed to tune its baseline, its active candidate, and the first format of each narrower width,
    unless it has moved above its start.
    """
    tuning, cells = results.question.tuning, set[str]()
    for state in states:
        if state.active is not None and state.frontier is not None:
            goes_down = state.frontier >= state.ladder.start
            below = state.ladder.widths[state.frontier + 1 :] if goes_down else ()
            first = [state.active[0], *(width[0] for width in below)]
            cells |= {name for candidate in first for name in (candidate.baseline, candidate.name)}
    return sum(len(turn) for cell in cells for turn in tuning.missing(cell, results.ended))


def _likely_runs(results: Results, states: Sequence[LadderState], noise: float) -> int | None:
    """Return the number of runs still needed, or None if `search.most_seeds` pairs are likely too few.

    The first format of each width is assumed to be as good as the baseline. If there are several widths,
    FIRST_PAIRS pairs are assumed to decide each format of the narrowest one.
    """
    rules, runs, longest = results.rules(), _tuning_runs(results, states), 0
    for state in states:
        if state.active is None or state.frontier is None:
            continue
        last = len(state.widths) - 1
        upto = last if state.frontier >= state.ladder.start else state.frontier
        for i, width in enumerate(state.widths[state.frontier : upto + 1], state.frontier):
            first = width.judgments[0]
            needed = _needed(rules.tolerance, noise, first.errors, rules.most_seeds)
            if needed is None:
                return None
            pairs = FIRST_PAIRS * len(width.judgments) if i == last and i else needed
            runs += max(0, pairs - first.pairs)
            longest = max(longest, needed)
    baselines = {state.ladder.baseline for state in states if state.active is not None}
    return runs + sum(max(0, longest - len(results.paired(name))) for name in baselines)


def _pairs(
    states: Sequence[LadderState], results: Results, factor: float, noise: float, most: int
) -> int | None:
    """Return the number of pairs that decide a width with one format if the margin is multiplied by `factor`.

    None if more than `most` pairs are needed.
    """
    _, error = states[0].widths[states[0].ladder.start].judgments[0].errors
    return _needed(factor * results.tolerance / results.metric.scale, noise, (error, error), most)


def _needed(margin: float, noise: float, errors: tuple[float, float], most: int) -> int | None:
    certify, refute = errors
    return pairs_needed(margin, noise, certify=certify, refute=refute, fewest=2, most=most)
