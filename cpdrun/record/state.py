"""The state of a run, which is determined from its files. The state itself is not stored."""

import contextlib
import os
import time
from enum import StrEnum

from cpdrun.record.entries import Ending
from cpdrun.record.files import read_json, remove
from cpdrun.record.layout import RunDir, SweepDir
from cpdrun.record.lock import claim, is_claimed, release
from cpdrun.record.version import newer

FILE_TIME_STEP_S = 0.01  # On Linux, a clock with ticks of at most this length sets the times of files.


class State(StrEnum):
    """The state of a run."""

    DONE = "done"  # done.json exists.
    RUNNING = "running"  # A process has claimed the run.
    FAILED = "failed"  # The last attempt failed.
    PREEMPTED = "preempted"  # The last attempt was stopped on request, or was killed together with its agent.
    PENDING = "pending"  # The run has not begun, or done.json was removed.


def state_of(run: RunDir) -> State:
    """Return the state of a run."""
    if run.done.exists():
        return State.DONE
    if is_claimed(run):
        return State.RUNNING
    last = run.last_attempt()
    if last is None:
        return State.PENDING
    outcome = last.outcome()
    if outcome is None or outcome.status is Ending.PREEMPTED:  # None if the agent was killed, too.
        return State.PREEMPTED
    if outcome.status.has_result:  # The user has removed done.json, so that the run is trained again.
        return State.PENDING
    return State.FAILED


def failed_since(run: RunDir, attempts: int) -> bool:
    """Return whether the last attempt of a run failed and came after the first `attempts` attempts."""
    last = run.last_attempt()
    outcome = last.outcome() if last is not None and last.number > attempts else None
    return outcome is not None and outcome.status.is_failure


def garbage(run: RunDir) -> str:
    """Return a message about a done.json that exists but cannot be read."""
    problem = newer(read_json(run.done))
    return f"{run.done} {problem or 'does not contain a record. Remove the file and start the run again'}"


def forget(run: RunDir) -> None:
    """Make a run pending again, so that it starts from its first step. Its logs are not removed.

    Do nothing if a process has claimed the run.
    """
    if not run.path.exists() or (fd := claim(run)) is None:
        return
    saved = list(run.checkpoint.parent.iterdir()) if run.checkpoint.parent.is_dir() else []
    for path in (run.done, run.example_outcomes, run.status, run.metrics, run.env, *saved):
        remove(path)
    release(run, fd)


def cancellation(sweep: SweepDir) -> int | None:
    """Return a value that changes each time `cpdrun cancel` is called for `sweep`."""
    try:
        return sweep.stop.stat().st_mtime_ns
    except OSError:
        return None


def cancellation_before(sweep: SweepDir, elapsed_s: float) -> int | None:
    """Return a value to compare with `cancellation`.

    The two values differ if the sweep was canceled in the last `elapsed_s` seconds. Only times that the file system of
    the folder sets are compared, so its clock may differ from the clock of this machine. Because this clock advances in
    steps of up to FILE_TIME_STEP_S, cancellations in the first FILE_TIME_STEP_S of the period are ignored. Otherwise, a
    cancellation just before the period could count as one within it.
    """
    latest, now = cancellation(sweep), time.time_ns()
    if latest is None:
        return None
    with contextlib.suppress(OSError):
        os.utime(sweep.lock)
        now = sweep.lock.stat().st_mtime_ns
    return latest if latest < now - (elapsed_s - FILE_TIME_STEP_S) * 1e9 else None
