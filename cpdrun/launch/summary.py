"""The summary of a launch: the outcomes of its runs, and the share of the core-seconds that was spent on training."""

import time
from dataclasses import dataclass, field

from cpdrun.errors import FAILED, INTERRUPTED, OK
from cpdrun.launch.base import Event, Job
from cpdrun.record import Ending


@dataclass
class FailedRun:
    """A run that failed.

    Attributes:
        run: The name of the run.
        reason: The reason why it failed.
    """

    run: str
    reason: str


@dataclass
class LeftRunning:
    """Processes that still run after their run has ended.

    Attributes:
        run: The name of the run.
        processes: A description of the processes.
    """

    run: str
    processes: str


@dataclass
class Summary:
    """The number of runs of a launch that ended in each way.

    Attributes:
        done: The number of runs that finished.
        diverged: The number of runs that diverged.
        did_not_learn: The number of runs that did not learn.
        failed: The runs that failed.
        interrupted: The number of runs that are left to do because the launch was stopped.
        submitted: The number of runs that were submitted to a scheduler. Their results are not known yet.
        wall_seconds: The duration of the launch in seconds.
        left_running: Processes that still run after their runs have ended.
        training_share: The share of the core-seconds that was spent on training. None if no run ended on this machine.
    """

    done: int = 0
    diverged: int = 0
    did_not_learn: int = 0
    failed: list[FailedRun] = field(default_factory=list)
    interrupted: int = 0
    submitted: int = 0
    wall_seconds: float = 0.0
    left_running: list[LeftRunning] = field(default_factory=list)
    training_share: float | None = None

    @property
    def exit_code(self) -> int:
        """The exit code of a command that launched these runs."""
        if self.failed:
            return FAILED
        return INTERRUPTED if self.interrupted else OK


@dataclass
class JoinedSweep:
    """A sweep whose waiting runs were trained.

    Attributes:
        sweep: The folder of the sweep.
        summary: The number of runs that ended in each way, or null if no run was left.
    """

    sweep: str
    summary: Summary | None


@dataclass
class WorkDocument:
    """The runs that `cpdrun sweep --join` has trained.

    Attributes:
        sweeps: The sweeps on the command line.
        notes: Further notes for the user.
    """

    sweeps: list[JoinedSweep]
    notes: list[str]


class Tally:
    """Counts the events of a launch.

    Args:
        began: The time at which the launch began, by time.monotonic.

    Attributes:
        jobs: The number of jobs that were submitted, or would have been if the launch had not been stopped.
    """

    def __init__(self, began: float) -> None:
        self.jobs = 0
        self._began = began
        self._summary = Summary()
        self._started: dict[str, float] = {}
        # For each run that this launch has trained: the job, and the duration of the run in seconds.
        self._executed: dict[str, tuple[Job, float]] = {}

    def event(self, event: Event) -> None:
        """Count the start or the end of a run."""
        name = event.job.run.name
        if event.outcome is None:
            self._started[name] = time.monotonic()
            return
        if not event.elsewhere:
            self._executed[name] = (event.job, time.monotonic() - self._started.get(name, self._began))
        if event.outcome.left_running:
            self._summary.left_running.append(LeftRunning(name, event.outcome.left_running))
        status = event.outcome.status
        self._summary.done += status is Ending.FINISHED
        self._summary.diverged += status is Ending.DIVERGED
        self._summary.did_not_learn += status is Ending.DID_NOT_LEARN
        if status.is_failure:
            self._summary.failed.append(FailedRun(name, event.outcome.reason))

    def summary(self, slots: int, *, waited: bool) -> Summary:
        """Return the summary of all events so far.

        Args:
            slots: The number of ranks that the executor runs at the same time, or 0 if a scheduler decides.
            waited: Whether the launch waited for its runs. If not, the runs without a result count as submitted.
        """
        summary = self._summary
        ended = summary.done + summary.diverged + summary.did_not_learn + len(summary.failed)
        left = self.jobs - ended
        summary.interrupted, summary.submitted = (left, 0) if waited else (0, left)
        summary.wall_seconds = time.monotonic() - self._began
        summary.training_share = training_share(list(self._executed.values()), slots, summary.wall_seconds)
        return summary


def training_share(jobs: list[tuple[Job, float]], slots: int, wall_seconds: float) -> float | None:
    """Return the share of `wall_seconds * slots` that was spent training.

    Args:
        jobs: The jobs that this launch has executed, each with its duration in seconds.
        slots: The number of ranks that run at the same time, or 0 if a scheduler decides.
        wall_seconds: The duration of the launch.

    Returns:
        The share, or None if no job has a result or `slots` is 0.
    """
    training = 0.0
    for job, seconds in jobs:
        result = job.run.result()
        if result is not None:
            # The record of a resumed run includes the training in earlier launches, which must not count here.
            training += min(result.train_seconds or 0.0, seconds) * min(job.nproc, slots)
    return training / (wall_seconds * slots) if training else None
