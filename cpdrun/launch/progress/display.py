"""What the user sees while a sweep runs: a live table on a terminal, else a line a start and an end."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cpdrun.launch.attempt.ending import tail
from cpdrun.launch.base import Event, Job
from cpdrun.launch.progress.axes import IN_NAMES, values_in
from cpdrun.launch.summary import Summary
from cpdrun.record import Progress, Result, RunDir
from cpdrun.record.measure import ACCURACY
from cpdrun.record.run_end import DISK_FULL
from cpdrun.shell.sanitize import visible, visible_line
from cpdrun.shell.terminal import live

REFRESH_S = 0.5
LOG_LINES = 12  # of a failed run, at the end
FAILURES_SHOWN = 5
LEFT_SHOWN = 5
STYLES = {"finished": "green", "diverged": "yellow", "did not learn": "yellow", "preempted": "yellow"}


class Display:
    """Follows the events of a sweep; a context manager, because a live table must be taken down again."""

    def __init__(self, console: Console, axes: Sequence[str] = ()) -> None:
        self.console = console
        self.total = 0
        self.axes = [key for key in axes if key not in IN_NAMES]
        self.message = ""
        self._ended = 0
        self._executed = 0.0  # runs' worth of work done here, fractions included
        self._began = time.monotonic()
        self._started: dict[str, float] = {}
        self._refreshed = 0.0
        self._live = live(console)

    def __enter__(self) -> "Display":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._live is not None:
            self._live.stop()

    def expect(self, runs: int) -> None:
        """So many runs more are to come."""
        self.total += runs

    def event(self, event: Event) -> None:
        name = event.job.run.name
        if event.outcome is None:
            self._started[name] = time.monotonic()
            if self._live is None:
                self.console.print(f"start {self._called(event.job)}", highlight=False, soft_wrap=True)
            return
        self._ended += 1
        self._executed += not event.elsewhere
        status = event.outcome.status
        if self._live is None or not status.has_result:
            started = self._started.get(name)  # None: another process ran it
            took = "" if started is None else f"  {duration(time.monotonic() - started)}"
            how = f"{visible(_result(event))}{took}  [{self._ended}/{self.total}]"
            line = Text.assemble((status, STYLES.get(status, "red")), f" {self._called(event.job)}  {how}")
            self.console.print(line, highlight=False, soft_wrap=True)

    def say(self, message: str) -> None:
        """A word to the user that stays in view."""
        self.message = message
        if self._live is None:
            self.console.print(message, highlight=False, soft_wrap=True)

    def update(self, running: list[Job]) -> None:
        """Draw the table anew, at most every REFRESH_S."""
        if self._live is None or time.monotonic() - self._refreshed < REFRESH_S:
            return
        self._refreshed = time.monotonic()
        progress = [(job, job.run.progress() or Progress()) for job in running]
        self._live.update(self._table(progress), refresh=True)

    def _called(self, job: Job) -> str:
        """Return the name of the run, followed by its values on axes that the name does not contain."""
        values = values_in(job.overrides, self.axes)
        return visible(" ".join([job.run.name, *(f"{key}={value}" for key, value in values.items())]))

    def _table(self, progress: list[tuple[Job, Progress]]) -> Group:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("run", no_wrap=True, overflow="ellipsis")
        of_script = any(status.judged_by for _, status in progress)
        for column in ("epoch", "metric" if of_script else "accuracy", "time"):
            table.add_column(column, justify="right", no_wrap=True)
        for job, status in progress[: max(1, self.console.height - 6)]:
            name = job.run.name
            accuracy = status.test_accuracy
            table.add_row(
                Text(self._called(job)),
                f"{status.epoch}/{status.epochs}" if status.epochs is not None else str(status.epoch or "-"),
                _measured(status) if accuracy is None else f"{100 * accuracy:.1f} %",
                duration(time.monotonic() - self._started.get(name, time.monotonic())),
            )
        fractions = sum(status.fraction for _, status in progress)
        left = self._seconds_left(fractions)
        overall = Table.grid(padding=(0, 2, 0, 0))
        overall.add_row(
            ProgressBar(total=self.total, completed=self._ended + fractions, width=40),
            f"{self._ended}/{self.total} runs",
            "" if left is None else f"{duration(left)} left",
            Text(self.message, style="yellow"),
        )
        return Group(table, overall)

    def _seconds_left(self, fractions: float) -> float | None:
        executed = self._executed + fractions
        if executed < 0.5:
            return None
        return (time.monotonic() - self._began) / executed * (self.total - self._ended - fractions)


def print_summary(console: Console, summary: Summary) -> None:
    """The end of a sweep: the logs of what failed, then one line of counts and one of efficiency."""
    full = [run for run, reason in summary.failed if DISK_FULL in reason]
    others = [(run, reason) for run, reason in summary.failed if DISK_FULL not in reason]
    runs_of: dict[str, list[RunDir]] = {}
    for run, reason in others:
        runs_of.setdefault(reason, []).append(run)
    for reason, (run, *same) in list(runs_of.items())[:FAILURES_SHOWN]:
        _print_failure(console, run, reason)
        _print_names(console, "failed for the same reason", same)
    not_shown = list(runs_of.values())[FAILURES_SHOWN:]
    _print_names(console, "failed too", [run for runs in not_shown for run in runs])
    if full:
        words = f"{DISK_FULL}: {full[0].sweep.path}; {len(full)} failed of it. Make room, then type the command again"
        console.print(Text.assemble(("failed ", "red"), visible(words)), highlight=False, soft_wrap=True)
    for run, processes in summary.left_running[:LEFT_SHOWN]:
        console.print(visible_line(f"left running by {run.name}: {processes}"), markup=False, soft_wrap=True)
    if len(summary.left_running) > LEFT_SHOWN:
        more = len(summary.left_running) - LEFT_SHOWN
        console.print(
            f"{more} more runs left processes running; exit.json of each names them", highlight=False
        )
    counts = [f"{summary.done} done"]
    for count, word in (
        (summary.diverged, "diverged"),
        (summary.did_not_learn, "did not learn"),
        (len(summary.failed), "failed"),
        (summary.interrupted, "left to do"),
        (summary.submitted, "submitted"),
    ):
        if count:
            counts.append(f"{count} {word}")
    line = f"{', '.join(counts)} in {duration(summary.wall_seconds)}"
    if summary.training_share is not None:
        line += f"; training took {100 * summary.training_share:.0f} % of the core-seconds"
    console.print(line, highlight=False, soft_wrap=True)
    if summary.interrupted:
        console.print("The same command goes on from here.", highlight=False)


def informative_log(run: RunDir) -> Path | None:
    """The log of the last attempt that says most: the failing rank's, rank 0's where none failed, or the agent's."""
    attempt = run.last_attempt()
    if attempt is None:
        return None
    outcome = attempt.outcome()
    rank = (outcome and outcome.rank) or 0
    for log in (attempt.rank_log(rank), attempt.agent_log):
        if tail(log, 1):
            return log
    return None


def _print_names(console: Console, what: str, runs: Sequence[RunDir]) -> None:
    if runs:
        names = ", ".join(visible(run.name) for run in runs)
        console.print(f"{what}: {names}", highlight=False, markup=False, soft_wrap=True)


def _print_failure(console: Console, run: RunDir, reason: str) -> None:
    """Print the reason, followed by the last lines of the log that do not only repeat it."""
    console.print(
        Text.assemble(("failed ", "red"), visible(f"{run.name}: {reason}")), highlight=False, soft_wrap=True
    )
    if (log := informative_log(run)) is not None:
        for line in [line for line in tail(log, 2 * LOG_LINES) if line.strip() != reason][-LOG_LINES:]:
            console.print(f"    {visible_line(line)}", highlight=False, markup=False, soft_wrap=True)
        console.print(
            f"    the rest is in {visible(str(log))}", highlight=False, markup=False, soft_wrap=True
        )


def _result(event: Event) -> str:
    result = event.job.run.result()
    if result is not None and event.outcome.status.has_result:
        accuracy = result.metrics.get("test_accuracy")
        known = result.measures.get("test_accuracy") in (None, ACCURACY)
        judged = _judged(result)
        if accuracy is None or not known or (judged and result.judge not in (None, "test_accuracy")):
            return judged
        return f"test accuracy {100 * accuracy:.1f} %"
    return event.outcome.reason


def _judged(result: Result) -> str:
    """`val loss 0.4123`."""
    value = result.metrics.get(result.judge) if result.judge else None
    if value is None:
        return ""
    measure = result.measures.get(result.judge)
    shown = f"{100 * value:.1f} %" if measure and measure.shown == "percent" else f"{value:.4g}"
    return f"{visible(result.judge).replace('_', ' ')} {shown}"


def _measured(status: Progress) -> str:
    return "-" if status.value is None else f"{visible(status.judged_by or '')} {status.value:.4g}"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s"
