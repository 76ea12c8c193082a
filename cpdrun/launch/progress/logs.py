"""The log of a run: that of one rank of its last attempt, to the end or followed until the run ends."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from cpdrun.errors import UserError
from cpdrun.launch.progress.display import informative_log
from cpdrun.record import RunDir, is_claimed, open_record, read_lines

FOLLOW_S = 0.3
MAX_LOG_BYTES = 64 << 20  # of a longer log the end is shown


class NoLogError(UserError):
    """There is nothing to show: one line that says why."""


def log_of(run: RunDir, rank: int | None = None) -> Path:
    """Return the log to show: that of `rank`, or by default the one that says most about the last attempt.

    Raises NoLogError if the run has not begun or has no such rank.
    """
    attempt = run.last_attempt()
    if attempt is None:
        raise NoLogError(f"{run.name} has not begun")
    if rank is None:
        return informative_log(run) or attempt.agent_log
    if not attempt.rank_log(rank).exists():
        ranks = len(list(attempt.path.glob(attempt.rank_log(0).name.replace("0", "*"))))
        raise NoLogError(f"{run.name} has no log of rank {rank} (ranks 0 to {ranks - 1} have one)")
    return attempt.rank_log(rank)


def lines(run: RunDir, rank: int | None = None, *, follow: bool = False) -> Iterator[str]:
    """Yield the lines of the log, each with its newline.

    With `follow` this goes on until the run has ended, and shows rank 0 if no rank is named. Very long lines are cut,
    and of a log larger than MAX_LOG_BYTES only the end is shown. Raises NoLogError if there is no log to read.
    """
    path = (follow and rank is None and _log_of_rank_0(run)) or log_of(run, rank)
    try:
        file = open_record(path)
    except OSError as error:
        raise NoLogError(f"cannot read {path}: {error.strerror}") from None
    with file:
        if (size := os.fstat(file.fileno()).st_size) > MAX_LOG_BYTES:
            skipped = file.seek(size - MAX_LOG_BYTES) + len(file.readline(MAX_LOG_BYTES))
            yield f"[the first {skipped >> 20} MiB are not shown; the whole log is {path}]\n"
        while True:
            ended = not follow or not is_claimed(run)  # the agent has the last word, after done.json
            for line in read_lines(file):
                yield line.decode("utf-8", "replace")
            if ended:
                return
            time.sleep(FOLLOW_S)


def _log_of_rank_0(run: RunDir) -> Path | None:
    """Rank 0's log, once it is there; None where the run does not run."""
    while is_claimed(run):
        if (attempt := run.last_attempt()) is not None and attempt.rank_log(0).exists():
            return attempt.rank_log(0)
        time.sleep(FOLLOW_S)
    return None
