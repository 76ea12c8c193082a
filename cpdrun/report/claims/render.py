"""Claims as text: a block each on the terminal, tables and details in markdown."""

import math
from collections.abc import Iterable, Iterator
from itertools import groupby

from rich.console import Console

from cpdrun.report.claims.claim import Paper
from cpdrun.report.claims.judgement import MOST_SEEDS, NOT_ASKED, Finding, Judgement
from cpdrun.report.page.markup import encodable, escape_markdown
from cpdrun.stats.evidence import Verdict, half_width, pairs_needed
from cpdrun.study.axes.titles import plain
from cpdrun.study.groups.verdicts import MARKS
from cpdrun.study.metric import Metric

STYLES = {Verdict.CERTIFIED: "green", Verdict.REFUTED: "red", Verdict.OPEN: "yellow", NOT_ASKED: "dim"}
DECIDING = (Verdict.REFUTED, Verdict.OPEN, Verdict.CERTIFIED)  # what is shown first
MOST_ON_A_TERMINAL = 4  # comparisons of a claim; the file has all
WIDEST_VERDICT = max(map(len, STYLES))
NEEDED = {"every": "all", "most": "more than half", "some": "at least one"}
NO_RUNS = "no runs"


def on_terminal(console: Console, judgements: list[Judgement], ci: float) -> None:
    """The verdicts, each with the comparisons that decide it and what its seeds can see."""

    def say(text: str, style: str = "") -> None:
        line = encodable(plain(text), console.encoding)
        console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)

    for paper, of_paper in groupby(judgements, key=lambda judgement: judgement.claim.paper):
        say(_heading(paper), "bold")
        for judgement in of_paper:
            say(f"  {judgement.verdict:<{WIDEST_VERDICT}}  {judgement.claim.says}", STYLES[judgement.verdict])
            for line in _below(judgement):
                say(f"  {'':<{WIDEST_VERDICT}}  {line}", "" if judgement.claim.asks else "dim")
    say(summary(judgements), "bold")


def _below(judgement: Judgement) -> Iterator[str]:
    if judgement.claim.not_asked:
        yield judgement.claim.not_asked
        return
    ran = [finding for finding in judgement.findings if finding.why != NO_RUNS and not finding.is_repeat]
    deciding = sorted(ran, key=lambda f: (DECIDING.index(f.verdict), f.value))
    for finding in deciding[:MOST_ON_A_TERMINAL]:
        yield f"{finding.ask.sweep}, {finding.cell}: {_result(finding)}"
    if len(deciding) > MOST_ON_A_TERMINAL or len(deciding) < len(judgement.findings):
        yield tally(judgement)
    if sentence := power_sentence(judgement):
        yield sentence


def as_markdown(judgements: list[Judgement], ci: float) -> str:
    """claims.md: a table of verdicts, then each claim with all that it rests on."""
    lines = [
        "# What the papers claim, and what ran here",
        "",
        "Made by `cpdrun report --claims` from the claims in conf/claims and the values of single runs; no verdict is "
        "written by hand. Small networks on small data: these runs can refute a claim or fail to, they cannot "
        f"certify it at the papers' scale. Verdicts are at {ci:g} % for each claim as a whole, by the anytime-valid "
        "test of searches and reports on differences of the same seed: seeds may be added until it is settled. "
        "*Certified*: shown to be within the claim's threshold; *refuted*: shown to be outside; *open*: neither. An "
        "interval is that of the same test, and wider the more comparisons may err. *No runs*: neither runs nor "
        "committed values of single runs are here; an older reference of that name may still have a table of means.",
        "",
        summary(judgements),
        "",
    ]
    for paper, of_paper in groupby(judgements, key=lambda judgement: judgement.claim.paper):
        block = list(of_paper)
        lines += [f"## {escape_markdown(_heading(paper))}", ""]
        lines += _table(["claim", "verdict", "what it rests on"], map(_row, block))
        for judgement in block:
            lines += [*_details(judgement), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _row(judgement: Judgement) -> list[str]:
    claim = judgement.claim
    if claim.not_asked:
        return [claim.says, NOT_ASKED, claim.not_asked]
    return [claim.says, judgement.verdict, tally(judgement)]


def _details(judgement: Judgement) -> Iterator[str]:
    claim = judgement.claim
    yield f"### {escape_markdown(claim.says)}: {judgement.verdict}"
    yield ""
    words = f'"{claim.words}"' if claim.words else "No words of the paper could be had; this is a paraphrase."
    yield escape_markdown(f"{words} ({claim.section})")
    if claim.not_asked:
        yield f"\nNot asked: {escape_markdown(claim.not_asked)}"
    else:
        needed = f"It must hold in {NEEDED[claim.holds_for]} of the comparisons."
        yield f"\nThreshold: {escape_markdown(claim.threshold)} {needed}"
        yield ""
        header = ["sweep", "cells", "difference", "seeds", "verdict"]
        yield from _table(header, map(_finding_row, judgement.findings))
        yield f"From: {escape_markdown('; '.join(dict.fromkeys(f.source for f in judgement.findings)))}."
        if sentence := power_sentence(judgement):
            yield f"\nPower: {escape_markdown(sentence)}"
    if claim.note:
        yield f"\n{escape_markdown(claim.note)}"


def _table(header: list[str], rows: Iterable[list[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *([escape_markdown(cell) for cell in row] for row in rows)]
    return [*(f"| {' | '.join(line)} |" for line in lines), ""]


def _finding_row(finding: Finding) -> list[str]:
    about = finding.why or _more(finding)
    verdict = _marked(finding.verdict) + (f" ({about})" if about else "")
    return [finding.ask.sweep, finding.cell, finding.figure, str(finding.seeds or "-"), verdict]


def _marked(verdict: str) -> str:
    return f"{MARKS[verdict]} {verdict}" if verdict in MARKS else verdict


def _more(finding: Finding) -> str:
    """`about 9 more`, were the figures so far the true ones."""
    if finding.verdict is not Verdict.OPEN:
        return ""
    return f"more than {MOST_SEEDS:,} in all" if finding.more is None else f"about {finding.more} more"


def _result(finding: Finding) -> str:
    about = [f"{finding.seeds} seeds"] if finding.seeds and finding.why != "counted" else []
    about += [text] if (text := finding.why or _more(finding)) else []
    brackets = f" ({'; '.join(about)})" if about else ""
    return f"{finding.figure}{brackets}: {finding.verdict}"


def tally(judgement: Judgement) -> str:
    """Return `of 12 comparisons 2 certified, 9 open, 1 refuted; 3 more are of equal runs; 3 sweeps have no runs`."""
    repeats = sum(finding.is_repeat for finding in judgement.findings)
    ran = [finding for finding in judgement.findings if finding.why != NO_RUNS and not finding.is_repeat]
    counts = {v: sum(f.verdict == v for f in ran) for v in reversed(DECIDING)}
    parts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    texts = [f"of {len(ran)} comparison{'s' if len(ran) != 1 else ''} {parts}"] if ran else []
    if repeats:
        texts.append(
            f"{repeats} more {'are' if repeats != 1 else 'is'} of runs equal bit for bit and counted once"
        )
    if missing := len(judgement.findings) - len(ran) - repeats:
        texts.append(f"{missing} sweep{'s have' if missing != 1 else ' has'} no runs")
    return "; ".join(texts)


def summary(judgements: list[Judgement]) -> str:
    counts = {v: sum(j.verdict == v for j in judgements) for v in STYLES}
    return f"{len(judgements)} claims: " + ", ".join(
        f"{count} {verdict}" for verdict, count in counts.items() if count
    )


def power_sentence(judgement: Judgement) -> str:
    """What the seeds that ran can settle, and how many the threshold would take; empty where nothing was tested."""
    seen = [f for f in judgement.findings if f.seeds > 1 and f.deviation > 0]
    metrics = list(dict.fromkeys(finding.ask.metric for finding in seen))
    texts = {name: _power_of(name, [f for f in seen if f.ask.metric == name]) for name in metrics}
    if len(texts) == 1:
        return next(iter(texts.values()))
    return " ".join(f"{name.replace('_', ' ')}: {text}" for name, text in texts.items())


def _power_of(metric: str, findings: list[Finding]) -> str:
    """`3 seeds of 2,000 test samples settle what lies 1.9 to 12 points from the threshold; were there no difference, a
    threshold of 0.05 points would take more than 1,000 seeds.`"""
    points = " points" if Metric(metric).is_fraction else f" of {Metric(metric).title}"
    seeds = _range([f.seeds for f in findings])
    samples = [f.test_samples for f in findings if math.isfinite(f.test_samples)]
    tested = f" of {_range(samples)} test samples" if samples else ""
    visible = [distance for f in findings if math.isfinite(distance := _visible(f))]
    what = f"what lies {_range(visible)}{points} from the threshold" if visible else "nothing"
    some = f" (in {len(visible)} of {len(findings)} comparisons)" if 0 < len(visible) < len(findings) else ""
    settle = f"{seeds} seeds{tested} settle {what}{some}"
    bounded = [(f, margin) for f in findings if (margin := _margin(f)) is not None]
    if not bounded:
        return f"{settle}."
    margins, counts = [margin for _, margin in bounded], [_needed(*each) for each in bounded]
    threshold = f"were there no difference, a threshold of {_range(margins)}{points} would take"
    if None in counts:
        return f"{settle}; {threshold} more than {MOST_SEEDS:,} seeds."
    return f"{settle}; {threshold} about {_range(counts)} seeds."


def _visible(finding: Finding) -> float:
    """How far from the threshold the mean of so many seeds must lie to certify, in shown units; infinite where no
    distance is enough."""
    certify, _ = finding.errors
    distance = half_width(finding.seeds, finding.deviation, certify)
    metric = Metric(finding.ask.metric)
    return math.inf if metric.is_fraction and distance > metric.scale else distance


def _needed(finding: Finding, margin: float) -> int | None:
    """How many seeds are likely to settle a mean so far from the threshold; None: more than MOST_SEEDS."""
    certify, refute = finding.errors
    return pairs_needed(margin, finding.deviation, certify=certify, refute=refute, fewest=2, most=MOST_SEEDS)


def _margin(finding: Finding) -> float | None:
    """How far the truth may lie from the threshold: of no difference from a bound, of the middle of two from either."""
    ask = finding.ask
    if ask.at_least is not None and ask.at_most is not None:
        return (ask.at_most - ask.at_least) / 2
    bound = ask.at_least if ask.at_least is not None else ask.at_most
    return abs(bound) or None


def _range(values: list[float]) -> str:
    low, high = (
        f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2g}"
        for value in (min(values), max(values))
    )
    return low if low == high else f"{low} to {high}"


def _heading(paper: Paper) -> str:
    return f"{paper.title} ({paper.authors}, arXiv {paper.arxiv})"
