"""The table of groups that are worse than their baseline, with the main reason of each."""

from cpdrun.report.diagnosis import sums_text
from cpdrun.report.tables import Shown
from cpdrun.study.axes import axis_text, axis_title, plain
from cpdrun.study.gradient_sums import (
    Cause,
    find_reason,
    gradient_statistics,
    longest_chain,
    workers_per_scale,
)
from cpdrun.study.group import Group
from cpdrun.study.records import rows_of
from cpdrun.study.run_comparison import compare_run, find_neighbors, is_improvement, row_of
from cpdrun.study.study import Study

MOST_GROUPS = 12
HEADER = ["run", "against the baseline", "main reason", "where", "when", "measured in another run"]


def worse_groups(study: Study) -> tuple[list[str], Shown] | None:
    """Return introductory sentences and a table with a row for each group that is worse, by one of its runs.

    Groups are in the order of the table of means. None if no group is worse, or no record says why.
    """
    worse = [
        group for group in study.groups if not group.is_baseline and group.runs and _is_worse(study, group)
    ]
    rows = [row for group in worse[:MOST_GROUPS] if (row := _row(study, group)) is not None]
    if not rows:
        return None
    sentences = [
        "What the sums of gradients lost, in one run of each group that is worse. For more: cpdrun report RUN."
    ]
    if len(worse) > MOST_GROUPS:
        sentences.append(f"{len(worse) - MOST_GROUPS} more groups are worse and not shown here.")
    return sentences, Shown(HEADER, rows, 1)


def _is_worse(study: Study, group: Group) -> bool:
    """Return whether a group is refuted, or had a run that failed, or has a mean outside of the margin."""
    gap = study.against_baseline(group)
    if gap is None:
        return group.diverged > 0 or group.gave_up > 0
    return not study.may_be_within(group) or -gap.mean * study.metric.scale > study.tolerance


def _row(study: Study, group: Group) -> list[str] | None:
    run = group.runs[0]
    reason = find_reason(gradient_statistics(rows_of(run)))
    if reason.cause is Cause.UNSEEN:
        return None
    row, comparison = row_of(study, run), compare_run(study, run)
    workers = row.get("world_size")
    if not isinstance(workers, int):
        return None
    sync = {key: row.get(f"sync.{key}") for key in ("order", "group_size")}
    cause = sums_text.cause(
        reason,
        aps=bool(row.get("aps")),
        chain=longest_chain(sync, workers),
        workers=workers,
        workers_per_scale=workers_per_scale(sync, workers),
    )
    found = find_neighbors(study, run, comparison)
    better = next((one for one in found if is_improvement(study, comparison, one)), None)
    measured = "-" if better is None else sums_text.measured(study, better, reason)
    return [
        _name(study, group),
        "diverged" if group.diverged else sums_text.gap(study, comparison).split(" (")[0],
        cause,
        "-" if reason.cause is Cause.EXACT else sums_text.layers(reason),
        sums_text.when(reason) or "-",
        measured.removesuffix(" (measured)"),
    ]


def _name(study: Study, group: Group) -> str:
    varying = [f"{axis_title(key)} {axis_text(group.keys[key])}" for key in study.facet_axes]
    return ", ".join([f"{group.name} {plain(group.strategy)}", *varying])
