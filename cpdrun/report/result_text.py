"""Texts for one result: the gap with its interval, the failed runs, and the number of further pairs it needs."""

import math

from cpdrun.report.failures_text import failure_bound_text, failures_text, left_out_text
from cpdrun.report.render import render
from cpdrun.stats.evidence import Judgement
from cpdrun.stats.failures import FailureCounts
from cpdrun.study.axes import axis_text, axis_title, is_strategy
from cpdrun.study.collect import CASE
from cpdrun.study.group import Group
from cpdrun.study.metric import Metric
from cpdrun.study.outlook import MOST_ADVISED, Outlook, outlook
from cpdrun.study.study import Study
from cpdrun.study.verdicts import Judged, Kind


def result_text(metric: Metric, judgement: Judgement, failures: FailureCounts, confidence: float) -> str:
    """Return the gap to the baseline with its interval, the number of pairs, and the limit of the failure rate.

    For example `−0.50 points [−7.5, +3.8] (3 pairs; on its own spread [−64, +16]). 0 of 3 runs failed (with 95 %
    confidence at most 63 % fail)`.

    The first interval also uses the spread of other candidates. The interval `on its own spread` uses only the
    candidate's pairs. If both intervals are equal, the second one is left out.

    Args:
        metric: The metric.
        judgement: The gap, the intervals, and the number of pairs.
        failures: The numbers of failed runs.
        confidence: The confidence of the failure rate's limit, in percent.
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
    """Return the gap to the baseline with its interval, such as `−0.50 points [−7.5, +3.8]`.

    If both ends of the interval are infinite, return the gap alone. If there are no pairs, return `-`.
    """
    if not judgement.pairs:
        return "-"
    gap = metric.show_gap(judgement.mean) + metric.points
    return gap if is_unknown(judgement) else f"{gap} {metric.show_ends(judgement.low, judgement.high)}"


def own_interval_text(metric: Metric, judgement: Judgement) -> str:
    """Return the interval that uses only the candidate's own pairs; `unknown` if both of its ends are infinite."""
    if math.isinf(judgement.own_low) and math.isinf(judgement.own_high):
        return "unknown"
    return metric.show_ends(judgement.own_low, judgement.own_high)


def is_unknown(judgement: Judgement) -> bool:
    """Return whether both ends of the interval are infinite, because there are too few pairs."""
    return math.isinf(judgement.low) and math.isinf(judgement.high)


def more_text(judgement: Judgement, margin: float = math.nan, samples: float = math.nan) -> str:
    """Return how many further pairs are likely to decide an open verdict, or why no number can be given.

    The arguments are those of `cpdrun.study.outlook.outlook`.
    """
    return outlook_text(outlook(judgement, margin, samples))


def outlook_text(found: Outlook) -> str:
    """Return how many further pairs are likely to decide an open verdict, or why no number can be given."""
    return render("outlook.j2", outlook=found, most=MOST_ADVISED)


def verdict_text(judged: Judged) -> str:
    """Return a group's verdict: `certified`, `open`, `refuted`, or `not tested (identical)`."""
    return f"{judged.kind} (identical)" if judged.kind is Kind.NOT_TESTED else str(judged.kind)


def pairs_text(pairs: int, kind: str = "") -> str:
    """Return the number of pairs with the noun: `1 pair`, `3 pairs`. `kind` is written before the noun."""
    return f"{pairs} {kind}pair{'s' if pairs != 1 else ''}"


def describe_group(study: Study, group: Group) -> str:
    """Return a group's description in one line: its name, its mean, and its result.

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
            f"{gap_text(study.metric, gap)} against {study.baseline_name}, {verdict_text(study.judged[group])}"
        )
    if study.failures(group).without_result:
        parts.append(failures_text(study.failures(group)))
    elif group.diverged:
        parts.append(f"{group.diverged} diverged")
    elif not study.learnt(group):
        parts.append("did not learn")
    elif group.gave_up_seeds:
        parts.append(f"{len(group.gave_up_seeds)} did not learn")
    return f"{', '.join([name, *facet])}: {', '.join(parts)}"
