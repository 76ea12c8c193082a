"""Why each group that is worse than its baseline is: what the page has in its section of that name."""

from cpdrun.report.tables import Shown
from cpdrun.report.why import words
from cpdrun.report.why.beside import beside, is_mend
from cpdrun.report.why.chain import chain, together
from cpdrun.report.why.reason import Cause, reason
from cpdrun.report.why.seen import seen
from cpdrun.report.why.standing import row_of, standing
from cpdrun.study.axes.titles import axis_text, axis_title, plain
from cpdrun.study.groups.group import Group
from cpdrun.study.runs.history import rows_of
from cpdrun.study.study import Study

MOST = 12  # groups, those of fewest bits lost first in the table of means
HEADER = ["run", "against the baseline", "main reason", "where", "when", "measured beside it"]


def shown(study: Study) -> tuple[list[str], Shown] | None:
    """What is said above it, and a row for each group that is worse, by one of its runs; None where none is, or no
    record says why."""
    worse = [
        group for group in study.groups if not group.is_baseline and group.runs and _is_worse(study, group)
    ]
    rows = [row for group in worse[:MOST] if (row := _row(study, group)) is not None]
    if not rows:
        return None
    said = [
        "What the gradients' sums lost in the runs that are worse, by one run of each; more: cpdrun explain RUN."
    ]
    if len(worse) > MOST:
        said.append(f"{len(worse) - MOST} more groups are worse, and not shown here.")
    return said, Shown(HEADER, rows, 1)


def _is_worse(study: Study, group: Group) -> bool:
    """Return whether a group is refuted, or had a run that failed, or has a mean outside of the margin."""
    gap = study.against_baseline(group)
    if gap is None:
        return group.diverged > 0 or group.gave_up > 0
    return not study.may_be_within(group) or -gap.mean * study.metric.scale > study.tolerance


def _row(study: Study, group: Group) -> list[str] | None:
    run = group.runs[0]
    found = reason(seen(rows_of(run)))
    if found.cause is Cause.UNSEEN:
        return None
    row, stands = row_of(study, run), standing(study, run)
    workers = row.get("world_size")
    if not isinstance(workers, int):
        return None
    sync = {key: row.get(f"sync.{key}") for key in ("order", "group_size")}
    because = words.cause(
        found,
        aps=bool(row.get("aps")),
        chain=chain(sync, workers),
        workers=workers,
        together=together(sync, workers),
    )
    mends = [one for one in beside(study, run, stands) if is_mend(study, stands, one)]
    beside_it = words.measured(study, mends[0], found).removesuffix(" (measured)") if mends else "-"
    lost = "diverged" if group.diverged else words.gap(study, stands).split(" (")[0]
    nowhere = found.cause is Cause.EXACT
    return [
        _name(study, group),
        lost,
        because,
        "-" if nowhere else words.layers(found),
        words.when(found) or "-",
        beside_it,
    ]


def _name(study: Study, group: Group) -> str:
    varying = [f"{axis_title(key)} {axis_text(group.keys[key])}" for key in study.facet_axes]
    return ", ".join([f"{group.name} {plain(group.strategy)}", *varying])
