"""Read the log of a run, either once or continuously until the run ends."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from cpdrun.errors import UserError
from cpdrun.launch.progress.display import informative_log
from cpdrun.record import RunDir, is_claimed, open_record, read_lines

FOLLOW_S = 0.3
MAX_LOG_BYTES = 64 << 20  # only the end of a longer log is shown


class NoLogError(UserError):
    """Raised if there is no log to show."""


def log_of(run: RunDir, rank: int | None = None) -> Path:
    """Return the path of a log of a run's last attempt.

    Args:
        run: The run.
        rank: The rank whose log is returned. By default, the most informative log is returned (`informative_log`).

    Raises:
        NoLogError: The run has not begun, or there is no log of this rank.
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
    """Yield the lines of a run's log, each with its newline.

    Very long lines are cut. If the log is larger than MAX_LOG_BYTES, only its end is read.

    Args:
        run: The run.
        rank: The rank whose log is read. By default, it is rank 0 if a run in progress is followed, and otherwise the
            most informative log is read.
        follow: Whether to wait for new lines until the run ends.

    Raises:
        NoLogError: There is no log, or it cannot be read.
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
            ended = not follow or not is_claimed(run)  # the agent still writes after done.json
            for line in read_lines(file):
                yield line.decode("utf-8", "replace")
            if ended:
                return
            time.sleep(FOLLOW_S)


def _log_of_rank_0(run: RunDir) -> Path | None:
    """Wait until the log of rank 0 exists, and return its path. If the run is not in progress, return None."""
    while is_claimed(run):
        if (attempt := run.last_attempt()) is not None and attempt.rank_log(0).exists():
            return attempt.rank_log(0)
        time.sleep(FOLLOW_S)
    return None
