"""Claims as text: a block each on the terminal, tables and details in markdown."""

import math
from collections.abc import Iterable, Iterator
from itertools import groupby

from rich.console import Console

from cpdrun.report.claims.claim import Paper
from cpdrun.report.claims.judgement import CONTRADICTED, HELD, NOT_ASKED, OPEN, Finding, Judgement
from cpdrun.report.page.markup import encodable, escape_markdown
from cpdrun.report.read.metric import Metric
from cpdrun.report.read.words import plain
from cpdrun.stats.intervals import unseen_share
from cpdrun.stats.power import seeds_needed, visible_effect

STYLES = {HELD: "green", CONTRADICTED: "red", OPEN: "yellow", NOT_ASKED: "dim"}
MOST_ON_A_TERMINAL = 4  # comparisons of a claim; the file has all
WIDEST_VERDICT = max(map(len, STYLES))
NEEDED = {"every": "all", "most": "more than half", "some": "at least one"}
NO_RUNS = "no runs"
MOST_SEEDS = 10_000_000  # beyond it the sentence says that nobody has them


def on_terminal(console: Console, judgements: list[Judgement], ci: float) -> None:
    """The verdicts, each with the comparisons that decide it and what its seeds can see."""

    def say(text: str, style: str = "") -> None:
        line = encodable(plain(text), console.encoding)
        console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)

    for paper, of_paper in groupby(judgements, key=lambda judgement: judgement.claim.paper):
        say(_heading(paper), "bold")
        for judgement in of_paper:
            say(f"  {judgement.verdict:<{WIDEST_VERDICT}}  {judgement.claim.says}", STYLES[judgement.verdict])
            for line in _below(judgement, ci):
                say(f"  {'':<{WIDEST_VERDICT}}  {line}", "" if judgement.claim.asks else "dim")
    say(summary(judgements), "bold")


def _below(judgement: Judgement, ci: float) -> Iterator[str]:
    if judgement.claim.not_asked:
        yield judgement.claim.not_asked
        return
    ran = [finding for finding in judgement.findings if finding.why != NO_RUNS]
    deciding = sorted(ran, key=lambda f: ([CONTRADICTED, OPEN, HELD].index(f.verdict), f.value))
    for finding in deciding[:MOST_ON_A_TERMINAL]:
        yield f"{finding.ask.sweep}, {finding.cell}: {_result(finding)}"
    if len(deciding) > MOST_ON_A_TERMINAL or len(deciding) < len(judgement.findings):
        yield tally(judgement)
    if sentence := power_sentence(judgement, ci):
        yield sentence


def as_markdown(judgements: list[Judgement], ci: float) -> str:
    """claims.md: a table of verdicts, then each claim with all that it rests on."""
    lines = [
        "# What the papers claim, and what ran here",
        "",
        "Made by `cpdrun report --claims` from the claims in conf/claims and the values of single runs; no verdict is "
        "written by hand. Small networks on small data: these runs can contradict a claim or fail to, they cannot "
        f"confirm it at the papers' scale. Intervals are {ci:g} % over seeds, of differences with the same seed. "
        "*Held*: every interval that the claim needs lies within its threshold; *contradicted*: one lies wholly "
        "outside (a stricter interval, the more comparisons there are); *open*: neither. *No runs*: neither runs nor "
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
            lines += [*_details(judgement, ci), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _row(judgement: Judgement) -> list[str]:
    claim = judgement.claim
    if claim.not_asked:
        return [claim.says, NOT_ASKED, claim.not_asked]
    return [claim.says, judgement.verdict, tally(judgement)]


def _details(judgement: Judgement, ci: float) -> Iterator[str]:
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
        if sentence := power_sentence(judgement, ci):
            yield f"\nPower: {escape_markdown(sentence)}"
    if claim.note:
        yield f"\n{escape_markdown(claim.note)}"


def _table(header: list[str], rows: Iterable[list[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *([escape_markdown(cell) for cell in row] for row in rows)]
    return [*(f"| {' | '.join(line)} |" for line in lines), ""]


def _finding_row(finding: Finding) -> list[str]:
    verdict = finding.verdict + (f" ({finding.why})" if finding.why else "")
    return [finding.ask.sweep, finding.cell, finding.figure, str(finding.seeds or "-"), verdict]


def _result(finding: Finding) -> str:
    about = [f"{finding.seeds} seeds"] if finding.seeds and finding.why != "counted" else []
    about += [finding.why] if finding.why else []
    brackets = f" ({'; '.join(about)})" if about else ""
    return f"{finding.figure}{brackets}: {finding.verdict}"


def tally(judgement: Judgement) -> str:
    """`of 12 comparisons 2 held, 1 contradicted, 9 open; 3 sweeps have no runs`."""
    ran = [finding for finding in judgement.findings if finding.why != NO_RUNS]
    counts = {v: sum(f.verdict == v for f in ran) for v in (HELD, CONTRADICTED, OPEN)}
    parts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    texts = [f"of {len(ran)} comparison{'s' if len(ran) != 1 else ''} {parts}"] if ran else []
    if missing := len(judgement.findings) - len(ran):
        texts.append(f"{missing} sweep{'s have' if missing != 1 else ' has'} no runs")
    return "; ".join(texts)


def summary(judgements: list[Judgement]) -> str:
    counts = {v: sum(j.verdict == v for j in judgements) for v in STYLES}
    return f"{len(judgements)} claims: " + ", ".join(
        f"{count} {verdict}" for verdict, count in counts.items() if count
    )


def power_sentence(judgement: Judgement, ci: float) -> str:
    """What the seeds that ran can see, and how many the threshold would take; empty where nothing has an interval."""
    seen = [f for f in judgement.findings if f.seeds > 1 and math.isfinite(f.half_width)]
    metrics = list(dict.fromkeys(finding.ask.metric for finding in seen))
    texts = {name: _power_of(name, [f for f in seen if f.ask.metric == name], ci) for name in metrics}
    if len(texts) == 1:
        return next(iter(texts.values()))
    return " ".join(f"{name.replace('_', ' ')}: {text}" for name, text in texts.items())


def _power_of(metric: str, findings: list[Finding], ci: float) -> str:
    """`3 seeds of 2,000 test samples see 1.9 to 12 points 4 times in 5; 0.05 points would take about 4,000 seeds.`"""
    points = " points" if Metric(metric).is_fraction else f" of {Metric(metric).title}"
    seeds = _range([f.seeds for f in findings])
    samples = [f.test_samples for f in findings if math.isfinite(f.test_samples)]
    tested = f" of {_range(samples)} test samples" if samples else ""
    see = f"{seeds} seeds{tested} see {_range([_visible(f, ci) for f in findings])}{points} 4 times in 5"
    needed = [(f, margin) for f in findings if (margin := _margin(f)) is not None]
    if not needed:
        return f"{see}."
    margins = _range([margin for _, margin in needed])
    counts = [_needed(f, margin, ci) for f, margin in needed]
    if None in counts:
        return f"{see}; {margins}{points} would take more seeds than anyone has."
    if all(count <= f.seeds for count, (f, _) in zip(counts, needed, strict=True)):
        return f"{see}, so {margins}{points} too."
    return (
        f"{see}; {margins}{points} would take about {_range([_two_digits(count) for count in counts])} seeds."
    )


def _visible(finding: Finding, ci: float) -> float:
    """The difference that the seeds see, in shown units; none smaller than what equal counts leave open."""
    least = 100 * unseen_share(finding.seeds * finding.test_samples, ci)
    return max(visible_effect(finding.seeds, ci) * finding.deviation, least if math.isfinite(least) else 0.0)


def _needed(finding: Finding, margin: float, ci: float) -> int | None:
    scale = Metric(finding.ask.metric).scale
    return seeds_needed(
        margin / scale, finding.deviation / scale, ci, samples=finding.test_samples, most=MOST_SEEDS
    )


def _margin(finding: Finding) -> float | None:
    """How far the truth may lie from the threshold: of no difference from a bound, of the middle of two from either."""
    ask = finding.ask
    if ask.at_least is not None and ask.at_most is not None:
        return (ask.at_most - ask.at_least) / 2
    bound = ask.at_least if ask.at_least is not None else ask.at_most
    return abs(bound) or None


def _two_digits(count: int) -> int:
    step = 10 ** max(0, len(str(count)) - 2)
    return -(-count // step) * step


def _range(values: list[float]) -> str:
    low, high = (
        f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2g}"
        for value in (min(values), max(values))
    )
    return low if low == high else f"{low} to {high}"


def _heading(paper: Paper) -> str:
    return f"{paper.title} ({paper.authors}, arXiv {paper.arxiv})"
