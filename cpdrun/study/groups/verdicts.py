"""Which formats of a report are certified to be within the tolerance, refuted, or open: the test of a search, so that
no verdict of a grid is worded more surely, and typing a sweep again with more seeds costs no validity.

A chain is a facet's formats of one scaling, most bits first; all chains of a report share the error.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cpdrun.config.identity import run_name
from cpdrun.record import RunDir, read_config
from cpdrun.stats.chain import portions, settle
from cpdrun.stats.evidence import Judgement, Verdict, differences
from cpdrun.stats.failures import Compared, FailureCounts, compare_runs
from cpdrun.study.axes import formats
from cpdrun.study.groups.group import Group
from cpdrun.study.metric import Metric
from cpdrun.study.runs.learnt import worst

MARKS = {Verdict.CERTIFIED: "✓", Verdict.REFUTED: "✗", Verdict.OPEN: "?"}


@dataclass(frozen=True)
class Judged:
    """`verdict` is what may be said: certified only if no run failed (`cpdrun.stats.failures`), and if every wider
    width of the chain, from where it starts, has a format that is certified."""

    verdict: Verdict
    judgement: Judgement
    failures: FailureCounts = field(default_factory=FailureCounts)
    enough: tuple[float, float] = (
        math.inf,
        math.inf,
    )  # log10 of the evidence that certifies, and that refutes


@dataclass(frozen=True)
class Started:
    """Where a chain of a search started, by a prediction (`cpdrun.stats.chain`)."""

    chain: str  # as the search calls it
    bits: float
    aside: int | None  # the seed that is in no pair
    widths: tuple[float, ...]  # bits of all, most first
    cells: frozenset[str]  # by the names of their runs of seed 0: by these the chain is known

    @property
    def portions(self) -> dict[float, float]:
        """By bits what of the chain's error a width is certified at."""
        start = self.widths.index(self.bits)
        return dict(zip(self.widths, portions(len(self.widths), start), strict=True))

    @property
    def said(self) -> str:
        seed = "" if self.aside is None else f", seed {self.aside}, which the prediction is of, is in no pair"
        at = f"{self.chain}: " if self.chain else ""
        return f"{at}started at {self.bits:g} bits, as predicted; each wider width is judged by itself{seed}"


@dataclass(frozen=True)
class Family:
    """What shares the error of a search: its chains and, of widths of several, the formats of most of one. A search
    ends with formats and chains that it has not tried, whose share is not the others' all the same."""

    chains: int = 0
    formats: Mapping[float, int] = field(default_factory=dict)  # by their bits
    started: tuple[Started, ...] = ()  # chains that do not start at their widest

    def start_of(self, groups: Sequence[Group]) -> Started | None:
        """Of the chain of these groups; None where it starts at its widest."""
        cells = {_cell(run) for group in groups for run in group.runs[:1]} if self.started else set()
        return next((each for each in self.started if cells & each.cells), None)


def judge_chains(
    chains: Sequence[tuple[Group, Sequence[Group]]],
    metric: Metric,
    tolerance: float,
    alpha: float,
    samples: float,
    family: Family = Family(),
) -> dict[Group, Judged]:
    """`chains`: a baseline and the groups compared with it. `tolerance`: in the metric's own unit; `samples`: of the
    test set, where the metric counts them, else NaN; `family`: what shares the error, if it is more than there is."""
    n_chains = max(len(chains), family.chains)
    found: dict[Group, Judged] = {}
    for baseline, groups in chains:
        widths: dict[float, list[Group]] = {}
        for group in sorted(groups, key=lambda group: formats.order(group.format)):
            widths.setdefault(formats.bits(group.format) or math.inf, []).append(group)
        in_order = sorted(widths, reverse=True)
        members = [widths[bits] for bits in in_order]
        began = family.start_of(groups)
        start = sum(bits > began.bits for bits in in_order) if began else 0
        share_of = began.portions if began else {}
        shared = [share_of.get(bits, min(share_of.values(), default=1.0)) for bits in in_order]
        low = worst(metric, baseline.num_classes, baseline.values, tolerance)
        aside = began.aside if began else None
        runs = [[_compared(group, baseline, aside) for group in width] for width in members]
        gaps = [[_gaps(compared, metric, low) for compared in of_width] for of_width in runs]
        resolution = 1 / samples if samples > 0 else 0.0
        sizes = [max(len(widths[bits]), family.formats.get(bits, 0)) for bits in in_order]
        settled = settle(
            gaps,
            tolerance,
            alpha=alpha,
            chains=n_chains,
            sizes=sizes,
            barred=[[compared.is_barred for compared in of_width] for of_width in runs],
            resolution=resolution,
            start=start,
            shared=shared,
        )
        for width, stands, pairs in zip(members, settled, runs, strict=True):
            certify, refute = stands.errors
            enough = -math.log10(certify), -math.log10(refute)
            for group, judgement, compared in zip(width, stands.judgements, pairs, strict=True):
                verdict = stands.verdict_of(judgement)
                found[group] = Judged(verdict, judgement, compared.counts, enough)
    return found


def _compared(group: Group, baseline: Group, aside: int | None) -> Compared:
    left_out = () if aside is None else (aside,)
    return compare_runs(group.outcomes.without(left_out), baseline.outcomes.without(left_out))


def _gaps(compared: Compared, metric: Metric, low: float) -> list[float]:
    return differences(compared.ours, compared.baseline, higher_is_better=metric.higher_is_better, worst=low)


def _cell(run: RunDir) -> str | None:
    """The name of the cell of a run: that of its run of seed 0."""
    try:
        return run_name({**read_config(run), "seed": 0})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # written elsewhere: no search of ours started by it
