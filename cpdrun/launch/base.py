"""What is launched, and the one interface of everything that can launch it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from cpdrun.errors import FAILED, UserError
from cpdrun.record import Outcome, RunDir, SweepDir


class LaunchError(UserError):
    """The sweep as a whole cannot go on (nowhere to write, no scheduler here): one line that says what to do."""


class FolderGoneError(UserError):
    """The sweep's folder was moved or deleted under its runs."""

    exit_code = FAILED


@dataclass(frozen=True)
class Job:
    """One run to execute: where, what, and what was typed for it."""

    run: RunDir
    config: dict[str, Any]
    overrides: list[str]
    is_written: bool = False  # its config.yaml is on disk, and stays as it is

    @property
    def nproc(self) -> int:
        return self.config["nproc"]


@dataclass(frozen=True)
class LaunchOptions:
    """What the command line says about launching; None leaves it to conf/launcher/*.yaml."""

    jobs: int | None = None
    jobs_per_gpu: int | None = None
    max_parallel: int | None = None
    retries: int = 0
    kill_retries: int = 0  # further attempts after a signal killed a run's process, on this machine
    fail_fast: bool = False
    keep_going: bool = False  # start all runs even if the first one fails at once
    wait: bool = True


@dataclass(frozen=True)
class Event:
    """A job began or, where there is an `outcome`, ended; `elsewhere`: another launcher or worker brought it there."""

    job: Job
    outcome: Outcome | None = None
    elsewhere: bool = False


@dataclass(frozen=True)
class Finding:
    """A line of `cpdrun doctor`.

    Attributes:
        what: The part of the machine, such as "torch" or "results".
        state: Whether the part is there. "no" means that it is absent and not needed, and "broken" that runs fail.
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
    """Runs jobs somewhere: they are submitted, at once or more and more, and polled until all have ended."""

    here: ClassVar[bool] = False  # whether runs are trained on this machine
    idle_options: ClassVar[tuple[str, ...]] = ()  # fields of LaunchOptions that play no part
    note: str = ""  # what is said once jobs are submitted
    slots: int  # ranks that this executor can run at the same time; 0 where that is a scheduler's to say

    @classmethod
    def unavailable(cls, configs: list[dict[str, Any]], options: LaunchOptions) -> str | None:
        """What keeps runs of these configs from being started here, in a line; None where nothing does. Looked at
        before anything is written."""
        return None

    @classmethod
    def idle(cls, options: LaunchOptions) -> list[str]:
        """What is said of options that were given and play no part."""
        usual = LaunchOptions()
        typed = [key for key in cls.idle_options if getattr(options, key) != getattr(usual, key)]
        return [f"--{key.replace('_', '-')} has no effect with this launcher" for key in typed]

    @classmethod
    def withdraw(cls, sweep: SweepDir, name: str | None = None) -> int:
        """Take the runs of `sweep` that a scheduler has not begun, or the run of that name, out of its queue, whoever
        submitted them; how many they were. Raises LaunchError where the scheduler does not answer."""
        return 0

    @classmethod
    def has_queued(cls, sweep: SweepDir) -> bool:
        """Whether runs of `sweep` wait or run with a scheduler. Raises LaunchError where it does not answer."""
        return False

    @classmethod
    def examine(cls) -> Finding | None:
        """What `cpdrun doctor` says of the scheduler."""
        return None

    def at_once(self, jobs: list[Job]) -> int | None:
        """Ranks of `jobs` that would run at the same time; None where that is a scheduler's to say."""
        return None

    def advice(self, jobs: list[Job]) -> list[str]:
        """Return what a user should know before these jobs are submitted, a line each. Asks nobody, writes nothing."""
        return []

    def would_write(self, jobs: list[Job]) -> dict[Path, str]:
        """Scripts that `submit` would write for these jobs; asks nobody and writes nothing."""
        return {}

    @abstractmethod
    def submit(self, jobs: list[Job]) -> None:
        """Queue `jobs`, whose config.yaml is on disk, behind those that were submitted before. Raises LaunchError when
        none of them could run."""

    @abstractmethod
    def poll(self, timeout_s: float) -> list[Event]:
        """What has happened since the last call, waiting up to `timeout_s` for something to happen."""

    @abstractmethod
    def cancel(self, *, now: bool) -> None:
        """Start nothing more; running jobs save and stop at their next step, or at once with `now`."""

    @abstractmethod
    def close(self) -> None:
        """Leave no process behind."""

    @property
    @abstractmethod
    def running(self) -> list[Job]: ...

    @property
    @abstractmethod
    def unfinished(self) -> int:
        """Jobs that wait or run."""
