"""What is launched, and the one interface of everything that can launch it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from cpdrun.record import RunDir


class LaunchError(Exception):
    """The sweep as a whole cannot go on (nowhere to write, no Slurm here): one line that says what to do."""


class FolderGoneError(Exception):
    """The sweep's folder was moved or deleted under its runs."""


@dataclass(frozen=True)
class Job:
    """One run to execute: where, what, and what was typed for it."""

    run: RunDir
    config: dict[str, Any]
    overrides: list[str]

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
    fail_fast: bool = False
    wait: bool = True


@dataclass(frozen=True)
class Event:
    """A job began or ended; `outcome` is then what its agent reported, as in the attempt's exit.json."""

    job: Job
    kind: Literal["started", "ended"]
    outcome: dict[str, Any] = field(default_factory=dict)


@dataclass
class Summary:
    """How a sweep went. `failed` lists (run, reason); `interrupted` counts what a stop left undone."""

    done: int = 0
    diverged: int = 0
    failed: list[tuple[RunDir, str]] = field(default_factory=list)
    interrupted: int = 0
    submitted: int = 0  # handed to a scheduler that works on without us
    wall_seconds: float = 0.0
    training_share: float | None = None  # of the core-seconds this machine offered; None where nothing ran

    @property
    def exit_code(self) -> int:
        if self.failed:
            return 1
        return 130 if self.interrupted else 0


class Executor(ABC):
    """Runs jobs somewhere: they are submitted once, then polled until all have ended."""

    slots: int  # ranks that this executor can run at the same time; 0 where that is a scheduler's to say

    @classmethod
    def unavailable(cls, configs: list[dict[str, Any]]) -> str | None:
        """What keeps runs of these configs from being started here, in a line; None where nothing does. Looked at
        before anything is written."""
        return None

    def would_write(self, jobs: list[Job]) -> dict[Path, str]:
        """Scripts that `submit` would write for these jobs; asks nobody and writes nothing."""
        return {}

    @abstractmethod
    def submit(self, jobs: list[Job]) -> None:
        """Queue `jobs`, whose config.yaml is on disk. Raises LaunchError when none of them could run."""

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
