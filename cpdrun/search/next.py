"""List the runs that `cpdrun search --plan` shows, how long they take and what they would settle.

The plan reads the results once and starts nothing, because the runs after these depend on what these show. A budget
counts further runs only. The confidence of a candidate is the confidence at which the evidence so far would certify or
refute it, in percent, given the candidate's share of the error (`cpdrun.stats.evidence`). The candidate is settled
when this reaches the confidence of the search.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from cpdrun.launch.progress.display import duration
from cpdrun.report.result_text import pairs_text
from cpdrun.search.results import Results
from cpdrun.search.schedule import Ask, Candidate, Standing, wanted
from cpdrun.search.settings import Budget
from cpdrun.search.words import difference, sentences
from cpdrun.stats.chain import Width
from cpdrun.stats.evidence import Judgement

OWN, OTHERS = "runs of this cell", "other runs of the sweep"


@dataclass(frozen=True)
class NextRun:
    """A run that a search would ask for.

    Attributes:
        ask: The cell and the seed.
        name: The name of the run.
        label: The label of the candidate, or the name of the baseline.
        seconds: The expected wall time, or None if no run has ended.
        seconds_of: The runs from which the time is estimated, OWN or OTHERS, or None.
        core_seconds: The expected core time, or None.
        candidates: The labels of the candidates on which the run gives evidence.
        is_baseline: Whether the run is a run of the baseline.
        is_ahead: Whether the run is asked for only to keep an idle core busy.
        fits: Whether the run is within the budget, or None if this is unknown or no budget was given.
    """

    ask: Ask
    name: str
    label: str
    seconds: float | None
    seconds_of: str | None
    core_seconds: float | None
    candidates: tuple[str, ...]
    is_baseline: bool
    is_ahead: bool
    fits: bool | None = None

    def facts(self, overrides: Sequence[str]) -> dict[str, Any]:
        """Return the run for programs."""
        return {
            "run": self.name,
            "cell": self.label,
            "seed": self.ask[1],
            "is_baseline": self.is_baseline,
            "candidates": list(self.candidates),
            "seconds": self.seconds,
            "seconds_of": self.seconds_of,
            "core_seconds": self.core_seconds,
            "ahead": self.is_ahead,
            "fits": self.fits,
            "overrides": list(overrides),
        }


@dataclass(frozen=True)
class Next:
    """The runs that a search would ask for, and the budget."""

    results: Results
    standings: list[Standing]
    runs: list[NextRun]
    budget: Budget | None

    @property
    def fitting(self) -> list[NextRun]:
        """The runs within the budget. All runs count if there is no budget or if it is unknown whether they fit."""
        return [run for run in self.runs if run.fits is not False]


def look(results: Results, budget: Budget | None) -> Next:
    """Return the runs that a search would ask for now, those that settle most first."""
    standings = [s for s in results.standings() if not results.problem(s.chain.baseline)]

    def asks(*, ahead: bool) -> list[Ask]:
        tuning = results.question.tuning
        return list(wanted(standings, results.ended, set(), results.rules(), tuning, ahead=ahead))

    needed = set(asks(ahead=False))
    every = asks(ahead=True)
    cells = {ask[0] for ask in every}
    seconds = {name: _seconds(results, name) for name in cells}
    found = [_run(results, standings, ask, set(every), seconds[ask[0]], ask not in needed) for ask in every]
    return Next(results, standings, list(_within(found, budget)), budget)


def _run(
    results: Results,
    standings: Sequence[Standing],
    ask: Ask,
    listed: set[Ask],
    known: tuple[float | None, str | None],
    is_ahead: bool,
) -> NextRun:
    name, seed = ask
    planned = results.question.cells[name][seed]
    seconds, of = known
    cores = planned.config["nproc"] * planned.config["threads"]
    own, beside = _candidates(results, standings, ask, listed)
    is_baseline = not own
    label = results.question.baseline_name if is_baseline else own[0].label
    return NextRun(
        ask,
        planned.name,
        label,
        seconds,
        of,
        None if seconds is None else seconds * cores,
        tuple(dict.fromkeys(candidate.label for candidate in own or beside)),
        is_baseline,
        is_ahead,
    )


def _candidates(
    results: Results, standings: Sequence[Standing], ask: Ask, listed: set[Ask]
) -> tuple[list[Candidate], list[Candidate]]:
    """Return the candidates on which a run gives evidence, as two lists.

    The first list has the candidates to whose cell the run belongs. The second has the candidates to whose baseline it
    belongs: those with a run of the same seed or, if a chain has none, the chain's candidate in question.
    """
    name, seed = ask
    cells = {arm: cell for cell, arms in results.question.tuning.arms.items() for arm in arms}
    cell = cells.get(name, name)
    own, beside = [], []
    for standing in standings:
        of_baseline = [c for c, _, _ in standing if c.baseline in (name, cell)]
        paired = [c for c in of_baseline if (c.name, seed) in listed or results.ended.has((c.name, seed))]
        own += [c for c, _, _ in standing if c.name in (name, cell)]
        beside += paired or ([standing.active[0]] if standing.active and of_baseline else [])
    return own, beside


def _seconds(results: Results, name: str) -> tuple[float | None, str | None]:
    """Return the median wall time of the cell's own runs, or else of all runs, and which of the two it is."""
    done = [results.run((name, seed)).result() for seed in results.question.cells[name]]
    own = [result.wall_seconds for result in done if result is not None and result.wall_seconds is not None]
    every = [seconds for seconds in results.seconds if math.isfinite(seconds)]
    if own:
        return median(own), OWN
    return (median(every), OTHERS) if every else (None, None)


def _within(runs: Sequence[NextRun], budget: Budget | None) -> Iterator[NextRun]:
    spent = 0.0
    for count, run in enumerate(runs, 1):
        fits = None
        if budget is not None and budget.runs is not None:
            fits = count <= budget.runs
        elif budget is not None and run.core_seconds is not None:
            spent += run.core_seconds
            fits = spent <= budget.core_hours * 3600
        yield NextRun(**{**vars(run), "fits": fits})


# ---- The confidence so far, and what the runs would settle


def sure(results: Results, judgement: Judgement) -> tuple[float, float]:
    """Return the confidences, in percent, at which the evidence so far would certify and refute a candidate.

    Each is at least 0 and below 100.
    """
    alpha, (certify, refute) = results.question.settings.alpha, judgement.errors
    sides = ((judgement.log_certify, certify), (judgement.log_refute, refute))
    of_certify, of_refute = (100 * (1 - min(1.0, alpha / share * math.exp(-log))) for log, share in sides)
    return of_certify, of_refute


def candidate_facts(found: Next) -> list[dict[str, Any]]:
    """Return the present and the expected state of each candidate that the listed runs give evidence on."""
    return [
        {
            "candidate": candidate.label,
            "bits": candidate.bits,
            "verdict": str(width.verdict_of(judgement)),
            "pairs": judgement.pairs,
            "difference": judgement.mean,
            "low": judgement.low,
            "high": judgement.high,
            "sure_certified": of_certify,
            "sure_refuted": of_refute,
            "more": judgement.more and judgement.more.likely,
            "pairs_after": (after := judgement.pairs + _further(found, candidate)),
            "likely_settled": None
            if judgement.more is None
            else after >= judgement.pairs + judgement.more.likely,
        }
        for candidate, judgement, width in _touched(found)
        for of_certify, of_refute in [sure(found.results, judgement)]
    ]


def _touched(found: Next) -> Iterator[tuple[Candidate, Judgement, Width]]:
    labels = {label for run in found.runs for label in run.candidates}
    return (row for standing in found.standings for row in standing if row[0].label in labels)


def _further(found: Next, candidate: Candidate) -> int:
    """Return how many further pairs are complete once the runs within the budget have ended."""
    ended, coming = found.results.ended, {run.ask for run in found.fitting}

    def has(ask: Ask) -> bool:
        return ask in coming or ended.has(ask)

    seeds = {seed for name, seed in coming if name in (candidate.name, candidate.baseline)}
    return sum(has((candidate.name, seed)) and has((candidate.baseline, seed)) for seed in seeds)


# ---- Messages


def says(found: Next) -> list[str]:
    """Return the plan as sentences. What the runs would settle comes first."""
    if not found.runs:
        return [
            "nothing is left to run: nothing that further seeds could settle is open",
            *sentences(found.results),
        ]
    lines = [_of_candidate(found, facts) for facts in candidate_facts(found)]
    times = [run.core_seconds for run in found.fitting]
    known = None not in times
    total = (
        f"about {duration(sum(times))} of core time" if known else "how long is known once one run has ended"
    )
    if all(run.is_baseline for run in found.runs):
        lines.append(
            "runs of the baseline alone: its first says at which width to start, and which format to try first"
        )
    count = f"{len(found.fitting)} run{'s' if len(found.fitting) != 1 else ''}"
    if found.budget is None:
        lines.append(f"{count}, {total}")
    elif known or found.budget.runs is not None:
        lines.append(f"within {found.budget}: {len(found.fitting)} of these {len(found.runs)} runs, {total}")
    else:
        lines.append(f"{count}; what fits within {found.budget} is not known: {total}")
    return [*lines, "what comes behind them depends on what they show: a search looks again after each"]


def _of_candidate(found: Next, facts: dict[str, Any]) -> str:
    judgement = next(j for c, j, _ in _touched(found) if c.label == facts["candidate"])
    after = facts["pairs_after"] - facts["pairs"]
    coming = f"{after} pair{'s' if after != 1 else ''} more"
    if not judgement.pairs:
        return f"{facts['candidate']}: not tried yet; {coming} of these runs"
    side = max(
        ("certified", facts["sure_certified"]), ("refuted", facts["sure_refuted"]), key=lambda each: each[1]
    )
    shown = difference(found.results.metric, judgement)
    stands = f"{pairs_text(judgement.pairs)}, {shown}, {_percent(side[1])} sure to be"
    need = "" if judgement.more is None else f" of {judgement.more} that would settle it"
    return f"{facts['candidate']}: {stands} {side[0]}; {coming}{need}"


def _percent(value: float) -> str:
    return f"{math.floor(value):d} %"


def command(found: Next, words: Sequence[str]) -> str | None:
    """Return the command that starts the runs, or None if there are none.

    The budget of the command includes the runs that have ended.
    """
    import shlex

    if not found.fitting:
        return None
    return f"{shlex.join(['cpdrun', 'search', *words])} --budget {found.results.runs + len(found.fitting)}"


def facts(found: Next, words: Sequence[str]) -> dict[str, Any]:
    """Return the plan for programs."""
    results = found.results
    cells = results.question.cells
    runs = [run.facts(cells[run.ask[0]][run.ask[1]].overrides) for run in found.runs]
    return {
        "sweep": str(results.question.directory.path),
        "metric": results.metric.name,
        "tolerance": None if math.isnan(results.tolerance) else results.tolerance,
        "confidence": results.question.settings.confidence,
        "budget": None if found.budget is None else str(found.budget),
        "done": results.runs,
        "fit": len(found.fitting),
        "runs": runs,
        "candidates": candidate_facts(found),
        "command": command(found, words),
        "says": says(found),
    }
