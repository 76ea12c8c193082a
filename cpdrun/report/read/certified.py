"""Which formats of a report are certified to be within the tolerance, refuted, or open: the test of a search, so that
no verdict of a grid is worded more surely, and typing a sweep again with more seeds costs no validity.

A chain is a facet's formats of one scaling, most bits first; all chains of a report share the error.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cpdrun.report.read import formats
from cpdrun.report.read.group import Group
from cpdrun.report.read.learnt import worst
from cpdrun.report.read.metric import Metric
from cpdrun.stats.anytime import Judgement, Verdict, differences, shares, trace
from cpdrun.stats.chain import settle

MARKS = {Verdict.CERTIFIED: "✓", Verdict.REFUTED: "✗", Verdict.OPEN: "?"}


@dataclass(frozen=True)
class Judged:
    """`verdict` is what may be said: certified only where no run diverged or gave up, and where every wider width of
    the chain has a format that is certified."""

    verdict: Verdict
    judgement: Judgement
    evidence: tuple[float, ...] = ()  # after 2, 3 ... pairs: `anytime.trace`
    enough: tuple[float, float] = (
        math.inf,
        math.inf,
    )  # log10 of the evidence that certifies, and that refutes


@dataclass(frozen=True)
class Family:
    """What shares the error of a search: its chains and, of widths of several, the formats of most of one. A search
    ends with formats and chains that it has not tried, whose share is not the others' all the same."""

    chains: int = 0
    formats: Mapping[float, int] = field(default_factory=dict)  # by their bits


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
        members = [widths[bits] for bits in sorted(widths, reverse=True)]
        low = worst(metric, baseline.num_classes, baseline.values, tolerance)
        gaps = [[_gaps(group, baseline, metric, low) for group in width] for width in members]
        resolution = 1 / samples if samples > 0 else 0.0
        sizes = [max(len(widths[bits]), family.formats.get(bits, 0)) for bits in sorted(widths, reverse=True)]
        barred = [[bool(group.diverged or group.gave_up) for group in width] for width in members]
        settled = settle(
            gaps,
            tolerance,
            alpha=alpha,
            chains=n_chains,
            sizes=sizes,
            barred=barred,
            resolution=resolution,
        )
        for width, stands, of_width, size in zip(members, settled, gaps, sizes, strict=True):
            enough = tuple(-math.log10(share) for share in shares(alpha, size, n_chains))
            for group, judgement, of_group in zip(width, stands.judgements, of_width, strict=True):
                verdict = stands.verdict_of(judgement)
                found[group] = Judged(
                    verdict, judgement, tuple(trace(of_group, tolerance, resolution)), enough
                )
    return found


def _gaps(group: Group, baseline: Group, metric: Metric, low: float) -> list[float]:
    return differences(group.ended, baseline.ended, higher_is_better=metric.higher_is_better, worst=low)
