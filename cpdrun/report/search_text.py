"""Texts of a search: the question, the answers, the next runs and the cost.

A ladder holds the candidates that differ only in their format, from most bits to fewest. Its answer is the certified
format with the fewest bits, if any. Candidates with the same number of bits form a width. Widths below one that is not
certified are not tested, so the texts do not mention them.
"""

import itertools
import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from cpdrun.launch.progress.best_result import duration
from cpdrun.launch.summary import Summary
from cpdrun.report.failures_text import failures_text, identical_texts, left_out_text
from cpdrun.report.render import capital, count, join_last, render, render_lines
from cpdrun.report.result_text import (
    MOST_ADVISED,
    gap_text,
    has_own_interval,
    more_text,
    own_interval_text,
    result_text,
)
from cpdrun.report.study_text import at_text, choice_text, counting_rule, margin_text, seeds_text, tried_text
from cpdrun.search.ladders import Candidate, Ladder, LadderState
from cpdrun.search.plan import TOLERANCES, CostForecast, NextCandidate, SearchPlan
from cpdrun.search.question import Question, key_of
from cpdrun.search.results import (
    MissingPrediction,
    Results,
    SearchResult,
    baseline_labels,
    ladder_problem,
    tuned_arms,
)
from cpdrun.shell.terminal import plain_table
from cpdrun.stats.evidence import Judgment, Verdict
from cpdrun.stats.ladder import Width
from cpdrun.study import choices
from cpdrun.study.axes import axis_text, noun_of, short_titles
from cpdrun.study.formats import mean_text
from cpdrun.study.verdicts import MARKS

# The largest number of ladders that are listed one by one.
MOST_LADDERS = 4
STYLES = {Verdict.CERTIFIED: "green", Verdict.REFUTED: "red", Verdict.OPEN: "yellow"}


@dataclass(kw_only=True)
class SearchDocument(SearchResult):
    """The results of a search, as `cpdrun search --json` prints them.

    Attributes:
        margin: The margin and its origin, as text.
        says: The answer of each ladder, the tuned values and the number of runs, as lines of text.
        dry_run: Whether the command was a dry run, which starts no runs.
        forecast: The likely cost of the search, as lines of text. Empty unless this is a dry run.
        summaries: The numbers of finished, diverged and failed runs in each round.
        notes: Further notes for the user.
    """

    margin: str
    says: list[str]
    dry_run: bool
    forecast: list[str]
    summaries: list[Summary]
    notes: list[str]


@dataclass(kw_only=True)
class NextDocument(SearchPlan):
    """The runs that a search would start now, as `cpdrun search --plan --json` prints them.

    Attributes:
        says: The state of the candidates and the expected effect of the next runs, as lines of text.
    """

    says: list[str]


# ---- The candidates and the margin


def describe_question(results: Results) -> list[str]:
    """State the candidates, the baseline, the margin and the confidence of a search.

    If earlier searches share the error probability, the number of their candidates is stated too.
    """
    question = results.question
    asked = {c.name for ladder in question.ladders for width in ladder.widths for c in width}
    tuning, axis = question.tuning, question.axis
    return render_lines(
        "search_question.j2",
        margin=tolerance_text(results),
        baseline=question.baseline_name,
        confidence=f"{question.settings.confidence:g}",
        budget=question.settings.budget,
        candidates=describe_candidates(question),
        tried=tried_text(tuning.keys) if any(map(tuning.runs, tuning.arms)) else "",
        tuning_seeds=seeds_text(tuning.seeds) if tuning else "",
        runs=results.runs,
        margin_text=margin_text(results.margin, results.metric),
        earlier=len({each.candidate for each in results.ledger.hypotheses} - asked),
        axis=axis.key,
        rule=counting_rule(axis.key) if axis.key in choices.GROUPS else "",
        is_widest=axis.is_widest,
        held=axis.held,
    )


def describe_candidates(question: Question) -> str:
    """List the candidates: "8 candidates: without APS e4m3, e3m2; with APS the same"."""
    listed: list[tuple[str, str]] = []
    for ladder in question.ladders:
        names = ", ".join(format_of(candidate, ladder) for width in ladder.widths for candidate in width)
        listed.append((ladder.label, "the same" if names in (first for _, first in listed[:1]) else names))
    texts = [names if label in ("", names) else f"{label} {names}" for label, names in listed[:MOST_LADDERS]]
    texts += [f"and {len(listed) - MOST_LADDERS} more combinations"] if len(listed) > MOST_LADDERS else []
    candidates = sum(len(width) for ladder in question.ladders for width in ladder.widths)
    return f"{count(candidates, 'candidate')}: {'; '.join(texts)}"


def tolerance_text(results: Results) -> str:
    """Return the margin, such as "0.5 points"; "the margin" if it is unknown."""
    return results.metric.show_tolerance(results.tolerance)


def format_of(candidate: Candidate, ladder: Ladder) -> str:
    """Return a candidate's label without the ladder's label, usually its format."""
    return candidate.label.removesuffix(f" {ladder.label}")


# ---- The answers


def describe_results(results: Results) -> list[str]:
    """Return the answer of each ladder, the tuned values and the number of runs."""
    answers = [_answer(results, state) for state in results.states()]
    return [*answers, *_tuning_lines(results), _describe_runs(results)]


def _answer(results: Results, state: LadderState) -> str:
    ladder, certified, frontier = state.ladder, state.answer, state.frontier
    is_case = [[candidate.label for candidate in width] for width in ladder.widths] == [[ladder.label]]
    width = None if frontier is None else state.widths[frontier]
    rows = [row for row in state if row[2] is width]
    candidates = [_candidate(results, state, candidate, judgment) for candidate, judgment, _ in rows]
    above, above_has_pairs = _above_start(state)
    return render(
        "search_answer.j2",
        ladder=ladder.label,
        noun=noun_of(results.question.axis.key),
        case=_named(results, ladder.widths[0][0], ladder) if is_case else "",
        problem=ladder_problem(results, ladder),
        margin_problem=results.margin.problem,
        margin=tolerance_text(results),
        baseline=results.question.baseline_name + _at(results, ladder.baseline),
        confidence=f"{results.question.settings.confidence:g}",
        certified=_candidate(results, state, *certified) if certified else None,
        is_refuted=width is not None and width.verdict is Verdict.REFUTED,
        is_narrowest=frontier == len(ladder.widths) - 1,
        bits="" if frontier is None else f"{ladder.widths[frontier][0].bits:g}",
        candidates=candidates,
        start_bits=f"{ladder.widths[ladder.start][0].bits:g}" if ladder.start else "",
        above_start=above,
        above_has_pairs=above_has_pairs,
        identical=_identical(results, state),
    )


def _candidate(
    results: Results, state: LadderState, candidate: Candidate, judgment: Judgment
) -> dict[str, Any]:
    """Return the template variables of one candidate."""
    counts, metric = state.failures[candidate.name], results.metric
    format_name, at = format_of(candidate, state.ladder), _at(results, candidate.name)
    short_name = f"{format_name} ({_bits_text(results, candidate)}){at}"
    gap = metric.show_between(judgment.mean, judgment.low, judgment.high)
    return {
        "name": _named(results, candidate, state.ladder),
        "short_name": short_name,
        "gap_of": f"{short_name}: {gap_text(metric, judgment)}",
        "short_gap": f"{format_name}{at} {gap}",
        "pairs": count(judgment.pairs, "pair"),
        "result": result_text(metric, judgment, counts, results.question.settings.confidence),
        "failures": ", ".join(filter(None, [failures_text(counts), left_out_text(counts)])),
        "more": "" if counts.failed else _more(results, judgment),
        "ended": counts.ended,
        "has_runs": judgment.pairs or counts.ended,
        "is_next": state.active is not None and state.active[0] is candidate,
        "is_refuted": judgment.verdict is Verdict.REFUTED,
        "is_given_up": candidate.name in results.ended.given_up,
        "is_identical": results.is_identical(candidate),
        "tuned_so_far": _tuned_so_far(results, candidate.name),
    }


def _named(results: Results, candidate: Candidate, ladder: Ladder) -> str:
    """Return a candidate's full name: "e3m0 (4 bits) with APS at lr 0.1"."""
    name, bits = format_of(candidate, ladder), f"({_bits_text(results, candidate)})"
    common = "" if name == candidate.label else f" {ladder.label}"
    return f"{name} {bits}{common}{_at(results, candidate.name)}"


def _bits_text(results: Results, candidate: Candidate) -> str:
    """Return a candidate's bits as text, such as "4 bits".

    For a recipe, the text is "6.2 bits on average", or "4.5 bits planned" if its products were not counted.
    """
    if (mean := results.mean_bits(candidate)) is not None:
        return mean_text(mean)
    return f"{candidate.bits:g} bits" + (" planned" if results.question.axis.key == choices.RECIPE else "")


def _above_start(state: LadderState) -> tuple[str, bool]:
    """Return the open widths above the narrowest certified one ("8, 7 and 6").

    Also return whether any of them has pairs. If no width is certified, use the widths above the start.
    """
    answered = max((i for i, width in enumerate(state.widths) if width.certified is not None), default=-1)
    upto = state.ladder.start if answered < 0 else answered
    found = [i for i in range(upto) if state.widths[i].verdict is Verdict.OPEN]
    bits = [f"{state.ladder.widths[i][0].bits:g}" for i in found]
    has_pairs = any(judgment.pairs for i in found for judgment in state.widths[i].judgments)
    return join_last(bits), has_pairs


def _identical(results: Results, state: LadderState) -> list[str]:
    """Return sentences about bit-identical cells of a ladder and its baseline."""
    cells = {state.ladder.baseline: results.question.baseline_name}
    cells |= {candidate.name: format_of(candidate, state.ladder) for candidate, _, _ in state}
    return identical_texts({title: results.fingerprints.get(name, {}) for name, title in cells.items()})


def _more(results: Results, judgment: Judgment) -> str:
    """Estimate how many further pairs decide a candidate; "" if it is decided."""
    if judgment.settled_at is not None:
        return ""
    rules = results.rules()
    return more_text(judgment, rules.tolerance, 1 / rules.resolution if rules.resolution else math.nan)


def _describe_runs(results: Results) -> str:
    tuning, cells = results.question.tuning, len(results.cells)
    seeds = max((len(results.paired(name)) for name in results.ended.values), default=0)
    grid = cells * seeds
    if tuning:
        cells = len(tuning.arms)
        grid = sum(map(tuning.runs, tuning.arms)) + cells * seeds
    tuned = tuning.runs_ended(results.ended) if tuning else None
    return render("search_runs.j2", runs=results.runs, tuning_runs=tuned, seeds=seeds, cells=cells, grid=grid)


def next_step(results: Results) -> str:
    """Return the command to type next: start or continue the search, or report it."""
    words = [word for word in results.question.typed if key_of(word) != "search.budget"]
    states = results.answerable_states()
    if any(state.active is not None for state in states):
        return f"To {'continue' if results.runs else 'start'}: {shlex.join(['cpdrun', 'search', *words])}"
    if any(_needs_seeds(state) for state in states):
        words = [word for word in words if key_of(word) != "search.most_seeds"]
        words.append(f"search.most_seeds={2 * results.question.settings.most_seeds}")
        return f"To continue with more seeds: {shlex.join(['cpdrun', 'search', *words])}"
    return report_command(results)


def _needs_seeds(state: LadderState) -> bool:
    """Return True if a moderate number of further seeds may decide an open candidate.

    Call this only if the present seeds allow no further run. If a format is certified, no seeds are needed.
    """
    if state.answer is not None or state.frontier is None:
        return False
    return any(
        width is state.widths[state.frontier]
        and judgment.verdict is Verdict.OPEN
        and judgment.pairs > 0
        and not state.failures[candidate.name].failed
        and (judgment.more is None or judgment.more.likely <= MOST_ADVISED)
        for candidate, judgment, width in state
    )


def report_command(results: Results) -> str:
    return f"For the report: cpdrun report {results.directory.path}"


# ---- Tuned values


def _tuning_lines(results: Results) -> list[str]:
    tuning = results.question.tuning
    if not tuning:
        return []
    named = [
        f"{label}{at_text(tuning.values[arm], tuning.keys, ends=True)}"
        for arm, label in tuned_arms(results).items()
    ]
    return render_lines(
        "search_tuning.j2",
        tried=tried_text(tuning.keys),
        chosen=named,
        has_one_value=all(len(arms) == 1 for arms in tuning.arms.values()),
        choice=choice_text(tuning.keys, tuning.seeds, named, "in no pair"),
    )


def _at(results: Results, name: str) -> str:
    """Return a cell's chosen values as a suffix (" at lr 0.1"); "" if none yet."""
    tuning = results.question.tuning
    return at_text(tuning.values.get(name, {}), tuning.keys)


def _tuned_so_far(results: Results, name: str) -> str:
    """Return the tuning progress of a cell, such as "3 of 6 runs"; "" before the first."""
    tuning = results.question.tuning
    if name not in tuning.arms:
        return ""
    done = tuning.runs(name) - sum(map(len, tuning.missing(name, results.ended)))
    return f"{done} of {tuning.runs(name)} runs" if done else ""


def _chosen(results: Results, name: str) -> str:
    """Return a cell's chosen values ("0.2 max") or its tuning progress."""
    tuning = results.question.tuning
    ends = {key: " max" if end == "largest" else " min" for key, end in tuning.edges(name)}
    values = tuning.values.get(name, {})
    if not values:
        return _tuned_so_far(results, name)
    return ", ".join(axis_text(value) + ends.get(key, "") for key, value in values.items())


# ---- The table of candidates


def make_table(results: Results, states: Sequence[LadderState] | None = None) -> Table:
    """Make a table of the candidates that were tried or are next.

    The printed interval may use the spread of other candidates. If it then differs from the interval of the candidate's
    own pairs, a column with the latter is added. `states` defaults to the states of `results`.
    """
    states = results.states() if states is None else states
    judgments = [judgment for state in states for _, judgment, _ in state]
    has_own = any(map(has_own_interval, judgments))
    tuning = results.question.tuning
    tuned = [", ".join(short_titles(tuning.keys).values())] if tuning else []
    own_spread = ["own spread"] if has_own else []
    is_recipe = results.question.axis.key == choices.RECIPE
    table = plain_table(
        ["candidate", *tuned],
        ["mean bits" if is_recipe else "bits", "pairs", f"difference{results.metric.points}", *own_spread],
    )
    # If the table is too wide, only this column is wrapped, because the others would lose digits.
    table.add_column(
        "verdict" if math.isnan(results.tolerance) else f"verdict, margin {tolerance_text(results)}"
    )
    for name, label in baseline_labels(results, states).items() if tuning else ():
        table.add_row(label, _chosen(results, name), *[""] * (3 + has_own), "baseline")
    for state in states:
        for candidate, judgment, width in state:
            is_next = state.active is not None and candidate is state.active[0]
            if judgment.pairs or is_next or candidate.name in results.ended.given_up:
                verdict = width.verdict_of(judgment)
                chosen = [_chosen(results, candidate.name)] if tuning else []
                own = [own_interval_text(results.metric, judgment)] if has_own else []
                gap = results.metric.show_between(judgment.mean, judgment.low, judgment.high)
                words = _verdict_text(results, state, candidate, judgment, width)
                mark = Text(f"{MARKS[verdict]} {words}", style=STYLES[verdict])
                size = _bits_text(results, candidate).replace(" bits", "").replace(" on average", "")
                numbers = [size, str(judgment.pairs), gap, *own]
                table.add_row(candidate.label, *chosen, *numbers, mark)
    return table


def _verdict_text(
    results: Results, state: LadderState, candidate: Candidate, judgment: Judgment, width: Width
) -> str:
    """Return a candidate's verdict, and the reason if it is still open."""
    counts, verdict = state.failures[candidate.name], width.verdict_of(judgment)
    if candidate.name in results.ended.given_up:
        return f"{verdict}, all runs failed"
    if verdict is not Verdict.OPEN:
        return str(verdict)
    if _tuned_so_far(results, candidate.name):
        return "being tuned"
    left = "" if counts.failed else _more(results, judgment)
    left = left if width.is_reached else "a wider format is not certified"
    return ", ".join(filter(None, [str(verdict), failures_text(counts), left]))


# ---- Progress, the next runs, and the cost


def describe_smallest(results: Results, states: Sequence[LadderState]) -> str:
    """Name the certified candidate with the fewest bits, or "none certified yet"."""
    found = [state.answer[0] for state in states if state.answer is not None]
    best = min(found, key=lambda candidate: candidate.bits, default=None)
    if best is None:
        return "none certified yet"
    return f"smallest certified {best.label} ({_bits_text(results, best)})"


def describe_news(
    results: Results, before: Sequence[LadderState], states: Sequence[LadderState]
) -> Iterator[str]:
    """Yield a line per changed verdict: "✓ e3m0 with APS is certified after 4 pairs, ...".

    `before` holds the ladders when news was last printed, and `states` the ladders now.
    """
    old = {c.label: width.verdict_of(judgment) for state in before for c, judgment, width in state}
    for candidate, judgment, width in itertools.chain(*states):
        verdict = width.verdict_of(judgment)
        if verdict is not old[candidate.label]:
            gap = gap_text(results.metric, judgment)
            pairs = count(judgment.pairs, "pair")
            yield f"{MARKS[verdict]} {candidate.label} is {verdict} after {pairs}, {gap}"


def describe_missing_prediction(missing: MissingPrediction) -> str:
    """Say where a search starts without a prediction, and why."""
    effect = (
        "formats of the same width keep their usual order"
        if missing.bits is None
        else f"the search starts at {missing.bits:g} bits"
    )
    return f"{capital(missing.ladder)}: no prediction is available, so {effect}."


def describe_cost(results: Results, cost: CostForecast, slots: int | None) -> list[str]:
    """Describe the likely cost of a search, such as the pairs that certify an equal format.

    `slots` is the number of runs that are trained at the same time, if known.
    """
    metric, tolerance = results.metric, results.tolerance
    noise = "" if cost.noise is None else f"{cost.noise.deviation * metric.scale:.2g}{metric.points}"
    return render_lines(
        "search_cost.j2",
        cost=cost,
        baseline=results.question.baseline_name,
        noise=noise,
        margin=tolerance_text(results),
        margins=[
            (f"{factor * tolerance:g}", pairs) for factor, pairs in zip(TOLERANCES, cost.pairs, strict=False)
        ],
        time="" if not cost.seconds else duration(cost.seconds),
        slots=slots,
    )


def describe_plan(results: Results, plan: SearchPlan) -> list[str]:
    """Describe what the next runs decide and how long they take.

    If no runs are left, return the answers instead.
    """
    if not plan.runs:
        return [*describe_results(results), "No further run can decide an open candidate."]
    fitting = [run for run in plan.runs if run.fits is not False]
    times = [run.core_seconds for run in fitting if run.core_seconds is not None]
    is_known = len(times) == len(fitting)
    return render_lines(
        "search_plan.j2",
        candidates=[_planned_candidate(results, candidate) for candidate in plan.candidates],
        only_baseline=all(run.is_baseline for run in plan.runs),
        core_time=duration(sum(times)) if is_known else "",
        budget=plan.budget,
        fits_are_known=is_known or all(run.fits is not None for run in plan.runs),
        fit=plan.fit,
        runs=len(plan.runs),
    )


def _planned_candidate(results: Results, candidate: NextCandidate) -> dict[str, Any]:
    low = -math.inf if candidate.low is None else candidate.low
    high = math.inf if candidate.high is None else candidate.high
    gap = -math.inf if candidate.difference is None else candidate.difference
    is_better = candidate.sure_certified >= candidate.sure_refuted
    more = (
        candidate.more_range and f"{candidate.more} ({candidate.more_range[0]} to {candidate.more_range[1]})"
    )
    return {
        "candidate": candidate.candidate,
        "pairs": candidate.pairs,
        "coming": candidate.pairs_after - candidate.pairs,
        "gap": results.metric.show_between(gap, low, high),
        "side": "certified" if is_better else "refuted",
        "sure": math.floor(max(candidate.sure_certified, candidate.sure_refuted)),
        "more": f"{more} that are likely to settle it" if more else "",
    }


def make_plan_table(plan: SearchPlan) -> Table:
    table = plain_table(["", "run", "seed", "time"])
    table.add_column("evidence on")
    if plan.budget:
        table.add_column("within the budget", no_wrap=True)
    for number, run in enumerate(plan.runs, 1):
        time = "unknown" if run.seconds is None else duration(run.seconds)
        evidence = ", ".join(run.candidates) + (" (ahead)" if run.ahead else "")
        fits = [{True: "yes", False: "no", None: "unknown"}[run.fits]] if plan.budget else []
        table.add_row(*map(Text, [str(number), run.cell, str(run.seed), time, evidence, *fits]))
    return table
