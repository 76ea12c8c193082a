"""A run's state is derived from its files, never stored."""

from enum import StrEnum

from cpdrun.record.files import read_json
from cpdrun.record.layout import RunDir
from cpdrun.record.lock import is_claimed


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
    outcome = read_json(last.exit)
    if outcome is None or outcome.get("outcome") == State.PREEMPTED:
        return State.PREEMPTED  # no exit.json: the attempt was killed; its checkpoint, if any, is good
    return State.FAILED
