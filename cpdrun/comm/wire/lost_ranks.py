"""Says which rank is gone, or hangs, when a collective fails: gloo knows only that some address closed the
connection, or that something took too long.

A rank that is killed closes its connections at once, so every rank that waits for it, or comes to wait, gets
an error. gloo then closes that rank's other connections as well, so a closed connection alone proves
nothing: a rank that gets an error first signs the process group's store. Whoever is cut off and has not
signed is gone; where somebody's error was that its patience was over, it hangs instead, for a dead rank's
connections would have closed before.
"""

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from cpdrun.comm.wire import Tag

SETTLE_S = 1.0  # until all who are alive have had their error and signed
SETTLE_LATE_S = 3.0  # the same where patience is over: ranks did not begin to wait at the same time
LINGER_S = 2.0  # the store may be in this process, and others still ask it
SIGNATURE = "cpdrun/alive after an error/"
LATE = "late"


class RankLost(RuntimeError):
    """Another rank's process ended, hangs or cannot be reached, while this one waited for it."""


@contextmanager
def naming_lost_ranks(group: dist.ProcessGroup | None = None) -> Iterator[None]:
    """Turns the process group's errors in the block into RankLost, which names the ranks that are gone."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, RankLost) or not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        raise RankLost(_explain(error, group)) from error


def _explain(error: RuntimeError, group: dist.ProcessGroup | None) -> str:
    # gloo begins with its source file and ends with advice
    cause = re.sub(r"^\[\S+\] ", "", str(error).strip().splitlines()[0]).split(". This is")[0]
    me = dist.get_rank()
    missing, late = _missing_ranks(me, group, late=cause.startswith("Timed out"))
    if not missing:
        return f"rank {me} lost contact with its peers: {cause}"
    names = f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
    what = "did not come to an exchange in time" if late else "ended in the middle of a step"
    return f"{names} {what}; rank {me} stops ({cause})"


def _missing_ranks(me: int, group: dist.ProcessGroup | None, *, late: bool) -> tuple[list[int], bool]:
    """The global ranks that are gone, [] where the backend cannot tell; and whether they hang instead.

    `late` says that this rank's own patience is over.
    """
    if dist.get_backend(group) != "gloo":
        return [], late
    store = _get_default_store()
    try:
        store.set(f"{SIGNATURE}{me}", LATE if late else "")
        time.sleep(SETTLE_LATE_S if late else SETTLE_S)
        ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        signed = {peer: store.get(key) for peer in ranks if store.check([key := f"{SIGNATURE}{peer}"])}
        missing = [peer for peer in _cut_off(me, group) if peer not in signed]
        hang_up([peer for peer in ranks if peer != me], group)
        time.sleep(LINGER_S)
        return missing, LATE.encode() in signed.values()
    except RuntimeError:  # the store is gone, and without a launcher that keeps it, it was in rank 0
        return [0], False


def _cut_off(me: int, group: dist.ProcessGroup | None) -> list[int]:
    """The ranks to which the connection is closed: to post a receive from them fails at once."""
    closed = []
    for peer in dist.get_process_group_ranks(group or dist.group.WORLD):
        if peer != me:
            try:
                dist.irecv(torch.empty(1, dtype=torch.uint8), peer, group, Tag.PROBE)
            except RuntimeError:
                closed.append(peer)
    return closed


def hang_up(peers: Sequence[int], group: dist.ProcessGroup | None) -> None:
    """Closes the connections to other ranks after an error: one of them may wait for this rank alone, which will not
    send again, and have nothing under way with the rank that is gone.

    gloo closes all of a rank's connections when a wait of its own runs out of time.
    """
    if dist.get_backend(group) != "gloo":
        return
    for peer in peers:
        with suppress(RuntimeError):  # that is what it is for, or the connection is closed already
            work = dist.irecv(torch.empty(1, dtype=torch.uint8), peer, group, Tag.HANG_UP)
            assert work is not None  # this rank is of the group
            work.wait(timedelta(milliseconds=1))
