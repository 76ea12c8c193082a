"""A run's state is derived from its files, never stored."""

import contextlib
import os
import time
from enum import StrEnum

from cpdrun.record.entries import Ending
from cpdrun.record.files import read_json, remove
from cpdrun.record.layout import RunDir, SweepDir
from cpdrun.record.lock import claim, is_claimed, release
from cpdrun.record.version import newer


class State(StrEnum):
    DONE = "done"
    RUNNING = "running"
    FAILED = "failed"
    PREEMPTED = "preempted"
    PENDING = "pending"


def state_of(run: RunDir) -> State:
    """done (done.json is there) > running (lock held) > failed or preempted (last exit.json) > pending."""
    if run.done.exists():
        return State.DONE
    if is_claimed(run):
        return State.RUNNING
    last = run.last_attempt()
    if last is None:
        return State.PENDING
    outcome = last.outcome()
    if outcome is None or outcome.status is Ending.PREEMPTED:  # None: killed with its agent
        return State.PREEMPTED
    if outcome.status.has_result:  # and done.json was taken away: to be run again
        return State.PENDING
    return State.FAILED


def failed_since(run: RunDir, attempts: int) -> bool:
    """Whether an attempt after the first so many has failed, the last that there was."""
    last = run.last_attempt()
    outcome = last.outcome() if last is not None and last.number > attempts else None
    return outcome is not None and outcome.status.is_failure


def garbage(run: RunDir) -> str:
    """What to say of a done.json that is there and cannot be read."""
    problem = newer(read_json(run.done))
    return f"{run.done} {problem or 'holds no record; remove it and run again'}"


def forget(run: RunDir) -> None:
    """Make the run pending again from its first step, unless some process works on it. Its logs are kept."""
    if not run.path.exists() or (fd := claim(run)) is None:
        return
    saved = list(run.checkpoint.parent.iterdir()) if run.checkpoint.parent.is_dir() else []
    for path in (run.done, run.example_outcomes, run.status, run.metrics, run.env, *saved):
        remove(path)
    release(run, fd)


def cancellation(sweep: SweepDir) -> int | None:
    """Return a value that changes whenever `cpdrun cancel` is used on `sweep`."""
    try:
        return sweep.stop.stat().st_mtime_ns
    except OSError:
        return None


def cancellation_before(sweep: SweepDir, elapsed_s: float) -> int | None:
    """Return a value that `cancellation` differs from if the sweep was cancelled in the last `elapsed_s` seconds.

    The folder's file system stamps both files that are compared, so that its clock need not agree with this machine's.
    """
    latest, now = cancellation(sweep), time.time_ns()
    if latest is None:
        return None
    with contextlib.suppress(OSError):
        os.utime(sweep.lock)
        now = sweep.lock.stat().st_mtime_ns
    return latest if latest < now - elapsed_s * 1e9 else None
