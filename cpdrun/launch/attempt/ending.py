"""Determine how an attempt ended, from done.json, the engine's answer, and the ends of the logs."""

import os
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

from cpdrun.record import (
    Attempt,
    Ending,
    NotRegularError,
    Outcome,
    RunDir,
    failed_since,
    garbage,
    open_record,
)

TAIL_BYTES = 16384
OUT_OF_MEMORY = re.compile(r"out of memory|OutOfMemoryError|MemoryError|can't allocate memory", re.IGNORECASE)
START_NOTE = "agent {} on"  # the text with which the log of every attempt begins


def classify(
    run: RunDir,
    attempt: Attempt,
    answer: dict[str, Any] | None,
    *,
    stopped_now: bool,
    overdue: str = "",
    hung_rank: int | None = None,
) -> Outcome:
    """Return how an attempt ended.

    Args:
        run: The run.
        attempt: The attempt.
        answer: The engine's answer, or None if it was killed.
        stopped_now: Whether the ranks were killed at the user's request.
        overdue: The reason why the watchdog ended the attempt, or "".
        hung_rank: The rank that hung, if it is known.
    """
    code, rank = (answer["exit_code"], answer["rank"]) if answer else (None, None)
    note = answer.get("note") if answer else ""
    if (result := run.result()) is not None:
        status, reason = result.status, ""
    elif run.done.exists():
        status, reason = Ending.FAILED, garbage(run)
    elif overdue and not stopped_now:
        status, reason, rank = Ending.FAILED, overdue, hung_rank
    elif code == os.EX_TEMPFAIL:
        status, reason = Ending.PREEMPTED, "stopped at a step, on request"
    elif stopped_now:
        status, reason = Ending.PREEMPTED, "stopped at once, on request"
    elif code is None:
        status, reason = Ending.KILLED, "the engine was killed"
    elif code == 0:
        status, reason = Ending.FAILED, "the ranks ended without an error and without a result"
    elif code < 0:
        status, reason = Ending.KILLED, f"rank {rank} was killed by {signal.Signals(-code).name}"
        if code == -signal.SIGKILL:
            reason += " (by a user, or because the machine is out of memory)"
        reason += f" {note}" if note else ""
    else:
        reason = last_line(attempt.rank_log(rank)) if rank is not None else ""
        words = last_line(attempt.agent_log)
        reason = reason or (words if START_NOTE.format(os.getpid()) not in words else "")
        reason = reason or f"rank {rank} ended with exit code {code}"
        status = Ending.OUT_OF_MEMORY if OUT_OF_MEMORY.search(reason) else Ending.FAILED
    return Outcome(status, code, rank, reason)


def with_lost_work(outcome: Outcome, run: RunDir, attempt: Attempt) -> Outcome:
    """Return an outcome with the seconds of lost work.

    Lost work was computed again, or must be computed again in a further attempt because it came after the checkpoint
    from which that attempt continues.
    """
    losses = attempt.losses()
    lost = sum(loss.seconds for loss in losses)
    started, ended = outcome.started, outcome.ended
    if outcome.status.is_failure and started is not None and ended is not None:
        lost += ended - min(ended, max(started, run.saved_at()))
    return replace(
        outcome,
        restarts=sum(loss.restarts for loss in losses) or None,
        lost_seconds=round(lost, 3) or None,
    )


def end_of(run: RunDir, attempts: int) -> Outcome | None:
    """Return how another launcher or worker ended a run, in an attempt after the first `attempts` ones.

    The result is None if it still trains the run, or stopped without an outcome.
    """
    if (result := run.result()) is not None:
        return Outcome(result.status)
    if run.done.exists():
        return Outcome(Ending.FAILED, reason=garbage(run))
    if failed_since(run, attempts) and (last := run.last_attempt()) is not None:
        return last.outcome()
    return None


def last_line(log: Path) -> str:
    """Return the last line of a log that is not empty, or ""."""
    lines = tail(log, 1)
    return lines[-1].strip() if lines else ""


def tail(log: Path, count: int) -> list[str]:
    """Return the last `count` lines of `log` that are not empty, or fewer if there are no more.

    A progress bar, which rewrites its line after each carriage return, counts as one line. Only its last state is
    returned.
    """
    try:
        with open_record(log) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except (FileNotFoundError, NotRegularError):
        return []
    lines = (line.rstrip().rpartition("\r")[2] for line in text.split("\n"))
    return [line for line in lines if line.strip()][-count:]
