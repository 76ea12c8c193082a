"""Texts for one result: its gap and interval, its failed runs, and the number of further pairs that it needs."""

import math
from typing import TYPE_CHECKING

from cpdrun.report.failures_text import failure_bound_text, failures_text, left_out_text
from cpdrun.stats.evidence import Judgement
from cpdrun.stats.failures import FailureCounts
from cpdrun.study.axes import axis_text, axis_title, is_strategy
from cpdrun.study.collect import CASE
from cpdrun.study.metric import Metric
from cpdrun.study.outlook import MOST_ADVISED, Outlook, outlook

if TYPE_CHECKING:
    from cpdrun.study.group import Group
    from cpdrun.study.study import Study


def result_text(metric: Metric, judgement: Judgement, failures: FailureCounts, confidence: float) -> str:
    """Return the gap with its interval, the interval on the candidate's own spread, and the limit of the failure rate.

    For example `−0.50 points [−7.5, +3.8] (3 pairs; on its own spread [−64, +16]). 0 of 3 runs failed (with 95 %
    confidence at most 63 % fail)`. The interval on the candidate's own spread, which uses no prior from other
    candidates, is left out if it equals the first interval.

    Args:
        metric: The metric.
        judgement: What the pairs show.
        failures: The numbers of failed runs.
        confidence: The confidence of the limit of the failure rate, in per cent.
    """
    pairs = pairs_text(judgement.pairs)
    own = ""
    if (judgement.own_low, judgement.own_high) != (judgement.low, judgement.high):
        own = f"; on its own spread {own_interval_text(metric, judgement)}"
    failed = failure_bound_text(failures, confidence)
    left_out = left_out_text(failures)
    text = f"{gap_text(metric, judgement)} ({pairs}{own}). {failed}"
    return f"{text}; {left_out}" if left_out else text


def gap_text(metric: Metric, judgement: Judgement) -> str:
    """Return the gap with its interval, such as `−0.50 points [−7.5, +3.8]`; `-` without pairs."""
    if not judgement.pairs:
        return "-"
    gap = metric.show_gap(judgement.mean) + metric.points
    return gap if is_unknown(judgement) else f"{gap} {metric.show_ends(judgement.low, judgement.high)}"


def own_interval_text(metric: Metric, judgement: Judgement) -> str:
    """Return the interval from the candidate's own pairs alone, or `unknown`."""
    if math.isinf(judgement.own_low) and math.isinf(judgement.own_high):
        return "unknown"
    return metric.show_ends(judgement.own_low, judgement.own_high)


def is_unknown(judgement: Judgement) -> bool:
    """Return whether the pairs leave both ends of the interval open."""
    return math.isinf(judgement.low) and math.isinf(judgement.high)


def more_text(judgement: Judgement, margin: float = math.nan, samples: float = math.nan) -> str:
    """Return how many further pairs are likely to settle an open question, or why no number can be given.

    The arguments are those of `cpdrun.study.outlook.outlook`.
    """
    return outlook_text(outlook(judgement, margin, samples))


def outlook_text(found: Outlook) -> str:
    """Return how many further pairs are likely to settle an open question, or why no number can be given."""
    from cpdrun.report.render import render

    return render("outlook.j2", outlook=found, most=MOST_ADVISED)


def pairs_text(pairs: int, kind: str = "") -> str:
    """Return `1 pair` or `3 pairs`, with `kind` before the noun."""
    return f"{pairs} {kind}pair{'s' if pairs != 1 else ''}"


def describe_group(study: "Study", group: "Group") -> str:
    """Return one line about a group.

    For example `e4m3 with APS, workers 8: 98.7 %, 3 seeds, −0.10 points [−0.4, +0.2] against fp32, open`.
    """
    facet = [
        f"{axis_title(k)} {axis_text(group.keys[k])}"
        for k in ("world_size", *study.axes)
        if (not is_strategy(k) or (k == CASE and group.case is None)) and k != study.bits_axis.key
    ]
    name = group.name if group.is_baseline else f"{group.name} {group.strategy}"
    facet += [f"{group.hybrid} in fp32"] if group.hybrid else []
    parts = [study.metric.show(group.mean) + study.metric.unit]
    parts.append(f"{len(group.values)} seed{'s' if len(group.values) != 1 else ''}")
    if gap := study.against_baseline(group):
        parts.append(
            f"{gap_text(study.metric, gap)} against {study.baseline_name}, {study.judged[group].verdict}"
        )
    if study.failures(group).without_result:
        parts.append(failures_text(study.failures(group)))
    elif group.diverged:
        parts.append(f"{group.diverged} diverged")
    elif not study.learnt(group):
        parts.append("did not learn")
    elif group.gave_up:
        parts.append(f"{group.gave_up} did not learn")
    return f"{', '.join([name, *facet])}: {', '.join(parts)}"
