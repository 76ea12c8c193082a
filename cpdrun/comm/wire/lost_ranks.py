"""Detection of the rank that is lost or hangs when a collective operation fails.

gloo reports only that some address closed the connection or that an operation took too long.

If a rank is killed, its connections close at once, so every rank that waits for it gets an error. gloo then also closes
all other connections of a rank that got an error. Therefore, a closed connection alone does not identify the lost rank.
For this reason, each rank that gets an error first signs the store of the process group. A rank is lost if its
connection is closed and it has not signed. If a rank that has signed got a timeout, the missing rank hangs, because the
connections of a dead rank would have closed earlier.
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

SETTLE_S = (
    1.0  # the time until the remaining ranks have received their errors and set their keys in the store
)
SETTLE_LATE_S = (
    3.0  # the same time after a timeout. It is longer because ranks do not start to wait at the same time.
)
LINGER_S = 2.0  # the time before this process ends. Other ranks may still need the store, which may be in this process.
SIGNATURE = "cpdrun/alive after an error/"
LATE = "late"


class RankLost(RuntimeError):
    """Another rank's process ended, hangs, or cannot be reached while this rank waited for it."""


@contextmanager
def naming_lost_ranks(group: dist.ProcessGroup | None = None) -> Iterator[None]:
    """Convert the process group's errors inside a `with` block to `RankLost`, whose message names the lost ranks."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, RankLost) or not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        raise RankLost(_explain(error, group)) from error


def _explain(error: RuntimeError, group: dist.ProcessGroup | None) -> str:
    # gloo's message begins with the name of its source file and ends with advice. Remove both.
    cause = re.sub(r"^\[\S+\] ", "", str(error).strip().splitlines()[0]).split(". This is")[0]
    me = dist.get_rank()
    missing, late = _missing_ranks(me, group, late=cause.startswith("Timed out"))
    if not missing:
        return f"rank {me} lost contact with its peers: {cause}"
    names = f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
    what = "did not come to an exchange in time" if late else "ended in the middle of a step"
    return f"{names} {what}; rank {me} stops ({cause})"


def _missing_ranks(me: int, group: dist.ProcessGroup | None, *, late: bool) -> tuple[list[int], bool]:
    """Return the lost or hanging ranks, and whether they hang.

    Args:
        me: This rank.
        group: The process group.
        late: Whether this rank's own operation timed out.

    Returns:
        A tuple: the global ranks, or an empty list if the backend cannot identify them, and whether these ranks hang.
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
    except RuntimeError:  # The process that contains the store has ended. Without a launcher, that is rank 0.
        return [0], False


def _cut_off(me: int, group: dist.ProcessGroup | None) -> list[int]:
    """Return the ranks whose connection to this rank is closed. Starting a receive from such a rank fails at once."""
    closed = []
    for peer in dist.get_process_group_ranks(group or dist.group.WORLD):
        if peer != me:
            try:
                dist.irecv(torch.empty(1, dtype=torch.uint8), peer, group, Tag.PROBE)
            except RuntimeError:
                closed.append(peer)
    return closed


def hang_up(peers: Sequence[int], group: dist.ProcessGroup | None) -> None:
    """Close the connections to other ranks after an error.

    Another rank may be waiting for this rank, which will not send anything more. That rank gets no error from the lost
    rank if it has no connection to it. gloo closes all connections of a rank when one of the rank's own operations
    times out, so this function starts a receive that times out.
    """
    if dist.get_backend(group) != "gloo":
        return
    for peer in peers:
        with suppress(RuntimeError):  # The timeout is intended, or the connection is already closed.
            work = dist.irecv(torch.empty(1, dtype=torch.uint8), peer, group, Tag.HANG_UP)
            assert work is not None  # torch returns None only on ranks that do not belong to the group.
            work.wait(timedelta(milliseconds=1))
