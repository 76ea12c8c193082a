"""The display while a sweep runs: a line for each run that ends and, on a terminal, a live table."""

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
from cpdrun.launch.progress.axes import values_in, values_not_in_name
from cpdrun.launch.progress.best_result import BestResult, deciding, duration, label_of
from cpdrun.launch.summary import Summary
from cpdrun.record import Ending, Outcome, Progress, RunDir, SweepDir, read_overrides
from cpdrun.record.run_end import DISK_FULL
from cpdrun.shell.sanitize import visible, visible_line
from cpdrun.shell.terminal import live

REFRESH_S = 0.5
LOG_LINES = 12  # the number of lines of a failed run's log that the summary shows
FAILURES_SHOWN = 5
LEFT_SHOWN = 5
STYLES = {"finished": "green", "diverged": "yellow", "did not learn": "yellow", "preempted": "yellow"}


class Display:
    """The display of a launch, as a context manager.

    For each run that ends, a line shows its metric, the best result so far, and an estimate of the time left. On a
    terminal, a live table shows the runs in progress. Elsewhere, a line is printed for each run that starts, too.

    Args:
        console: The console to print on.
        axes: The axes of the sweep. If a run's name does not contain its value on an axis, the value is shown
            after the name.
        metric: The metric to show for each run that ends. With None, it is the metric by which the run is judged.

    Attributes:
        held_back: The number of runs that are submitted later. They are included in `total`.
    """

    def __init__(self, console: Console, axes: Sequence[str] = (), metric: str | None = None) -> None:
        self.console = console
        self.axes = list(axes)
        self.metric = metric
        self.message = ""
        self.held_back = 0
        self._submitted = self._ended = 0
        self._executed = 0.0  # the number of runs that this launch has trained to their end
        self._began = time.monotonic()
        self._started: dict[str, float] = {}
        self._running: dict[str, Job] = {}
        self._best: BestResult | None = None
        self._reasons: set[str] = set()
        self._refreshed = 0.0
        self._live = live(console)

    def __enter__(self) -> "Display":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def total(self) -> int:
        """The number of runs of this launch, as far as they are known."""
        return self._submitted + self.held_back

    def expect(self, runs: int) -> None:
        """Increase the number of runs of this launch."""
        self._submitted += runs

    def event(self, event: Event) -> None:
        """Show the start or the end of a run."""
        name = event.job.run.name
        if event.outcome is None:
            self._started[name] = time.monotonic()
            self._running[name] = event.job
            if self._live is None:
                self._print(f"start {self._name_with_values(event.job)}")
            return
        self._running.pop(name, None)
        self._ended += 1
        self._executed += not event.elsewhere
        status = event.outcome.status
        parts = [self._name_with_values(event.job), visible(self._outcome_text(event.job, event.outcome))]
        if (
            started := self._started.get(name)
        ) is not None:  # It is None if another process has trained the run.
            parts.append(duration(time.monotonic() - started))
        parts.append(f"[{self._ended}/{self.total}]")
        if status is not Ending.PREEMPTED:
            parts += [self._best_text(event.job), self._time_left_text()]
        line = Text.assemble((status, STYLES.get(status, "red")), " ", "  ".join(filter(None, parts)))
        self.console.print(line, highlight=False, soft_wrap=True)

    def say(self, message: str) -> None:
        """Show a message above the live table. It remains visible."""
        self.message = message
        if self._live is None:
            self._print(message)

    def update(self, running: list[Job]) -> None:
        """Draw the live table, at most every REFRESH_S seconds."""
        if self._live is None or time.monotonic() - self._refreshed < REFRESH_S:
            return
        self._refreshed = time.monotonic()
        progress = [(job, job.run.progress() or Progress()) for job in running]
        self._live.update(self._table(progress), refresh=True)

    def _print(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _name_with_values(self, job: Job) -> str:
        return visible(" ".join([job.run.name, *self._values(job)]))

    def _values(self, job: Job) -> list[str]:
        """Return `key=value` for each axis whose value the name of the run does not contain."""
        return values_not_in_name(job.run.name, values_in(job.overrides, self.axes))

    def _outcome_text(self, job: Job, outcome: Outcome) -> str:
        """Return the metric that judges a run that has ended, or the reason why it failed.

        If an earlier run failed for the same reason, the reason is not repeated.
        """
        result = job.run.result()
        if result is not None and outcome.status.has_result:
            found = deciding(result, self.metric)
            return "" if found is None else found.text
        is_repeated = outcome.reason in self._reasons
        self._reasons.add(outcome.reason)
        return "for the same reason" if is_repeated and outcome.status.is_failure else outcome.reason

    def _best_text(self, job: Job) -> str:
        """Return the best result of the sweep so far. Runs of earlier launches are included."""
        if self._best is None:
            self._best = BestResult()
            for run in [run for run in job.run.sweep.runs() if run.name != job.run.name]:
                values = values_in(read_overrides(run), self.axes)
                self._best.add(label_of(run.name, values_not_in_name(run.name, values)), run.result())
        label = label_of(job.run.name, self._values(job))
        self._best.add(label, job.run.result())
        return "the best so far" if self._best.label == label else self._best.text

    def _time_left_text(self) -> str:
        progress = [job.run.progress() for job in self._running.values()]
        left = self._seconds_left(sum(status.fraction for status in progress if status is not None))
        return "" if left is None or self._ended == self.total else f"about {duration(left)} left"

    def _table(self, progress: list[tuple[Job, Progress]]) -> Group:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("run", no_wrap=True, overflow="ellipsis")
        of_script = any(status.judged_by for _, status in progress)
        for column in ("epoch", "metric" if of_script else "accuracy", "time"):
            table.add_column(column, justify="right", no_wrap=True)
        for job, status in progress[: max(1, self.console.height - 6)]:
            accuracy = status.test_accuracy
            table.add_row(
                Text(self._name_with_values(job)),
                f"{status.epoch}/{status.epochs}" if status.epochs is not None else str(status.epoch or "-"),
                _value_text(status) if accuracy is None else f"{100 * accuracy:.1f}%",
                duration(time.monotonic() - self._started.get(job.run.name, time.monotonic())),
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
        """Estimate the time left, in seconds, from the durations of the runs so far.

        Args:
            fractions: The completed fraction of training, summed over the runs in progress.

        Returns:
            The time left, or None if less than half a run has been trained.
        """
        executed = self._executed + fractions
        if executed < 0.5:
            return None
        return (time.monotonic() - self._began) / executed * (self.total - self._ended - fractions)


def print_summary(console: Console, sweep: SweepDir, summary: Summary) -> None:
    """Print the failures of a launch and the number of runs that ended in each way.

    Each reason for a failure is printed once, with the last lines of the log of one such run.
    """
    full = sum(DISK_FULL in failed.reason for failed in summary.failed)
    runs_of: dict[str, list[RunDir]] = {}
    for failed in summary.failed:
        if DISK_FULL not in failed.reason:
            runs_of.setdefault(failed.reason, []).append(sweep.run(failed.run))
    for reason, (run, *same) in list(runs_of.items())[:FAILURES_SHOWN]:
        _print_failure(console, run, reason, len(same))
        _print_names(console, "failed for the same reason", same)
    not_shown = list(runs_of.values())[FAILURES_SHOWN:]
    _print_names(console, "failed too", [run for runs in not_shown for run in runs])
    if full:
        ran = f"{full} run{'s' if full > 1 else ''}"
        words = f"{ran}: {DISK_FULL}: {sweep.path}. Free some space, then type the command again."
        console.print(Text.assemble(("failed ", "red"), visible(words)), highlight=False, soft_wrap=True)
    for left in summary.left_running[:LEFT_SHOWN]:
        line = f"left running by {left.run}: {left.processes}"
        console.print(visible_line(line), markup=False, soft_wrap=True)
    if len(summary.left_running) > LEFT_SHOWN:
        more = len(summary.left_running) - LEFT_SHOWN
        console.print(
            f"{more} more runs left processes running. The file exit.json of each run lists them",
            highlight=False,
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
        line += f"; training took {100 * summary.training_share:.0f}% of the core-seconds"
    console.print(line, highlight=False, soft_wrap=True)
    if summary.interrupted:
        console.print("The same command continues from here.", highlight=False)


def informative_log(run: RunDir) -> Path | None:
    """Return the most informative log of a run's last attempt, or None if there is no log with any text.

    If a rank failed, this is the log of that rank. Otherwise, it is the log of rank 0. If this log is empty, the log of
    the agent is returned instead.
    """
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


def _print_failure(console: Console, run: RunDir, reason: str, others: int) -> None:
    """Print the reason for a failure, followed by the last lines of the log. Lines that equal the reason are left out.

    Args:
        console: The console to print on.
        run: The first run that failed for this reason.
        reason: The reason.
        others: The number of other runs that failed for this reason.
    """
    more = f" and {others} more run{'s' if others > 1 else ''}" if others else ""
    text = Text.assemble(("failed ", "red"), visible(f"{run.name}{more}: {reason}"))
    console.print(text, highlight=False, soft_wrap=True)
    if (log := informative_log(run)) is not None:
        for line in [line for line in tail(log, 2 * LOG_LINES) if line.strip() != reason][-LOG_LINES:]:
            console.print(f"    {visible_line(line)}", highlight=False, markup=False, soft_wrap=True)
        console.print(
            f"    the whole log: {visible(str(log))}", highlight=False, markup=False, soft_wrap=True
        )


def _value_text(status: Progress) -> str:
    """Return the last value of the metric of a user's script, such as `val_loss 0.4123`."""
    return "-" if status.value is None else f"{visible(status.judged_by or '')} {status.value:.4g}"
