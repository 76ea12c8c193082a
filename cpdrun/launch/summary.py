"""How a sweep went: counts, and the share of the core-seconds that was training."""

import time
from dataclasses import dataclass, field

from cpdrun.errors import FAILED, INTERRUPTED, OK
from cpdrun.launch.base import Event, Job
from cpdrun.record import Ending, RunDir


@dataclass
class FailedRun:
    """A run that failed.

    Attributes:
        run: The name of the run.
        reason: Why it failed.
    """

    run: str
    reason: str


@dataclass
class LeftRunning:
    """Processes that outlive their run.

    Attributes:
        run: The name of the run.
        processes: The processes as text.
    """

    run: str
    processes: str


@dataclass
class SummaryDocument:
    """The numbers of runs of a launch by how they ended.

    Attributes:
        done: The number of runs that finished.
        diverged: The number of runs that diverged.
        did_not_learn: The number of runs that did not learn.
        failed: The runs that failed.
        interrupted: The number of runs that are left to do because the launch was stopped.
        submitted: The number of runs that were handed to a scheduler. Their results are not known yet.
        wall_seconds: How long the launch took.
        left_running: Processes that outlive their runs.
        training_share: The share of the core-seconds that was training. None if no run ended on this machine.
    """

    done: int
    diverged: int
    did_not_learn: int
    failed: list[FailedRun]
    interrupted: int
    submitted: int
    wall_seconds: float
    left_running: list[LeftRunning]
    training_share: float | None


@dataclass
class JoinedSweep:
    """A sweep whose waiting runs were trained.

    Attributes:
        sweep: The folder of the sweep.
        summary: The numbers of runs by how they ended, or null if no run was left.
    """

    sweep: str
    summary: SummaryDocument | None


@dataclass
class WorkDocument:
    """The runs that `cpdrun sweep --join` has trained.

    Attributes:
        sweeps: The sweeps that were named.
        notes: What a user should know in addition.
    """

    sweeps: list[JoinedSweep]
    notes: list[str]


@dataclass
class Summary:
    """`failed` lists (run, reason); `interrupted` counts what a stop left undone."""

    done: int = 0
    diverged: int = 0
    did_not_learn: int = 0
    failed: list[tuple[RunDir, str]] = field(default_factory=list)
    interrupted: int = 0
    submitted: int = 0  # handed to a scheduler that works on without us
    wall_seconds: float = 0.0
    left_running: list[tuple[RunDir, str]] = field(default_factory=list)  # run, processes that outlive it
    training_share: float | None = None  # of the core-seconds this machine offered; None where nothing ran

    @property
    def exit_code(self) -> int:
        if self.failed:
            return FAILED
        return INTERRUPTED if self.interrupted else OK

    def document(self) -> SummaryDocument:
        """Return the summary as a part of a command's document."""
        failed = [FailedRun(run.name, reason) for run, reason in self.failed]
        left_running = [LeftRunning(run.name, processes) for run, processes in self.left_running]
        return SummaryDocument(**{**vars(self), "failed": failed, "left_running": left_running})


class Tally:
    """Counts the events of a launch that began at `began`, by time.monotonic."""

    def __init__(self, began: float) -> None:
        self.jobs = 0
        self._began = began
        self._summary = Summary()
        self._started: dict[str, float] = {}
        self._executed: dict[str, tuple[Job, float]] = {}  # by name: the job, the seconds it took here

    def event(self, event: Event) -> None:
        name = event.job.run.name
        if event.outcome is None:
            self._started[name] = time.monotonic()
            return
        if not event.elsewhere:
            self._executed[name] = (event.job, time.monotonic() - self._started.get(name, self._began))
        if event.outcome.left_running:
            self._summary.left_running.append((event.job.run, event.outcome.left_running))
        status = event.outcome.status
        self._summary.done += status is Ending.FINISHED
        self._summary.diverged += status is Ending.DIVERGED
        self._summary.did_not_learn += status is Ending.DID_NOT_LEARN
        if status.is_failure:
            self._summary.failed.append((event.job.run, event.outcome.reason))

    def summary(self, slots: int, *, waited: bool) -> Summary:
        """Of all events so far, on an executor of so many slots."""
        summary = self._summary
        ended = summary.done + summary.diverged + summary.did_not_learn + len(summary.failed)
        left = self.jobs - ended
        summary.interrupted, summary.submitted = (left, 0) if waited else (0, left)
        summary.wall_seconds = time.monotonic() - self._began
        summary.training_share = training_share(list(self._executed.values()), slots, summary.wall_seconds)
        return summary


def training_share(jobs: list[tuple[Job, float]], slots: int, wall_seconds: float) -> float | None:
    """The part of wall time x slots that was spent training by `jobs`, each with the seconds it took here.

    None where no job ended well, or where slots is 0: they are not ours to count.
    """
    training = 0.0
    for job, seconds in jobs:
        result = job.run.result()
        if result is not None:  # a resumed run also counts the training of earlier launches; not here
            training += min(result.train_seconds or 0.0, seconds) * min(job.nproc, slots)
    return training / (wall_seconds * slots) if training else None
