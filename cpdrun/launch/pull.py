"""The executor that leaves runs to workers.

A worker is a process of `cpdrun sweep --join SWEEP`, on any machine that has access to the folder. Any scheduler can
start such a command on each machine. Runs are not assigned to workers. Instead, a worker claims a run
(`cpdrun.record.lock`) before it trains the run.
"""

import time
from typing import Any

from cpdrun.config.schema import find_problem
from cpdrun.launch.attempt.connection import WarmEngine
from cpdrun.launch.attempt.ending import end_of
from cpdrun.launch.base import Event, Executor, Job, LaunchOptions
from cpdrun.record import (
    Ending,
    Outcome,
    RunDir,
    State,
    SweepDir,
    is_claimed,
    read_config,
    read_overrides,
    state_of,
)

WATCH_S = 1.0
TAKEN = {
    State.PENDING,
    State.PREEMPTED,
    State.RUNNING,
}  # The last state is included, because another worker may stop a run before it has ended.
READ_HERE = (
    "nproc",
    "threads",
    "device",
    "patience_s",
    "limit_s",
)  # the config keys that are read before a run begins


class PullExecutor(Executor):
    """An executor that starts no processes itself, but watches the runs of workers.

    Args:
        sweep: The sweep. If the launch is stopped, the workers of this sweep stop.
        options: Not used.
        warm: Not used.
    """

    idle_options = ("jobs", "jobs_per_gpu", "max_parallel", "retries")
    slots = 0

    def __init__(self, *, sweep: SweepDir, options: LaunchOptions, warm: WarmEngine | None = None) -> None:
        self._sweep = sweep
        self._jobs: dict[str, Job] = {}
        self._known: dict[str, int] = {}
        self._begun: set[str] = set()
        self._cancelled = False
        self._looked = 0.0

    @property
    def note(self) -> str:  # type: ignore[override]  # an attribute in the base class
        failed = any(state_of(job.run) is State.FAILED for job in self._jobs.values())
        return f"To train the runs, type cpdrun sweep --join {self._sweep.path}{' --rerun failed' if failed else ''}"

    def submit(self, jobs: list[Job]) -> None:
        for job in jobs:
            self._jobs[job.run.name] = job
            self._known[job.run.name] = job.run.attempts_so_far

    def poll(self, timeout_s: float) -> list[Event]:
        time.sleep(timeout_s)
        if time.monotonic() - self._looked < WATCH_S:
            return []
        self._looked = time.monotonic()
        return [event for job in list(self._jobs.values()) for event in self._look(job)]

    def cancel(self, *, now: bool) -> None:
        self._cancelled = True
        self._sweep.stop.touch()
        for job in self.running:
            job.run.preempt.touch()
        if now:
            self._jobs.clear()

    def close(self) -> None:
        """Do nothing, because workers continue without this process."""

    @property
    def running(self) -> list[Job]:
        return [self._jobs[name] for name in self._begun if name in self._jobs]

    @property
    def unfinished(self) -> int:
        return len(self._jobs)

    def _look(self, job: Job) -> list[Event]:
        name, events = job.run.name, []
        claimed = is_claimed(job.run) and not job.run.done.exists()
        outcome = None if claimed else end_of(job.run, self._known[name])
        if outcome is None and not claimed and self._cancelled:
            outcome = Outcome(Ending.PREEMPTED, reason="stopped, or never begun")
        if claimed and name not in self._begun:
            events.append(Event(job))
        self._begun = self._begun | {name} if claimed else self._begun - {name}
        if outcome is not None:
            del self._jobs[name]
            events.append(Event(job, outcome, elsewhere=True))
        return events


class Pool:
    """The runs of a sweep that a worker may train: waiting, stopped, and, if `failed` is true, failed runs.

    Runs that other workers train are included, because this worker continues them if their worker is killed.

    Attributes:
        unreadable: The problem of each run that cannot be read, keyed by the name of the run.
    """

    def __init__(self, sweep: SweepDir, *, failed: bool = False) -> None:
        self._sweep = sweep
        self._wanted = TAKEN | {State.FAILED} if failed else TAKEN
        self._seen: set[str] = set()
        self.unreadable: dict[str, str] = {}

    def take(self, *_: Any) -> list[Job]:
        """Return the jobs that were added since the last call."""
        jobs = []
        for run in self._sweep.runs():
            if run.name in self._seen or not run.config.exists():
                continue
            self._seen.add(run.name)
            try:
                if state_of(run) in self._wanted:
                    jobs.append(_job(run))
            except OSError as error:
                self.unreadable[run.name] = f"{error.filename or run.path}: {error.strerror}"
            except ValueError as error:
                self.unreadable[run.name] = f"{run.config}: {error}"
        return jobs


def _job(run: RunDir) -> Job:
    config = read_config(run)
    for key in READ_HERE:
        if problem := find_problem(key, config[key]) if key in config else "is missing":
            raise ValueError(f"{key}: {problem}")
    return Job(run, config, read_overrides(run), is_written=True)
