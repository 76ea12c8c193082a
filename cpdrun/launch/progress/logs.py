"""The log of a run: its last attempt's, of one rank, to the end or on and on."""

import time
from collections.abc import Iterator
from pathlib import Path

from cpdrun.errors import UserError
from cpdrun.launch.progress.display import telling_log
from cpdrun.record import RunDir, is_claimed

FOLLOW_S = 0.3


class NoLogError(UserError):
    """There is nothing to show: one line that says why."""


def log_of(run: RunDir, rank: int | None = None) -> Path:
    """The log to show: that of `rank`, or where none is named the one that says most of the last attempt.

    Raises NoLogError where the run has not begun or has no such rank.
    """
    attempt = run.last_attempt()
    if attempt is None:
        raise NoLogError(f"{run.name} has not begun")
    if rank is None:
        return telling_log(run) or attempt.agent_log
    if not attempt.rank_log(rank).exists():
        ranks = len(list(attempt.path.glob(attempt.rank_log(0).name.replace("0", "*"))))
        raise NoLogError(f"{run.name} has no log of rank {rank} (ranks 0 to {ranks - 1} have one)")
    return attempt.rank_log(rank)


def lines(run: RunDir, rank: int | None = None, *, follow: bool = False) -> Iterator[str]:
    """The lines of the log, newline included; with `follow`, until the run has ended: rank 0's, if none is named."""
    path = (follow and rank is None and _log_of_rank_0(run)) or log_of(run, rank)
    with path.open(encoding="utf-8", errors="replace") as file:
        while True:
            ended = not follow or not is_claimed(run)  # the agent has the last word, after done.json
            yield from file
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
