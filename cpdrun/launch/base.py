"""Define jobs, the events of a launch, and the interface of executors."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from cpdrun.errors import FAILED, UserError
from cpdrun.record import Outcome, RunDir, SweepDir


class LaunchError(UserError):
    """Raised if a whole sweep cannot start or continue, for example because the scheduler is missing."""


class FolderGoneError(UserError):
    """Raised if the sweep's folder was moved or deleted while its runs trained."""

    exit_code = FAILED


@dataclass(frozen=True)
class Job:
    """A run to execute, with its config and the overrides that were typed for it."""

    run: RunDir
    config: dict[str, Any]
    overrides: list[str]
    is_written: bool = False  # whether config.yaml already exists and must not be written again

    @property
    def nproc(self) -> int:
        return self.config["nproc"]


@dataclass(frozen=True)
class LaunchOptions:
    """The options of a launch on the command line. None means that the value in conf/launcher/*.yaml is used."""

    jobs: int | None = None
    jobs_per_gpu: int | None = None
    max_parallel: int | None = None
    retries: int = 0
    kill_retries: int = 0  # further attempts on this machine after a signal killed a run
    fail_fast: bool = False
    keep_going: bool = False  # start all runs even if the first one fails at once
    wait: bool = True


@dataclass(frozen=True)
class Event:
    """The start of a job or, with an outcome, its end.

    Attributes:
        job: The job.
        outcome: How the job ended. None for a start.
        elsewhere: Whether another launcher or worker ran the job.
    """

    job: Job
    outcome: Outcome | None = None
    elsewhere: bool = False


@dataclass(frozen=True)
class Finding:
    """A line of `cpdrun doctor`.

    Attributes:
        what: The part of the machine, such as "torch" or "results".
        state: "ok" if the part works, "no" if it is absent but not required, and "broken" if runs would fail.
        text: What was found.
        fix: The command or setting that fixes it, or "".
        mend: The former name of `fix`, for one release.
    """

    what: str
    state: Literal["ok", "no", "broken"]
    text: str
    fix: str = ""
    mend: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "mend", self.fix)


class Executor(ABC):
    """The base class of executors, which run jobs. Jobs may be submitted at any time. `poll` returns their events."""

    here: ClassVar[bool] = False  # whether runs are trained on this machine
    idle_options: ClassVar[tuple[str, ...]] = ()  # the fields of LaunchOptions that have no effect
    note: str = ""  # a message to print after jobs were submitted
    slots: int  # the number of ranks that run at the same time, or 0 if a scheduler decides

    @classmethod
    def unavailable(cls, configs: list[dict[str, Any]], options: LaunchOptions) -> str | None:
        """Return the reason why runs with these configs cannot be started here, or None if they can be started.

        This is called before anything is written.
        """
        return None

    @classmethod
    def idle(cls, options: LaunchOptions) -> list[str]:
        """Return a message for each option that was given but has no effect."""
        usual = LaunchOptions()
        typed = [key for key in cls.idle_options if getattr(options, key) != getattr(usual, key)]
        return [f"--{key.replace('_', '-')} has no effect with this launcher" for key in typed]

    @classmethod
    def withdraw(cls, sweep: SweepDir, name: str | None = None) -> int:
        """Remove waiting runs of a sweep from a scheduler's queue, and return their number.

        Args:
            sweep: The sweep. It does not matter which process submitted its runs.
            name: The name of the only run to remove. By default, all waiting runs are removed.

        Raises:
            LaunchError: The scheduler does not answer.
        """
        return 0

    @classmethod
    def has_queued(cls, sweep: SweepDir) -> bool:
        """Return True if a scheduler has runs of a sweep. Raises LaunchError if it does not answer."""
        return False

    @classmethod
    def examine(cls) -> Finding | None:
        """Return the line of `cpdrun doctor` about the scheduler, if there is one."""
        return None

    def at_once(self, jobs: list[Job]) -> int | None:
        """Return the number of ranks of these jobs that would run at the same time, or None if a scheduler decides."""
        return None

    def advice(self, jobs: list[Job]) -> list[str]:
        """Return notes for the user about jobs that will be submitted. This neither writes nor contacts a scheduler."""
        return []

    def would_write(self, jobs: list[Job]) -> dict[Path, str]:
        """Return the scripts that `submit` would write. This neither writes nor contacts a scheduler."""
        return {}

    @abstractmethod
    def submit(self, jobs: list[Job]) -> None:
        """Append jobs to the queue. Their config.yaml must exist.

        Raises:
            LaunchError: None of the jobs could run.
        """

    @abstractmethod
    def poll(self, timeout_s: float) -> list[Event]:
        """Return the events since the last call, after waiting for at most `timeout_s` seconds."""

    @abstractmethod
    def cancel(self, *, now: bool) -> None:
        """Start no more jobs. Running jobs save and stop at their next step, or stop at once if `now` is true."""

    @abstractmethod
    def close(self) -> None:
        """End all processes of the executor."""

    @property
    @abstractmethod
    def running(self) -> list[Job]: ...

    @property
    @abstractmethod
    def unfinished(self) -> int:
        """The number of jobs that wait or run."""
