"""Write the messages of a search: sentences for each chain, rows for candidates, and facts for programs.

No message is stronger than the test allows. A format is certified, refuted or open. Widths below a width that is not
certified were not reached and are not mentioned.
"""

import math
from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from cpdrun.report.failures_text import failures_text, identical_texts, left_out_text
from cpdrun.report.result_text import more_text, own_interval_text, pairs_text, result_text
from cpdrun.report.study_text import margin_text
from cpdrun.search import tuned_words
from cpdrun.search.question import Question
from cpdrun.search.results import Results
from cpdrun.search.schedule import Candidate, Chain, Standing
from cpdrun.stats.chain import Width
from cpdrun.stats.evidence import Judgement, Verdict
from cpdrun.stats.failures import FailureCounts
from cpdrun.study.metric import Metric
from cpdrun.study.verdicts import MARKS

# At most this many chains are listed one by one.
MOST_CHAINS = 4
STYLES = {Verdict.CERTIFIED: "green", Verdict.REFUTED: "red", Verdict.OPEN: "yellow"}


def sentences(results: Results) -> list[str]:
    """Return a line for each chain, then a line about the number of runs."""
    lines = [_of_chain(results, standing) for standing in results.standings()]
    return [*lines, *tuned_words.line(results), took(results)]


def took(results: Results) -> str:
    """Return the number of runs, such as `61 runs; the grid of all cells at 14 seeds takes 182.`"""
    seeds = max((len(results.paired(name)) for name in results.ended.values), default=0)
    text = runs_text(results)
    if results.question.tuning:
        return tuned_words.took(results, text, seeds)
    cells = len(results.question.cells)
    return (
        f"{text}; the grid of all {cells} cells at {seeds} seeds takes {cells * seeds}."
        if seeds
        else f"{text}."
    )


def runs_text(results: Results) -> str:
    """Return the number of runs in words."""
    return f"{results.runs} run{'s' if results.runs != 1 else ''}"


def candidates_text(question: Question) -> str:
    """Return the candidates, the widest first, as in `8 candidates: without APS e4m3, e3m2; with APS the same`."""
    said: list[tuple[str, str]] = []
    for chain in question.chains:
        names = ", ".join(format_of(candidate, chain) for width in chain.widths for candidate in width)
        said.append((chain.label, "the same" if names in (before for _, before in said[:1]) else names))
    texts = [f"{label} {names}" if label != names else label for label, names in said[:MOST_CHAINS]]
    texts += [f"and {len(said) - MOST_CHAINS} combinations more"] if len(said) > MOST_CHAINS else []
    candidates = sum(len(width) for chain in question.chains for width in chain.widths)
    return f"{candidates} candidate{'s' if candidates != 1 else ''}: {'; '.join(texts)}"


def _of_chain(results: Results, standing: Standing) -> str:
    if problem := results.problem(standing.chain.baseline):
        return f"{_capital(standing.chain.label)}: no answer, for {problem}."
    if _is_one_case(standing.chain):
        return _of_one(results, standing)
    parts = [_certified(results, standing)] if standing.answer else []
    if standing.frontier is not None:
        parts.append(_frontier(results, standing, said=bool(parts)))
    if standing.chain.start:
        parts.append(_start(standing))
    parts += _identical(results, standing)
    return f"{_capital(standing.chain.label)}: {' '.join(parts)}"


def _identical(results: Results, standing: Standing) -> list[str]:
    """Return a sentence for each group of a chain's cells whose runs are equal bit for bit."""
    cells = {standing.chain.baseline: results.question.baseline_name}
    cells |= {candidate.name: format_of(candidate, standing.chain) for candidate, _, _ in standing}
    return identical_texts({title: results.fingerprints.get(name, {}) for name, title in cells.items()})


def _start(standing: Standing) -> str:
    """Return a sentence such as `The search started at 4 bits, as predicted; 8 and 6 bits were not tested.`"""
    chain = standing.chain
    bits = [f"{width[0].bits:g}" for width in chain.widths]
    answered = max((i for i, width in enumerate(standing.widths) if width.certified is not None), default=-1)
    upto = chain.start if answered < 0 else answered
    open_widths = [i for i in range(upto) if standing.widths[i].verdict is Verdict.OPEN]
    has_pairs = any(judgement.pairs for i in open_widths for judgement in standing.widths[i].judgements)
    *first, last = [bits[i] for i in open_widths] or [""]
    names = " and ".join(filter(None, [", ".join(first), last]))
    rest = f"; {names} bits {'are open' if has_pairs else 'were not tested'}" if names else ""
    return f"The search started at {bits[chain.start]} bits, as predicted{rest}."


def _is_one_case(chain: Chain) -> bool:
    """Return whether a chain is a single method and not a row of formats, so that its bits are not the question."""
    return [[candidate.label for candidate in width] for width in chain.widths] == [[chain.label]]


def _of_one(results: Results, standing: Standing) -> str:
    """Return the answer of such a chain, as in `16 local steps (32 bits): refuted, −0.11 [−0.17, −0.04] ...`"""
    (width,) = standing.widths
    ((candidate,),), (judgement,) = standing.chain.widths, width.judgements
    named = f"{candidate.label} ({candidate.bits:g} bits){tuned_words.at(results, candidate.name)}:"
    if standing.answer:
        if results.is_identical(candidate):
            return f"{named} {_no_evidence(results)} {' '.join(_identical(results, standing))}"
        return f"{named} {_certificate(results, candidate, judgement, standing.failures_of(candidate))}."
    if width.verdict is Verdict.REFUTED:
        failures = _after_comma(failures_text(standing.failures_of(candidate)))
        shown = f"{difference(results.metric, judgement)} after {pairs_text(judgement.pairs)}"
        return f"{named} refuted, {shown}{failures}."
    return f"{named} open, {_open(results, standing, candidate, judgement)}."


def _certified(results: Results, standing: Standing) -> str:
    candidate, judgement = standing.answer
    named = f"{candidate.bits:g} bits ({_name(results, candidate, standing)})"
    if results.is_identical(candidate):
        return f"{named}: {_no_evidence(results)}"
    bits = f"{named} are enough"
    return f"{bits}, {_certificate(results, candidate, judgement, standing.failures_of(candidate))}."


def _no_evidence(results: Results) -> str:
    return f"not tested, for all runs are those of {results.question.baseline_name}."


def _certificate(results: Results, candidate: Candidate, judgement: Judgement, counts: FailureCounts) -> str:
    baseline = results.question.baseline_name + tuned_words.at(results, candidate.baseline)
    tolerance = f"at most {tolerance_of(results)} worse than {baseline} in the mean over seeds"
    confidence = results.question.settings.confidence
    result = result_text(results.metric, judgement, counts, confidence)
    return f"certified at {confidence:g} % to be {tolerance}: {result}"


def _frontier(results: Results, standing: Standing, *, said: bool) -> str:
    """Return what is known about the first width that is not certified.

    `said` tells whether a sentence comes before this one.
    """
    width, candidates = standing.widths[standing.frontier], standing.chain.widths[standing.frontier]
    bits = f"{candidates[0].bits:g} bits"
    pairs = list(zip(candidates, width.judgements, strict=True))
    if width.verdict is Verdict.REFUTED:
        named = ", ".join(
            f"{_name(results, c, standing)} {difference(results.metric, j)}"
            f"{_after_comma(failures_text(standing.failures_of(c)))}"
            for c, j in pairs
        )
        return (
            f"{_capital(bits)} are not: refuted ({named})."
            if said
            else f"{bits} are not enough: refuted ({named})."
        )
    texts = [_open(results, standing, candidate, judgement) for candidate, judgement in pairs]
    return f"{_capital(bits) if said else bits} are open: {'; '.join(texts)}."


def _open(results: Results, standing: Standing, candidate: Candidate, judgement: Judgement) -> str:
    """Return the evidence on a candidate of an open width, failures first.

    The name of a case is left out, because the sentence begins with it.
    """
    is_case = _is_one_case(standing.chain)
    name = "" if is_case else _name(results, candidate, standing)
    counts = standing.failures_of(candidate)
    if judgement.verdict is Verdict.REFUTED:
        return f"{name} is refuted"
    if candidate.name in results.ended.given_up:
        return f"all {counts.ended} runs{f' of {name}' if name else ''} failed"
    if started := tuned_words.so_far(results, candidate.name):
        return f"{name} is not tuned yet, {started} to choose".lstrip()
    if not judgement.pairs and not counts.ended:
        return f"{name} was not tried".lstrip()
    shown = f"{difference(results.metric, judgement)} after {pairs_text(judgement.pairs)}"
    shown += _after_comma(left_out_text(counts), "" if counts.failed else more(results, judgement))
    return f"{failures_text(counts, name)}; {shown}" if counts.failed else f"{name} {shown}".lstrip()


def more(results: Results, judgement: Judgement) -> str:
    """Return how many further pairs are likely to settle a candidate, or why this is unknown."""
    if judgement.settled_at is not None:
        return ""  # Its runs failed. The sentence says so.
    rules = results.rules()
    return more_text(judgement, rules.tolerance, 1 / rules.resolution if rules.resolution else math.nan)


def difference(metric: Metric, judgement: Judgement) -> str:
    """Return the mean difference with its interval, such as `−0.39 [−0.84, +0.06]`. Positive values are better."""
    return metric.show_between(judgement.mean, judgement.low, judgement.high)


def table(results: Results) -> Table:
    """Return a table with the difference, interval and verdict of each candidate that was tried or is next.

    A column shows the interval from the candidate's own spread, if it differs from the printed interval in any row.
    """
    found = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    found.add_column("candidate", no_wrap=True)
    if results.question.tuning:
        found.add_column(tuned_words.title(results), no_wrap=True)
    standings = results.standings()
    own = ["own spread"] if _has_own_spread(standings) else []
    for heading in ("bits", "pairs", f"difference{results.metric.points}", *own):
        found.add_column(heading, justify="right", no_wrap=True)
    # If the table is too wide, only this column is wrapped. The others would lose digits.
    found.add_column(
        "verdict" if math.isnan(results.tolerance) else f"verdict, margin {tolerance_of(results)}"
    )
    for name, label in tuned_words.baselines(results, standings).items() if results.question.tuning else ():
        found.add_row(label, tuned_words.in_short(results, name), *[""] * (3 + len(own)), "baseline")
    for standing in standings:
        for candidate, judgement, width in standing:
            is_next = standing.active is not None and candidate is standing.active[0]
            if judgement.pairs or is_next or candidate.name in results.ended.given_up:
                counts = standing.failures_of(candidate)
                found.add_row(*_row(results, candidate, judgement, width, counts, bool(own)))
    return found


def _has_own_spread(standings: Sequence[Standing]) -> bool:
    found = [judgement for standing in standings for _, judgement, _ in standing]
    return any((each.own_low, each.own_high) != (each.low, each.high) for each in found)


def _row(
    results: Results,
    candidate: Candidate,
    judgement: Judgement,
    width: Width,
    counts: FailureCounts,
    has_own: bool,
) -> tuple[Any, ...]:
    verdict = width.verdict_of(judgement)
    words = str(verdict)
    if candidate.name in results.ended.given_up:
        words += ", all runs failed"
    elif verdict is Verdict.OPEN and tuned_words.so_far(results, candidate.name):
        words = "being tuned"
    elif verdict is Verdict.OPEN:
        left = "" if counts.failed else more(results, judgement)
        words += _after_comma(
            failures_text(counts), left if width.is_reached else "a wider one is not certified"
        )
    mark = Text(f"{MARKS[verdict]} {words}", style=STYLES[verdict])
    shown = difference(results.metric, judgement)
    chosen = [tuned_words.in_short(results, candidate.name)] if results.question.tuning else []
    own = [own_interval_text(results.metric, judgement)] if has_own else []
    return candidate.label, *chosen, f"{candidate.bits:g}", str(judgement.pairs), shown, *own, mark


def facts(results: Results) -> dict[str, Any]:
    """Return the results for programs. Differences are in the metric's unit, and an open end of an interval is null."""
    chains = [_chain_facts(results, standing) for standing in results.standings()]
    alpha = results.question.settings.alpha
    found = {
        "sweep": str(results.question.directory.path),
        "metric": results.metric.name,
        "tolerance": _finite(results.tolerance),
        "margin": margin_text(results.margin, results.metric),
        "confidence": results.question.settings.confidence,
        "runs": results.runs,
        "difference_is": "mean over seeds",
        "hypotheses": len(results.ledger.hypotheses),
        "error_left": alpha * results.ledger.left,
        "chains": chains,
        "says": sentences(results),
    }
    if results.question.tuning:
        found["tune"] = tuned_words.question_facts(results)
    return found


def _chain_facts(results: Results, standing: Standing) -> dict[str, Any]:
    confidence = results.question.settings.confidence
    candidates = [
        {
            "candidate": candidate.label,
            "bits": candidate.bits,
            "verdict": str(width.verdict_of(judgement)),
            "pairs": judgement.pairs,
            "settled_at": judgement.settled_at,
            "difference": _finite(judgement.mean),
            "low": _finite(judgement.low),
            "high": _finite(judgement.high),
            "own_low": _finite(judgement.own_low),
            "own_high": _finite(judgement.own_high),
            "more": judgement.more and judgement.more.likely,
            "more_range": judgement.more and [judgement.more.low, judgement.more.high],
            "is_identical": results.is_identical(candidate),
            "error_of_certifying": judgement.errors[0],
            **_failure_facts(standing.failures_of(candidate), confidence),
        }
        | tuned_words.facts(results, candidate.name)
        for candidate, judgement, width in standing
    ]
    answer = standing.answer
    baseline = standing.chain.baseline
    return {
        "chain": standing.chain.label,
        "problem": results.problem(baseline),
        "smallest": answer[0].label if answer else None,
        "bits": answer[0].bits if answer else None,
        "started_at": standing.chain.widths[standing.chain.start][0].bits,
        "is_over": standing.active is None,
        "candidates": candidates,
    } | tuned_words.facts(results, baseline, of="baseline_tuned")


def report_command(results: Results) -> str:
    """Return the command of the report. The report reads the question of the search from the folder's sweep.yaml."""
    return f"For the report: cpdrun report {results.question.directory.path}"


def tolerance_of(results: Results) -> str:
    """Return `1 point`, `0.5 points` or `0.05`; `the margin` while the number is unknown."""
    return results.metric.show_tolerance(results.tolerance)


def _name(results: Results, candidate: Candidate, standing: Standing) -> str:
    """Return the name of a candidate without what its chain has in common, with the values that were chosen for it."""
    return format_of(candidate, standing.chain) + tuned_words.at(results, candidate.name)


def format_of(candidate: Candidate, chain: Chain) -> str:
    """Return the label of a candidate without what all candidates of the chain have in common."""
    return candidate.label.removesuffix(f" {chain.label}")


def _failure_facts(counts: FailureCounts, confidence: float) -> dict[str, Any]:
    """Return how many runs failed, and the upper limit of the share of runs that fails."""
    facts = {"runs_ended": counts.ended, "runs_failed": counts.failed, "pairs_left_out": counts.left_out}
    return {**facts, "at_most_fail": counts.at_most(confidence)}


def _after_comma(*texts: str) -> str:
    return "".join(f", {text}" for text in texts if text)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def one_line(results: Results, standings: Sequence[Standing], label: str) -> str:
    """Return the verdict on the candidate with this label and its evidence in one line, for a log."""
    for standing in standings:
        for candidate, judgement, width in standing:
            if candidate.label == label:
                verdict = width.verdict_of(judgement)
                shown = difference(results.metric, judgement)
                failed = failures_text(standing.failures_of(candidate))
                is_open = verdict is Verdict.OPEN and not failed
                rest, failures = (
                    _after_comma(more(results, judgement) if is_open else ""),
                    _after_comma(failed),
                )
                return f"{MARKS[verdict]} {label}: {verdict}{failures}, {pairs_text(judgement.pairs)}, {shown}{rest}"
    return label
