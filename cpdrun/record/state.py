"""A run's state is derived from its files, never stored."""

from enum import StrEnum
from typing import Any

from cpdrun.record.files import read_object, remove
from cpdrun.record.layout import RunDir, SweepDir
from cpdrun.record.lock import claim, is_claimed, release


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
    outcome = (read_object(last.exit) or {}).get("outcome")
    if outcome in (None, "preempted"):  # None: its agent was killed, and it with its agent
        return State.PREEMPTED
    if outcome in ("finished", "diverged"):  # and done.json was taken away: to be run again
        return State.PENDING
    return State.FAILED


def record_of(run: RunDir) -> dict[str, Any] | None:
    """What done.json says: an object with `status` and `metrics`, by name. None where it is absent or garbage."""
    done = {"metrics": {}} | (read_object(run.done) or {})
    return done if isinstance(done.get("status"), str) and isinstance(done["metrics"], dict) else None


def garbage(run: RunDir) -> str:
    """What to say of a done.json that is there and cannot be read."""
    return f"{run.done} holds no record; remove it and run again"


def forget(run: RunDir) -> None:
    """Make the run pending again from its first step, unless some process works on it; its logs stay."""
    if not run.path.exists() or (fd := claim(run)) is None:
        return
    for path in (run.done, run.status, run.metrics, *run.checkpoint.parent.glob("*.pt")):
        remove(path)
    release(run, fd)


def cancellation(sweep: SweepDir) -> int | None:
    """A value that changes whenever `cpdrun cancel` was used on `sweep`."""
    try:
        return sweep.stop.stat().st_mtime_ns
    except OSError:
        return None
