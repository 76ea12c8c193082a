"""Render the page of claims as Markdown."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from research.claims.claim import TIMES_FEWER, Paper
from research.claims.judgment import MOST_PAIRS, ClaimVerdict, Finding, Judgment
from research.claims.quantified_claims import QUANTIFIERS

from cpdrun.report.page.markup import escape_markdown
from cpdrun.study.metric import Metric

COMMAND = "make claims"
MOST_NAMED = 3  # the largest number of cells in a heading. The table below the heading contains all cells.
IN_WORDS = dict(zip(QUANTIFIERS, ("all", "most", "some"), strict=True))


def page(judgments: Sequence[Judgment], confidence: float) -> str:
    """Return the whole page: for each paper a table of verdicts, then each claim with its comparisons."""
    lines = [*_introduction(judgments, confidence), ""]
    for paper, of_paper in groupby(judgments, key=lambda judgment: judgment.claim.paper):
        block = list(of_paper)
        lines += [f"## {escape_markdown(_title(paper))}", ""]
        lines += _table(["claim", "verdict", "comparisons"], map(_row, block))
        for judgment in block:
            lines += [*_details(judgment), ""]
        for claim in paper.not_tested:
            text = f'Not tested here: {claim.statement}. "{claim.quote}" ({claim.section}) {claim.reason}'
            lines += [escape_markdown(text), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _introduction(judgments: Sequence[Judgment], confidence: float) -> list[str]:
    tested = sum(judgment.is_tested for judgment in judgments)
    wrong, percent = f"{(1 - confidence) * tested:.2g}", f"{100 * confidence:g}%"
    return [
        "# What the papers claim, and what our runs show",
        "",
        f"`{COMMAND}` writes this page from scripts/research/claims/claims.yaml and the stored values of single runs. "
        "No verdict is written by hand. Our networks and data are small: the runs can refute a claim or fail to refute "
        "it, but they cannot certify it at the scale of the papers.",
        "",
        "- **certified**: shown to be within the threshold of the claim",
        "- **refuted**: shown to be outside of it",
        "- **open**: not settled by the runs so far. The page says how many more pairs would probably settle it. "
        "We stopped there because we train on two cores",
        "- **counted**: within the threshold by counting bytes or by a formula, which needs no statistics",
        "- **not run**: no values of single runs are stored",
        "",
        f"The verdict on each tested claim holds at {percent}, each claim by itself. With {tested} tested claims, at "
        f"most {wrong} wrong verdicts are expected on this page. All verdicts use the evidence of searches and reports "
        "on pairs of runs with the same seed, which stays valid if runs are added until a claim is settled. The "
        "comparisons of a claim share its error probability. Comparisons whose runs have the same weights, bit for "
        "bit, count once.",
        "",
        f"Each interval is two-sided and holds at {percent} by itself. A verdict can need less, because it is about "
        "one side, or more, because comparisons share the error. So an interval may reach slightly past the threshold "
        "of a certified comparison, or lie within the threshold of an open one.",
        "",
        count_verdicts(judgments),
    ]


def count_verdicts(judgments: Sequence[Judgment]) -> str:
    """Return `38 claims: 4 certified, 2 counted, ...`."""
    counts = Counter(judgment.verdict for judgment in judgments)
    parts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in ClaimVerdict if counts[verdict])
    return f"{len(judgments)} claims: {parts}"


def describe_verdict(judgment: Judgment) -> str:
    """Return the verdict with the quantifier, such as `in some orders (tree): certified; in others (rank): refuted`."""
    claim, verdict = judgment.claim, judgment.verdict
    if len(judgment.distinct) < 2 or verdict is ClaimVerdict.NOT_RUN:
        return str(verdict)
    where = f"in {IN_WORDS[claim.holds_for]} {claim.across}"
    refuted = _name_cells(judgment, ClaimVerdict.REFUTED)
    if verdict is ClaimVerdict.CERTIFIED and claim.holds_for != "every":
        text = f"{where} ({_name_cells(judgment, verdict)}): {verdict}"
        text += f"; in others ({refuted}): refuted" if refuted else ""
    elif verdict is ClaimVerdict.REFUTED:
        text = f"{where}: refuted ({refuted})"
    else:
        text = f"{where}: {verdict}"
    missing = sum(not finding.was_run for finding in judgment.distinct)
    return text + (f"; {missing} of {len(judgment.distinct)} comparisons not run" if missing else "")


def _name_cells(judgment: Judgment, verdict: ClaimVerdict) -> str:
    """Return the names of the cells with this verdict, without the words that all cells of the claim share."""
    cells = [(_source(finding), *finding.cell) for finding in judgment.distinct]
    common = set(cells[0]).intersection(*cells)
    names = [
        ", ".join(word for word in cell if word not in common) or _source(finding)
        for cell, finding in zip(cells, judgment.distinct, strict=True)
        if finding.verdict is verdict
    ]
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return "; ".join(names[:MOST_NAMED]) + more


def _source(finding: Finding) -> str:
    return finding.comparison.sweep or str(finding.comparison.table)


def tally(judgment: Judgment) -> str:
    """Return `of 8 comparisons 3 certified, 1 refuted, 4 open; 3 more have identical runs and count once`."""
    distinct = judgment.distinct
    counts = Counter(finding.verdict for finding in distinct)
    parts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in ClaimVerdict if counts[verdict])
    text = (
        f"of {_plural(len(distinct), 'comparison')} {parts}" if len(distinct) > 1 else f"1 comparison {parts}"
    )
    if repeats := len(judgment.findings) - len(distinct):
        text += f"; {repeats} more with the same weights as another, bit for bit"
    return text


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _row(judgment: Judgment) -> list[str]:
    return [judgment.claim.statement, describe_verdict(judgment), tally(judgment)]


def _details(judgment: Judgment) -> Iterator[str]:
    claim = judgment.claim
    verdict = describe_verdict(judgment)
    link = ", " if verdict.startswith("in ") else ": "
    yield f"### {escape_markdown(claim.statement + link + verdict)}"
    yield ""
    quote = (
        f'"{claim.quote}"'
        if claim.quote
        else "We could not read the paper's own words; this is a paraphrase."
    )
    yield escape_markdown(f"{quote} ({claim.section})")
    yield ""
    needed = f"It must hold in {IN_WORDS[claim.holds_for]} {claim.across}."
    yield f"Threshold: {escape_markdown(f'{claim.threshold} {needed}')}"
    yield ""
    header = ["sweep", "candidate", "baseline", "difference", "pairs", "verdict"]
    yield from _table(header, map(_cells, judgment.findings))
    if sources := dict.fromkeys(finding.source for finding in judgment.findings if finding.source):
        yield f"Stored values: {escape_markdown('; '.join(sources))}."
    if sentence := _pairs_if_equal(judgment):
        yield f"\n{sentence}"
    if claim.note:
        yield f"\n{escape_markdown(claim.note)}"


def _cells(finding: Finding) -> list[str]:
    baseline = ", ".join(
        ("with APS" if value else "without APS") if axis == "aps" else str(value)
        for axis, value in finding.comparison.baseline.items()
    )
    is_noted = finding.verdict is not ClaimVerdict.COUNTED
    parts = [str(finding.verdict), _more(finding), finding.note if is_noted else ""]
    verdict = "; ".join(filter(None, parts))
    if finding.repeats is not None:
        verdict = f"the same weights as {', '.join(finding.repeats)}"
    candidate = ", ".join(finding.cell)
    return [
        _source(finding),
        candidate,
        baseline or "-",
        _value(finding),
        str(finding.pairs or "-"),
        verdict,
    ]


def _more(finding: Finding) -> str:
    """Return a text with the expected number of further pairs of an open comparison, or "" if it has a note."""
    if finding.verdict is not ClaimVerdict.OPEN or finding.note:
        return ""
    more = finding.more
    if more is None:
        return "how many more pairs it needs cannot be said yet"
    return f"about {more.likely} more pairs ({more.low} to {more.high})"


def _value(finding: Finding) -> str:
    """Return `+0.60 [−1.20, +2.90] points`, `4 times fewer bytes` or `0.03% more bytes`."""
    if not math.isfinite(finding.value):
        return "-"
    if finding.comparison.table:
        return f"{finding.comparison.column} {finding.value:.3g}"
    if finding.comparison.count:
        is_factor = finding.comparison.counted_as == TIMES_FEWER
        return f"{finding.value:.3g} {'times fewer' if is_factor else '% more'} bytes"
    metric = Metric(str(finding.comparison.metric))
    ends = (finding.value, finding.low, finding.high)
    return metric.show_between(*(each / metric.scale for each in ends)) + metric.points


def _pairs_if_equal(judgment: Judgment) -> str:
    """Return a sentence with the number of pairs that would certify a candidate that equals its baseline.

    The result is "" if this number is not known for any comparison.
    """
    counts = [finding.if_equal for finding in judgment.distinct if not math.isnan(finding.if_equal)]
    if not counts:
        return ""
    low, high = (
        f"more than {MOST_PAIRS:,}" if math.isinf(n) else f"{n:.0f}" for n in (min(counts), max(counts))
    )
    needed = low if low == high else f"{low} to {high}"
    return f"With these spreads, certifying a candidate that equals its baseline would take {needed} pairs."


def _table(header: list[str], rows: Iterable[list[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *([escape_markdown(cell) for cell in row] for row in rows)]
    return [*(f"| {' | '.join(line)} |" for line in lines), ""]


def _title(paper: Paper) -> str:
    return f"{paper.title} ({paper.authors}, arXiv {paper.arxiv})"
