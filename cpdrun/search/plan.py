"""The next runs of a search, what they would settle, and what the whole search is likely to cost.

`cpdrun search --plan` shows the next runs. They depend on the results so far, and the runs after them depend on what
they show. A budget counts further runs only. The confidence of a candidate is the confidence at which the evidence so
far would certify or refute it, in percent, given the candidate's share of the error (`cpdrun.stats.evidence`). The
candidate is settled when this reaches the confidence of the search.
"""

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Literal

from cpdrun.search.ladders import Candidate, LadderState
from cpdrun.search.results import Results, baseline_problem
from cpdrun.search.schedule import FIRST_PAIRS, wanted_runs
from cpdrun.search.settings import Budget
from cpdrun.stats.ended_runs import RunKey
from cpdrun.stats.evidence import Judgement, Verdict, pairs_needed
from cpdrun.stats.ladder import Width
from cpdrun.stats.means import deviation

# Multiples of the margin for which a forecast shows the cost.
TOLERANCES = (0.5, 1.0, 2.0)

SecondsOf = Literal["runs of this cell", "other runs of the sweep"]


@dataclass(frozen=True)
class NextRun:
    """A run that a search would start.

    Attributes:
        run: The name of the run.
        cell: The label of the candidate, or the name of the baseline.
        seed: The seed.
        is_baseline: Whether the run is a run of the baseline.
        candidates: The labels of the candidates on which the run gives evidence.
        seconds: The expected wall time, or None if no run has ended.
        seconds_of: The runs from which the time is estimated, or None.
        core_seconds: The expected core time, or None.
        ahead: Whether the run is started only to keep an idle core busy.
        fits: Whether the run is within the budget, or None if this is unknown or no budget was given.
        overrides: The overrides that make the run.
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
    """The present and the expected state of a candidate on which the next runs give evidence.

    Attributes:
        candidate: The label of the candidate.
        bits: The bit width.
        verdict: The verdict so far.
        pairs: The number of pairs so far.
        difference: The mean difference so far, None without pairs.
        low: The lower end of its confidence interval, None if it is open.
        high: The upper end of its confidence interval, None if it is open.
        sure_certified: The confidence, in percent, at which the evidence would certify the candidate.
        sure_refuted: The confidence, in percent, at which the evidence would refute the candidate.
        more: How many more pairs are likely to settle the candidate, or None if this is unknown.
        more_range: The range of `more`.
        pairs_after: The number of pairs after the runs within the budget.
        likely_settled: Whether `pairs_after` reaches `more`, or None if `more` is unknown.
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
        tolerance: The margin in the unit in which the metric is shown, None while it is unknown.
        confidence: The confidence in percent.
        budget: The budget, or None.
        done: The number of runs that have ended.
        fit: The number of runs within the budget. All runs count if it is unknown whether they fit.
        runs: The runs, those that settle most first.
        candidates: The candidates on which the runs give evidence.
        command: The command that starts the runs, or None if there are none.
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
    """Return the runs that a search would start now, those that settle most first.

    Args:
        results: The results so far.
        budget: The limit of further runs, or None.
        words: The overrides of the search, for its command.
    """
    states = [state for state in results.states() if not baseline_problem(results, state.ladder.baseline)]
    needed, every = (_wanted(results, states, ahead=ahead) for ahead in (False, True))
    seconds = {name: _seconds(results, name) for name in {name for name, _ in every}}
    runs = [_next_run(results, states, key, {*every}, seconds[key[0]], key not in needed) for key in every]
    runs = list(_within(runs, budget))
    coming = {key for key, run in zip(every, runs, strict=True) if run.fits is not False}
    command = None
    if coming:  # The budget of the command includes the runs that have ended.
        command = f"{shlex.join(['cpdrun', 'search', *words])} --budget {results.runs + len(coming)}"
    return SearchPlan(
        sweep=str(results.directory.path),
        metric=results.metric.name,
        tolerance=None if math.isnan(results.tolerance) else results.tolerance,
        confidence=results.question.settings.confidence,
        budget=None if budget is None else str(budget),
        done=results.runs,
        fit=len(coming),
        runs=runs,
        candidates=list(_candidates(results, states, runs, coming)),
        command=command,
    )


def _wanted(results: Results, states: Sequence[LadderState], *, ahead: bool) -> list[RunKey]:
    tuning = results.question.tuning
    return list(wanted_runs(states, results.ended, set(), results.rules(), tuning, ahead=ahead))


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
    """Return the candidates on which a run gives evidence, as two lists.

    The first list has the candidates to whose cell the run belongs. The second has the candidates to whose baseline it
    belongs: those with a run of the same seed or, if a ladder has none, the ladder's candidate in question.
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
    """Return the median wall time of the cell's own runs, or else of all runs, and which of the two it is."""
    done = [results.run((name, seed)).result() for seed in results.cells[name]]
    own = [result.wall_seconds for result in done if result is not None and result.wall_seconds is not None]
    every = [seconds for seconds in results.seconds if math.isfinite(seconds)]
    if own:
        return median(own), "runs of this cell"
    return (median(every), "other runs of the sweep") if every else (None, None)


def _within(runs: Sequence[NextRun], budget: Budget | None) -> Iterator[NextRun]:
    """Yield the runs with whether each is within the budget."""
    spent = 0.0
    for count, run in enumerate(runs, 1):
        fits = None
        if budget is not None and budget.runs is not None:
            fits = count <= budget.runs
        elif budget is not None and budget.core_hours is not None and run.core_seconds is not None:
            spent += run.core_seconds
            fits = spent <= budget.core_hours * 3600
        yield replace(run, fits=fits)


def _candidates(
    results: Results, states: Sequence[LadderState], runs: Sequence[NextRun], coming: set[RunKey]
) -> Iterator[NextCandidate]:
    """Yield the present and the expected state of each candidate on which the listed runs give evidence."""
    labels = {label for run in runs for label in run.candidates}
    rows = (row for state in states for row in state if row[0].label in labels)
    for candidate, judgement, width in rows:
        yield _next_candidate(results, candidate, judgement, width, coming)


def _next_candidate(
    results: Results, candidate: Candidate, judgement: Judgement, width: Width, coming: set[RunKey]
) -> NextCandidate:
    certified, refuted = confidence_so_far(results, judgement)
    more, after = judgement.more, judgement.pairs + _further_pairs(results, candidate, coming)
    return NextCandidate(
        candidate=candidate.label,
        bits=candidate.bits,
        verdict=width.verdict_of(judgement),
        pairs=judgement.pairs,
        difference=judgement.mean if math.isfinite(judgement.mean) else None,
        low=judgement.low if math.isfinite(judgement.low) else None,
        high=judgement.high if math.isfinite(judgement.high) else None,
        sure_certified=certified,
        sure_refuted=refuted,
        more=None if more is None else more.likely,
        more_range=None if more is None else [more.low, more.high],
        pairs_after=after,
        likely_settled=None if more is None else after >= judgement.pairs + more.likely,
    )


def confidence_so_far(results: Results, judgement: Judgement) -> tuple[float, float]:
    """Return the confidences, in percent, at which the evidence so far would certify and refute a candidate.

    Each is at least 0 and below 100.
    """
    alpha, (certify, refute) = results.question.settings.alpha, judgement.errors
    sides = ((judgement.log_certify, certify), (judgement.log_refute, refute))
    certified, refuted = (100 * (1 - min(1.0, alpha / share * math.exp(-log))) for log, share in sides)
    return certified, refuted


def _further_pairs(results: Results, candidate: Candidate, coming: set[RunKey]) -> int:
    """Return how many further pairs are complete once the coming runs have ended."""

    def has(key: RunKey) -> bool:
        return key in coming or results.ended.has(key)

    seeds = {seed for name, seed in coming if name in (candidate.name, candidate.baseline)}
    return sum(has((candidate.name, seed)) and has((candidate.baseline, seed)) for seed in seeds)


# ---- The cost of the whole search


@dataclass(frozen=True)
class Noise:
    """The noise of a paired difference.

    Attributes:
        deviation: The standard deviation, in the metric's own unit.
        source: What the noise is estimated from.
        count: The number of candidates or of runs.
    """

    deviation: float
    source: Literal["candidates", "baseline runs"]
    count: int


@dataclass(frozen=True)
class CostForecast:
    """What a search is likely to cost from now on.

    Attributes:
        tuning_runs: The number of tuning runs that are still to come.
        noise: The noise, or None if it is unknown. Nothing else is known then.
        pairs: For each multiple of the margin in TOLERANCES, how many pairs decide a width with a single format, or
            None if they are more than `most_pairs`.
        most_pairs: The largest number of pairs that is considered.
        runs: The number of runs still to come, tuning runs included, or None if `search.most_seeds` pairs are likely to
            be too few.
        seconds: The time until all runs have ended, or None if it is unknown.
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
    """Return what the search is likely to cost from now on.

    Args:
        results: The results so far.
        slots: The number of runs that are trained at the same time, or None if it is unknown.
        states: The verdicts so far, if the caller has them.
    """
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
    """Return the standard deviation of a paired difference, or None if it is unknown.

    This is the pooled deviation over the candidates that are not refuted. If no candidate has two pairs, it is sqrt(2)
    times the deviation of a baseline's own runs, which ignores that the runs of a pair share a seed.
    """
    known = [
        (judgement.pairs - 1, judgement.deviation)
        for state in states
        for _, judgement, _ in state
        if judgement.pairs >= 2 and judgement.verdict is not Verdict.REFUTED
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
    """Return how many tuning runs are still to come.

    Baselines are counted, and the first format of every width from the frontier down.
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
    """Return how many runs are still to come, or None if `search.most_seeds` pairs are likely to be too few.

    The forecast assumes that the likeliest format of every width equals the baseline, except at the last width.
    """
    rules, runs, longest = results.rules(), _tuning_runs(results, states), 0
    for state in states:
        if state.active is None or state.frontier is None:
            continue
        last = len(state.widths) - 1
        upto = last if state.frontier >= state.ladder.start else state.frontier
        for i, width in enumerate(state.widths[state.frontier : upto + 1], state.frontier):
            first = width.judgements[0]
            needed = _needed(rules.tolerance, noise, first.errors, rules.most_seeds)
            if needed is None:
                return None
            pairs = FIRST_PAIRS * len(width.judgements) if i == last and i else needed
            runs += max(0, pairs - first.pairs)
            longest = max(longest, needed)
    baselines = {state.ladder.baseline for state in states if state.active is not None}
    return runs + sum(max(0, longest - len(results.paired(name))) for name in baselines)


def _pairs(
    states: Sequence[LadderState], results: Results, factor: float, noise: float, most: int
) -> int | None:
    """Return after how many pairs a width with a single format is decided, at a multiple of the margin."""
    _, error = states[0].widths[states[0].ladder.start].judgements[0].errors
    return _needed(factor * results.tolerance / results.metric.scale, noise, (error, error), most)


def _needed(margin: float, noise: float, errors: tuple[float, float], most: int) -> int | None:
    certify, refute = errors
    return pairs_needed(margin, noise, certify=certify, refute=refute, fewest=2, most=most)
