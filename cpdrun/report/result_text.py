"""Texts about one result: its gap, interval, failed runs and outlook.

The gap is the mean difference from the baseline over all pairs. A pair is two runs with the same seed, one of each
configuration.
"""

import math

from cpdrun.report.failures_text import failure_bound_text, failures_text, left_out_text
from cpdrun.report.render import count, render
from cpdrun.stats.evidence import Judgment
from cpdrun.stats.failures import FailureCounts
from cpdrun.study.axes import axis_text, axis_title, is_strategy
from cpdrun.study.collect import CASE
from cpdrun.study.group import Group
from cpdrun.study.metric import Metric
from cpdrun.study.outlook import MOST_ADVISED, Outlook, outlook
from cpdrun.study.study import Study
from cpdrun.study.verdicts import Judged, Kind


def result_text(metric: Metric, judgment: Judgment, failures: FailureCounts, confidence: float) -> str:
    """Return the gap with its intervals, the pairs and the failed runs.

    Example: "−0.50 points [−7.5, +3.8] (3 pairs; on its own spread [−64, +16]). 0 of 3 runs failed (with 95%
    confidence at most 63% fail)".

    The first interval also uses the spread of other candidates. The one "on its own spread" uses only this candidate's
    pairs, and is omitted if it is the same. `confidence` is in percent.
    """
    pairs, own = count(judgment.pairs, "pair"), ""
    if has_own_interval(judgment):
        own = f"; on its own spread {own_interval_text(metric, judgment)}"
    failed = [failure_bound_text(failures, confidence), left_out_text(failures)]
    return f"{gap_text(metric, judgment)} ({pairs}{own}). {'; '.join(filter(None, failed))}"


def gap_text(metric: Metric, judgment: Judgment) -> str:
    """Return the gap with its interval, such as "−0.50 points [−7.5, +3.8]".

    Without pairs, return "-". If both ends are infinite, omit the interval.
    """
    if not judgment.pairs:
        return "-"
    gap = metric.show_gap(judgment.mean) + metric.points
    is_unknown = math.isinf(judgment.low) and math.isinf(judgment.high)
    return gap if is_unknown else f"{gap} {metric.show_ends(judgment.low, judgment.high)}"


def has_own_interval(judgment: Judgment) -> bool:
    """Return True if the interval from a candidate's own pairs differs from its gap's."""
    return (judgment.own_low, judgment.own_high) != (judgment.low, judgment.high)


def own_interval_text(metric: Metric, judgment: Judgment) -> str:
    """Return the interval from a candidate's own pairs, or "unknown" if it is infinite."""
    if math.isinf(judgment.own_low) and math.isinf(judgment.own_high):
        return "unknown"
    return metric.show_ends(judgment.own_low, judgment.own_high)


def more_text(judgment: Judgment, margin: float = math.nan, samples: float = math.nan) -> str:
    """Estimate how many further pairs decide an open verdict, as text.

    See `cpdrun.study.outlook.outlook` for the arguments.
    """
    return outlook_text(outlook(judgment, margin, samples))


def outlook_text(found: Outlook) -> str:
    """Describe how many more pairs will probably decide a verdict, or why more pairs may not help."""
    return render("outlook.j2", outlook=found, most=MOST_ADVISED)


def verdict_text(judged: Judged) -> str:
    """Return a verdict such as "certified", "open" or "not tested (identical)"."""
    return f"{judged.kind} (identical)" if judged.kind is Kind.NOT_TESTED else str(judged.kind)


def describe_group(study: Study, group: Group) -> str:
    """Describe a group in one line: its name, mean, gap and verdict.

    Example: "e4m3 with APS, workers 8: 98.7%, 3 seeds, −0.10 points [−0.4, +0.2] against fp32, open".
    """
    facet = [
        f"{axis_title(k)} {axis_text(group.keys[k])}"
        for k in ("world_size", *study.axes)
        if (not is_strategy(k) or (k == CASE and group.case is None)) and k != study.bits_axis.key
    ]
    name = group.name if group.is_baseline else group.full_name
    facet += [f"{group.hybrid} in fp32"] if group.hybrid else []
    parts = [study.metric.show(group.mean) + study.metric.unit, count(len(group.values), "seed")]
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
