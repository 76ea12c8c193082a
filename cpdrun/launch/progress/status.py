"""How far a sweep is, read from its run directories alone: from any shell, on any machine that sees them."""

import statistics
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cpdrun.launch.base import LaunchError
from cpdrun.launch.executors import schedulers
from cpdrun.launch.progress.axes import IN_NAMES, axes_of, headings, values_of
from cpdrun.launch.progress.display import duration
from cpdrun.record import Ending, Progress, RunDir, State, SweepDir, Where, garbage, state_of
from cpdrun.shell.sanitize import visible

WATCH_S = 2.0
IDLE_S = 20.0  # between two runs, and before a first one, nothing runs for some seconds
LONGEST_NAME = 60  # columns; a longer one gives way to what else there is to say
WIDE = 110  # columns of a terminal with room for a reason beside a run
OF_PROGRESS = ("epoch", "epochs", "test_accuracy", "judged_by", "value")
ACCURACY = "accuracy"
STYLES = {
    State.DONE: "green",
    State.RUNNING: "cyan",
    State.FAILED: "red",
    State.PREEMPTED: "yellow",
    State.PENDING: "dim",
}


@dataclass(frozen=True)
class RunStatus:
    """The progress of a run. Values that are not known are None.

    Attributes:
        name: The name of the run.
        state: Its state.
        epoch: The number of epochs that were trained.
        epochs: The number of epochs to train.
        test_accuracy: The accuracy in the last epoch that was evaluated, from 0 to 1.
        judged_by: For a user's script, the metric by which the run is judged.
        value: The last value of that metric.
        diverged: Whether the loss was not finite.
        did_not_learn: Whether the run did not learn.
        attempt: The number of the last attempt.
        where: The machine of the last attempt.
        seconds_left: How long the run will take.
        reason: Why the run failed, or "".
        axes: The value of the run on each axis of the sweep.
    """

    name: str
    state: State
    epoch: int | None = None
    epochs: int | None = None
    test_accuracy: float | None = None
    judged_by: str | None = None
    value: float | None = None
    diverged: bool = False
    did_not_learn: bool = False
    attempt: int | None = None
    where: str | None = None
    seconds_left: float | None = None
    reason: str = ""
    axes: dict[str, str] = field(default_factory=dict)

    @property
    def shown_state(self) -> str:
        return "diverged" if self.diverged else "did not learn" if self.did_not_learn else self.state


@dataclass(frozen=True)
class SweepStatus:
    """The progress of a sweep.

    Attributes:
        sweep: The folder of the sweep.
        counts: The number of runs in each state.
        runs: The runs of the sweep.
    """

    sweep: str
    counts: dict[str, int]
    runs: list[RunStatus]


@dataclass(frozen=True)
class StatusDocument:
    """The progress of sweeps."""

    sweeps: list[SweepStatus]


def run_status(run: RunDir, axes: Sequence[str] = ()) -> RunStatus:
    """The state of one run. A pending one costs a look at four file names.

    What cannot be read, or is not what cpdrun wrote, is failed, with that for a reason: it keeps no other run from
    being looked at.
    """
    values = values_of(run, axes)
    try:
        return _run_status(run, values)
    except OSError as error:
        reason = f"cannot be read: {error.strerror}: {error.filename or run.path}"
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
        reason = f"cannot be read: {type(error).__name__}: {error}"
    return RunStatus(run.name, State.FAILED, reason=reason, axes=values)


def _run_status(run: RunDir, axes: dict[str, str]) -> RunStatus:
    state = state_of(run)
    if state is State.PENDING:
        return RunStatus(run.name, state, axes=axes)
    progress = run.progress()
    known: dict[str, Any] = {"axes": axes}
    if progress is not None:
        known |= {key: getattr(progress, key) for key in OF_PROGRESS}
    attempt = run.last_attempt()
    where = attempt.whereabouts() if attempt else Where()
    known |= {"attempt": attempt and attempt.number, "where": _place(where)}
    if state is State.DONE:
        result = run.result()
        if result is None:
            known["reason"] = garbage(run)
        else:
            known["diverged"] = result.status is Ending.DIVERGED
            known["did_not_learn"] = result.status is Ending.DID_NOT_LEARN
            known["test_accuracy"] = result.metrics.get("test_accuracy")
    elif state is State.RUNNING:
        known["seconds_left"] = None if progress is None else _seconds_left(progress, where)
    elif attempt is not None:
        outcome = attempt.outcome()
        known["reason"] = "killed, with its agent" if outcome is None else outcome.reason
    if attempt is not None and (losses := attempt.losses()):
        restarts, lost_s = (sum(getattr(loss, of) for loss in losses) for of in ("restarts", "seconds"))
        again = f"{restarts} x started again, {lost_s:.1f} s of work lost"
        known["reason"] = "; ".join(filter(None, (known.get("reason"), again)))
    return RunStatus(run.name, state, **known)


def sweep_status(sweep: SweepDir) -> list[RunStatus]:
    """Every run of `sweep`, in the order of their names."""
    axes = axes_of(sweep)
    return [run_status(run, axes) for run in sweep.runs()]


def print_status(console: Console, sweep: SweepDir, *, watch: bool = False) -> None:
    """A table of the runs that are not pending, and the counts of all.

    With `watch` again and again, until all runs are done or have failed, or none has run for IDLE_S and none waits
    in a scheduler's queue: whoever launched them is gone.
    """
    if not watch:
        console.print(render(sweep, sweep_status(sweep), width=console.width))
        return
    ran = time.monotonic()
    with Live(console=console, auto_refresh=False) as live:
        while True:
            rows = sweep_status(sweep)
            table = render(sweep, rows, width=console.width, height=console.height - 4)
            live.update(table, refresh=True)
            states = {row.state for row in rows}
            if states <= {State.DONE, State.FAILED}:
                return
            if State.RUNNING in states or _in_queue(sweep):
                ran = time.monotonic()
            elif time.monotonic() - ran > IDLE_S:
                return
            time.sleep(WATCH_S)


def _in_queue(sweep: SweepDir) -> bool:
    try:
        return any(scheduler.has_queued(sweep) for scheduler in schedulers())
    except LaunchError:  # no answer is no news: they may well wait
        return True


def sweep_document(sweep: SweepDir) -> SweepStatus:
    """Return the progress of a sweep for programs."""
    rows = sweep_status(sweep)
    counts = Counter(row.state for row in rows)
    return SweepStatus(str(sweep.path), {str(state): counts[state] for state in State}, rows)


def render(sweep: SweepDir, rows: list[RunStatus], width: int = WIDE, height: int | None = None) -> Group:
    """The table as rich draws it; with `height`, at most so many rows, those that run or failed first.

    Names are shown whole, to be copied. Where that leaves no room for reasons, they stand below the table.
    """
    order = [State.RUNNING, State.FAILED, State.PREEMPTED, State.DONE]
    shown = sorted((row for row in rows if row.state in order), key=lambda row: order.index(row.state))[
        :height
    ]
    wide = width >= WIDE
    table = _table(shown, wide=wide)
    for row, values in zip(shown, _axis_values(shown, wide=wide), strict=True):
        table.add_row(
            Text(visible(row.name)),
            *(Text(visible(value)) for value in values.values()),
            Text(row.shown_state, STYLES[row.state]),
            _how_far(row),
            _measured(row),
            "" if row.attempt is None else str(row.attempt),
            "" if row.seconds_left is None else duration(row.seconds_left),
            *([_on_a_line(row.reason or row.where or "")] if wide else []),
        )
    reasons = [] if wide else [Text(visible(f"{row.name}: {row.reason}")) for row in shown if row.reason]
    counts = Counter(row.state for row in rows)
    line = ", ".join(f"{counts[state]} {state}" for state in State if counts[state]) or "no runs yet"
    return Group(*([table] if shown else []), *reasons, Text(f"{visible(sweep.name)}: {line}"))


def _table(shown: list[RunStatus], *, wide: bool) -> Table:
    """The table without its rows."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    longest = max((len(visible(row.name)) for row in shown), default=0)
    table.add_column("run", no_wrap=True, overflow="ellipsis", min_width=min(longest, LONGEST_NAME))
    for key in headings(list(next(iter(_axis_values(shown, wide=wide)), {}))):
        table.add_column(Text(visible(key)), no_wrap=True, overflow="ellipsis")
    table.add_column("state", no_wrap=True, min_width=len("preempted"))
    for column, width in (("epoch", 5), (_heading(shown), 8), ("try", 3), ("left", 6)):
        table.add_column(column, justify="right", no_wrap=True, min_width=width)
    if wide:
        table.add_column(
            "where, or why"
        )  # may wrap, says rich, and so it alone gives way where room is short
    return table


def _on_a_line(text: str) -> Text:
    return Text(visible(text), no_wrap=True, overflow="ellipsis")


def _how_far(row: RunStatus) -> str:
    """`3/15`; of a script, which does not say how far it goes, `3`."""
    if row.epochs is not None:
        return f"{row.epoch}/{row.epochs}"
    return str(row.epoch) if row.judged_by and row.epoch else ""


def _measured(row: RunStatus) -> str:
    if row.judged_by is not None:
        return "" if row.value is None else f"{row.value:.4g}"
    return "" if row.test_accuracy is None else f"{100 * row.test_accuracy:.1f} %"


def _heading(shown: list[RunStatus]) -> str:
    """`accuracy`, or the metric of the scripts that are shown."""
    judges = {row.judged_by for row in shown} - {None}
    return visible(judges.pop()) if len(judges) == 1 else "metric" if judges else ACCURACY


def _axis_values(shown: list[RunStatus], *, wide: bool) -> list[dict[str, str]]:
    """Each row's value on each axis; where there is little room, on those that the names do not tell."""
    axes = dict.fromkeys(key for row in shown for key in row.axes if wide or key not in IN_NAMES)
    return [{key: row.axes.get(key, "") for key in axes} for row in shown]


def estimate_seconds(runs: Iterable[RunDir], todo: int, slots: int) -> float | None:
    """Wall time that `todo` further runs like those done among `runs` would take; None where none is done."""
    results = [result for run in runs if (result := run.result()) is not None]
    seconds = [result.wall_seconds for result in results if result.wall_seconds is not None]
    return statistics.median(seconds) * todo / min(slots, max(1, todo)) if seconds else None


def _place(where: Where) -> str | None:
    if where.host is None:
        return None
    agent = "?" if where.pid is None else where.pid
    return f"{where.host}, job {where.scheduled}" if where.scheduled else f"{where.host}, agent {agent}"


def _seconds_left(progress: Progress, where: Where) -> float | None:
    """From the pace of this attempt; None before its first epoch, and where the files do not say."""
    epochs = progress.epoch - where.from_epoch
    if epochs <= 0 or None in (progress.updated, progress.epochs, where.started):
        return None
    pace = (progress.updated - where.started) / epochs
    return max(0.0, pace * (progress.epochs - progress.epoch) - (time.time() - progress.updated))
