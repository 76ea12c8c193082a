"""The progress of a sweep, read only from the files in its folder.

Therefore, the progress can be shown in any shell and on any machine that has access to the folder.
"""

import statistics
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cpdrun.config.identity import hash_in
from cpdrun.launch.base import LaunchError
from cpdrun.launch.executors import schedulers
from cpdrun.launch.progress.axes import axes_and_runs, headings, values_not_in_name, values_of
from cpdrun.launch.progress.best_result import ACCURACY, BestResult, deciding, duration, label_of
from cpdrun.record import (
    Ending,
    Progress,
    Result,
    RunDir,
    State,
    SweepDir,
    Where,
    garbage,
    read_expected_runs,
    state_of,
)
from cpdrun.shell.sanitize import visible

WATCH_S = 2.0
# Watching ends if no run has been in progress for this number of seconds. A few seconds without a run are normal before
# the first run and between two runs.
IDLE_S = 20.0
LONGEST_NAME = 60  # Longer names are shortened, so that there is room for the other columns.
LONGEST_VALUE = 14  # Longer values of an axis are shortened if there is no room.
WIDE = (
    110  # A terminal with at least this many columns has room for the reason of a failure next to each run.
)
OF_PROGRESS = ("epoch", "epochs", "test_accuracy", "judged_by", "value")
STYLES = {
    State.DONE: "green",
    State.RUNNING: "cyan",
    State.FAILED: "red",
    State.PREEMPTED: "yellow",
    State.PENDING: "dim",
}


@dataclass(frozen=True)
class RunStatus:
    """The progress of a run. Unknown values are None.

    Attributes:
        name: The name of the run.
        state: The state of the run.
        epoch: The number of epochs trained so far.
        epochs: The number of epochs to train.
        test_accuracy: The test accuracy, from 0 to 1, in the last epoch that was evaluated.
        judged_by: The metric by which the run is judged, if it is not the test accuracy.
        value: The last value of that metric.
        diverged: Whether the loss was not finite.
        did_not_learn: Whether the run did not learn.
        attempt: The number of the last attempt.
        where: The machine of the last attempt.
        seconds_left: The estimated time until the run ends, in seconds.
        reason: The reason why the run failed, or "".
        axes: The run's values on the axes of the sweep, keyed by axis.
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
        """The state as it is displayed.

        A finished run that diverged or did not learn is displayed as `diverged` or `did not learn`.
        """
        return "diverged" if self.diverged else "did not learn" if self.did_not_learn else self.state

    @property
    def label(self) -> str:
        """The name of the run without its hash, followed by its values on axes that the name does not contain."""
        return label_of(self.name, values_not_in_name(self.name, self.axes))


@dataclass(frozen=True)
class BestRun:
    """The finished run with the best value of the metric that judges the runs.

    Attributes:
        run: The name of the run.
        metric: The name of the metric.
        value: The value of the metric.
    """

    run: str
    metric: str
    value: float


@dataclass(frozen=True)
class SweepStatus:
    """The progress of a sweep.

    Attributes:
        sweep: The folder of the sweep.
        counts: The number of runs in each state.
        runs: The runs of the sweep.
        best: The run with the best result so far. None if no run has finished.
        seconds_left: The estimated time until all runs have ended, in seconds. None if no run has finished or none is
            running.
    """

    sweep: str
    counts: dict[str, int]
    runs: list[RunStatus]
    best: BestRun | None = None
    seconds_left: float | None = None


@dataclass(frozen=True)
class StatusDocument:
    """The progress of sweeps."""

    sweeps: list[SweepStatus]


@dataclass(frozen=True)
class Snapshot:
    """The progress of a sweep at one moment, read from the files of its runs.

    Attributes:
        sweep: The sweep.
        rows: The progress of every run, sorted by name. Runs of sweep.yaml that have no folder yet are pending.
        results: The results of the finished runs, keyed by the name of the run.
    """

    sweep: SweepDir
    rows: list[RunStatus]
    results: dict[str, Result]

    @property
    def counts(self) -> Counter[State]:
        """The number of runs in each state."""
        return Counter(row.state for row in self.rows)

    @property
    def best(self) -> BestResult:
        """The best result so far, with the name of its run as the label."""
        best = BestResult()
        for row in self.rows:
            if row.state is State.DONE and not row.diverged:
                best.add(row.name, self.results.get(row.name))
        return best

    @property
    def seconds_left(self) -> float | None:
        """The estimated time in seconds until all runs have ended. It assumes that as many runs train at once as now.

        If a search has not chosen all its runs yet, the estimate is based on the expected number of runs. If no run is
        in progress or no run has finished, this is None.
        """
        running = [row for row in self.rows if row.state is State.RUNNING]
        a_run = median_seconds(self.results.values())
        if not running or a_run is None:
            return None
        counts = self.counts
        expected = read_expected_runs(self.sweep) - counts[State.DONE] - len(running)
        waiting = max(counts[State.PENDING] + counts[State.PREEMPTED], expected)
        now = sum(a_run / 2 if row.seconds_left is None else row.seconds_left for row in running)
        return (now + waiting * a_run) / len(running)


def run_status(run: RunDir, axes: Sequence[str] = ()) -> tuple[RunStatus, Result | None]:
    """Return the progress of a run, and its result if it has finished.

    If the record of a run cannot be read or was not written by cpdrun, the run counts as failed, and `reason` explains
    the problem. For a pending run, the function only checks whether four files exist, so it is fast.
    """
    values = values_of(run, axes)
    try:
        state = state_of(run)
        result = run.result() if state is State.DONE else None
        return _run_status(run, state, result, values), result
    except OSError as error:
        reason = f"cannot be read: {error.strerror}: {error.filename or run.path}"
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
        reason = f"cannot be read: {type(error).__name__}: {error}"
    return RunStatus(run.name, State.FAILED, reason=reason, axes=values), None


def _run_status(run: RunDir, state: State, result: Result | None, axes: dict[str, str]) -> RunStatus:
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
        if result is None:
            known["reason"] = garbage(run)
        else:
            known["diverged"] = result.status is Ending.DIVERGED
            known["did_not_learn"] = result.status is Ending.DID_NOT_LEARN
            known["test_accuracy"] = result.metrics.get(ACCURACY)
            if (found := deciding(result)) is not None and found.metric != ACCURACY:
                known |= {"judged_by": found.metric, "value": found.value}
    elif state is State.RUNNING:
        known["seconds_left"] = None if progress is None else _seconds_left(progress, where)
    elif attempt is not None:
        outcome = attempt.outcome()
        known["reason"] = "killed together with its agent" if outcome is None else outcome.reason
    if attempt is not None and (losses := attempt.losses()):
        restarts, lost_s = (sum(getattr(loss, of) for loss in losses) for of in ("restarts", "seconds"))
        times = f"{restarts} time{'s' if restarts != 1 else ''}"
        again = f"restarted {times}, {lost_s:.1f} s of work lost"
        known["reason"] = "; ".join(filter(None, (known.get("reason"), again)))
    return RunStatus(run.name, state, **known)


def sweep_status(sweep: SweepDir) -> Snapshot:
    """Return the progress of every run of a sweep. The files of each run are read once."""
    axes, listed = axes_and_runs(sweep)
    rows, results = [], {}
    for run in sweep.runs():
        row, result = run_status(run, axes)
        rows.append(row)
        if result is not None:
            results[row.name] = result
    there = {hash_in(row.name) or row.name for row in rows}
    rows += [RunStatus(name, State.PENDING) for name in listed if (hash_in(name) or name) not in there]
    return Snapshot(sweep, sorted(rows, key=lambda row: row.name), results)


def print_status(console: Console, snapshot: Snapshot) -> None:
    """Print a table of all runs except those that are pending, and the number of runs in each state."""
    if not console.is_terminal:  # In a file or pipe, lines may be longer than the console is wide.
        console = Console(file=console.file, width=max(console.width, 1000), highlight=False)
    console.print(render(snapshot, width=console.width))


def watch_status(console: Console, sweep: SweepDir) -> None:
    """Print the progress of a sweep, and update it until all runs are done or have failed.

    If the output is not a terminal, each change is printed as a line instead of updating the table. Watching also ends
    if no run has been in progress for IDLE_S seconds and none waits in the queue of a scheduler, because runs are then
    no longer being launched.
    """
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            for snapshot in _watched(sweep):
                table = render(snapshot, width=console.width, height=console.height - 4)
                live.update(table, refresh=True)
    else:
        _print_changes(console, sweep)


def _watched(sweep: SweepDir) -> Iterator[Snapshot]:
    """Yield the progress of all runs every WATCH_S seconds until nothing runs any more."""
    ran = time.monotonic()
    while True:
        snapshot = sweep_status(sweep)
        yield snapshot
        states = snapshot.counts.keys()
        if states <= {State.DONE, State.FAILED}:
            return
        if State.RUNNING in states or _in_queue(sweep):
            ran = time.monotonic()
        elif time.monotonic() - ran > IDLE_S:
            return
        time.sleep(WATCH_S)


def _print_changes(console: Console, sweep: SweepDir) -> None:
    """Print the number of runs in each state, then a line for each change, and finally the new numbers."""
    before: dict[str, str] | None = None
    shown = ""
    for snapshot in _watched(sweep):
        if before is None:
            console.print(Text(shown := _counts_line(snapshot)), soft_wrap=True)
        else:
            for row in snapshot.rows:
                if before.get(row.name, State.PENDING) != row.shown_state:
                    console.print(Text(_change_line(row)), soft_wrap=True)
        before = {row.name: row.shown_state for row in snapshot.rows}
    if (line := _counts_line(snapshot)) != shown:
        console.print(Text(line), soft_wrap=True)


def _change_line(row: RunStatus) -> str:
    """Return a line such as `done convnet-e4m3-w8-s0-1f0c2d3e4a  15/15  97.2%`."""
    values = values_not_in_name(row.name, row.axes)
    parts = [_how_far(row), _metric_text(row), row.reason if row.state is not State.RUNNING else row.where]
    return visible("  ".join(filter(None, [f"{row.shown_state} {' '.join([row.name, *values])}", *parts])))


def _in_queue(sweep: SweepDir) -> bool:
    try:
        return any(scheduler.has_queued(sweep) for scheduler in schedulers())
    except LaunchError:  # The scheduler does not answer, so assume that runs are waiting.
        return True


def sweep_document(snapshot: Snapshot) -> SweepStatus:
    """Return the progress of a sweep as a part of a JSON document."""
    best = snapshot.best
    result = best.result
    found = None if result is None else BestRun(best.label, result.metric, result.value)
    counts = snapshot.counts
    states = {str(state): counts[state] for state in State}
    return SweepStatus(str(snapshot.sweep.path), states, snapshot.rows, found, snapshot.seconds_left)


def render(snapshot: Snapshot, width: int = WIDE, height: int | None = None) -> Group:
    """Return the table of the runs that are not pending, and a line with the number of runs in each state.

    If the names of runs are too long for the width, the first column shows only the hashes, which identify the runs. If
    there is no room for a column of reasons, the reasons are printed below the table.

    Args:
        snapshot: The progress of a sweep.
        width: The width of the output.
        height: The maximum number of rows. Runs in progress come first, followed by failed runs.
    """
    order = [State.RUNNING, State.FAILED, State.PREEMPTED, State.DONE]
    shown = [row for row in snapshot.rows if row.state in order]
    shown = sorted(shown, key=lambda row: order.index(row.state))[:height]
    wide = width >= WIDE
    table = _table(shown, [row.name for row in shown], wide=wide)
    if shown and _least_width(table) > width and all(hash_in(row.name) for row in shown):
        table = _table(shown, [hash_in(row.name) for row in shown], wide=wide)
    reasons = [] if wide else [Text(visible(f"{row.name}: {row.reason}")) for row in shown if row.reason]
    return Group(*([table] if shown else []), *reasons, Text(_counts_line(snapshot)))


def _counts_line(snapshot: Snapshot) -> str:
    """Return a line with the number of runs in each state, the best result so far, and the time left."""
    counts = snapshot.counts
    states = ", ".join(f"{counts[state]} {state}" for state in State if counts[state]) or "no runs yet"
    labels = {row.name: row.label for row in snapshot.rows}
    best = snapshot.best
    best.label = labels.get(best.label, best.label)
    left = snapshot.seconds_left
    parts = [states, best.text, "" if left is None else f"about {duration(left)} left"]
    return f"{visible(snapshot.sweep.name)}: {'; '.join(filter(None, parts))}"


def _table(shown: list[RunStatus], names: Sequence[str], *, wide: bool) -> Table:
    """Return the table of runs.

    Args:
        shown: The runs.
        names: The text of the first column for each run.
        wide: Whether the table has a last column with the reason why a run failed. For other runs, this column shows
            the machine.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    axes = list(dict.fromkeys(key for row in shown for key in row.axes))
    longest = max((len(visible(name)) for name in names), default=0)
    table.add_column("run", no_wrap=True, overflow="ellipsis", min_width=min(longest, LONGEST_NAME))
    for key, heading in zip(axes, headings(axes), strict=True):
        longest = max((len(visible(row.axes.get(key, ""))) for row in shown), default=0)
        least = min(max(longest, len(visible(heading))), LONGEST_VALUE)
        table.add_column(Text(visible(heading)), no_wrap=True, overflow="ellipsis", min_width=least)
    table.add_column("state", no_wrap=True, min_width=len("preempted"))
    for column, width in (("epoch", 5), (_heading(shown), 8), ("try", 3), ("left", 6)):
        table.add_column(column, justify="right", no_wrap=True, min_width=width)
    if wide:
        table.add_column("where or why")  # Only this column may wrap, so rich shrinks only this column.
    rows = [
        [
            Text(visible(name)),
            *(Text(visible(row.axes.get(key, ""))) for key in axes),
            Text(row.shown_state, STYLES[row.state]),
            Text(_how_far(row)),
            Text(_metric_text(row)),
            Text("" if row.attempt is None else str(row.attempt)),
            Text("" if row.seconds_left is None else duration(row.seconds_left)),
            *([Text(visible(row.reason or row.where or ""))] if wide else []),
        ]
        for row, name in zip(shown, names, strict=True)
    ]
    # Each column is one cell with a line per run, because Rich lays out a few long cells faster than many short ones.
    newline = Text("\n", no_wrap=True, overflow="ellipsis")
    if rows:
        table.add_row(*(newline.join(column) for column in zip(*rows, strict=True)))
    return table


def _least_width(table: Table) -> int:
    """Return the width of a table whose columns are all as narrow as possible."""
    return sum((column.min_width or 0) + 2 for column in table.columns)


def _how_far(row: RunStatus) -> str:
    """Return the progress in epochs, such as `3/15`, or `3` if the number of epochs is unknown."""
    if row.epochs is not None:
        return f"{row.epoch}/{row.epochs}"
    return str(row.epoch) if row.judged_by and row.epoch else ""


def _metric_text(row: RunStatus) -> str:
    if row.judged_by is not None:
        return "" if row.value is None else f"{row.value:.4g}"
    return "" if row.test_accuracy is None else f"{100 * row.test_accuracy:.1f}%"


def _heading(shown: list[RunStatus]) -> str:
    """Return the heading of the column of metrics.

    If no run is judged by a metric other than test accuracy, the heading is `accuracy`. If there is one other metric,
    the heading is its name. If there are several, it is `metric`.
    """
    metrics = {row.judged_by for row in shown if row.judged_by is not None}
    return visible(metrics.pop()) if len(metrics) == 1 else "metric" if metrics else "accuracy"


def estimate_seconds(runs: Iterable[RunDir], todo: int, slots: int) -> float | None:
    """Estimate the duration of further runs, assuming that each takes the median duration of the finished runs.

    Args:
        runs: The runs of the sweep. Runs without a result are ignored.
        todo: The number of further runs.
        slots: The number of runs at a time.

    Returns:
        The wall time in seconds, or None if no run has finished.
    """
    a_run = median_seconds(result for run in runs if (result := run.result()) is not None)
    return None if a_run is None else a_run * todo / min(slots, max(1, todo))


def median_seconds(results: Iterable[Result]) -> float | None:
    """Return the median duration of runs in seconds. None if no duration is known."""
    seconds = [result.wall_seconds for result in results if result.wall_seconds is not None]
    return statistics.median(seconds) if seconds else None


def _place(where: Where) -> str | None:
    if where.host is None:
        return None
    agent = "?" if where.pid is None else where.pid
    return f"{where.host}, job {where.scheduled}" if where.scheduled else f"{where.host}, agent {agent}"


def _seconds_left(progress: Progress, where: Where) -> float | None:
    """Estimate the time in seconds until a run ends, from the time per epoch in its current attempt.

    Return None if the attempt has not completed an epoch, or if its files do not contain the times or the number of
    epochs.
    """
    epochs = progress.epoch - where.from_epoch
    if epochs <= 0 or progress.updated is None or progress.epochs is None or where.started is None:
        return None
    pace = (progress.updated - where.started) / epochs
    return max(0.0, pace * (progress.epochs - progress.epoch) - (time.time() - progress.updated))
