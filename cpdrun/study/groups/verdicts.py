"""Which formats of a report are certified to be within the tolerance, refuted, or open: the test of a search, so that
no verdict of a grid is worded more surely, and typing a sweep again with more seeds costs no validity.

A chain is a facet's formats of one scaling, most bits first; all chains of a report share the error.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from cpdrun.config.identity import run_name
from cpdrun.record import read_config
from cpdrun.stats.chain import PairedChain, judge_chains
from cpdrun.stats.evidence import Judgement, Verdict, differences
from cpdrun.stats.failures import Compared, FailureCounts, compare_runs
from cpdrun.stats.ledger import AskedChain, Hypothesis, Ledger, Start
from cpdrun.study.axes import formats
from cpdrun.study.groups.group import Group
from cpdrun.study.metric import Metric
from cpdrun.study.runs.learnt import worst

EMPTY_LEDGER = Ledger()
MARKS = {Verdict.CERTIFIED: "✓", Verdict.REFUTED: "✗", Verdict.OPEN: "?"}


@dataclass(frozen=True)
class Judged:
    """`verdict` is what may be said: certified only if no run failed (`cpdrun.stats.failures`), and if every wider
    width of the chain, from where it starts, has a format that is certified."""

    verdict: Verdict
    judgement: Judgement
    failures: FailureCounts = field(default_factory=FailureCounts)
    hypothesis: Hypothesis | None = None  # with its weight and its prior, for the ledger

    @property
    def enough(self) -> tuple[float, float]:
        """Return log10 of the evidence that certifies, and that refutes."""
        certify, refute = self.judgement.errors
        return -math.log10(certify), -math.log10(refute)


def judge_groups(
    chains: Sequence[tuple[Group, Sequence[Group]]],
    metric: Metric,
    margin: float,
    alpha: float,
    samples: float,
    ledger: Ledger = EMPTY_LEDGER,
    starts: Sequence[Start] = (),
) -> dict[Group, Judged]:
    """Return the verdicts of all groups.

    Args:
        chains: a baseline and the groups compared with it.
        metric: what is compared.
        margin: in the metric's own unit.
        alpha: the error probability of all hypotheses together.
        samples: the size of the test set if the metric counts samples, else NaN.
        ledger: the hypotheses that the sweep was asked. Those that it lacks get a weight of what is left.
        starts: the chains of a search that do not start at their widest width.
    """
    resolution = 1 / samples if samples > 0 else 0.0
    found = [_chain(baseline, groups, metric, margin, ledger, starts) for baseline, groups in chains]
    settled = judge_chains(
        [each.paired for each in found],
        metric.name,
        margin,
        alpha=alpha,
        ledger=ledger,
        resolution=resolution,
    )
    return {
        group: Judged(width.verdict_of(judgement), judgement, each.compared[group].counts, hypothesis)
        for each, widths in zip(found, settled, strict=True)
        for groups, width in zip(each.widths, widths, strict=True)
        for group, judgement, hypothesis in zip(groups, width.judgements, width.hypotheses, strict=True)
    }


@dataclass(frozen=True)
class _Chain:
    """A chain of groups, most bits first, with the compared runs and the pairs of each group."""

    widths: list[list[Group]]
    compared: dict[Group, Compared]
    paired: PairedChain


def _chain(
    baseline: Group,
    groups: Sequence[Group],
    metric: Metric,
    margin: float,
    ledger: Ledger,
    starts: Sequence[Start],
) -> _Chain:
    by_bits: dict[float, list[Group]] = {}
    for group in sorted(groups, key=lambda group: formats.order(group.format)):
        by_bits.setdefault(formats.bits(group.format) or math.inf, []).append(group)
    bits = sorted(by_bits, reverse=True)
    widths = [by_bits[each] for each in bits]
    cells = {group: _cell(group) for group in (baseline, *groups)}
    start = next((each for each in starts if each.cells & {*cells.values()}), None)
    asked = AskedChain(
        ledger.named(cells[baseline]),
        [[ledger.named(cells[group]) for group in width] for width in widths],
        min(sum(each > start.bits for each in bits), len(bits) - 1) if start else 0,
        bits,
    )
    aside = () if start is None or start.aside is None else (start.aside,)
    low = worst(metric, baseline.num_classes, baseline.values, margin)
    compared = {
        group: compare_runs(group.outcomes.without(aside), baseline.outcomes.without(aside))
        for width in widths
        for group in width
    }
    gaps = {
        group: differences(found.ours, found.baseline, higher_is_better=metric.higher_is_better, worst=low)
        for group, found in compared.items()
    }
    paired = PairedChain(
        asked,
        [[gaps[group] for group in width] for width in widths],
        [[compared[group].is_barred for group in width] for width in widths],
    )
    return _Chain(widths, compared, paired)


def _cell(group: Group) -> str:
    """Return the name of the group's run of seed 0, whether or not there is one."""
    for run in group.runs[:1]:
        try:
            return run_name({**read_config(run), "seed": 0})
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            break  # not written by cpdrun
    return f"{group.name} {group.strategy} {group.keys}"
