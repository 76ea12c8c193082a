"""Says which rank is gone when a collective fails: gloo knows only that some address closed the connection.

A rank that is killed closes its connections at once, so every rank that waits for it, or comes to wait,
gets an error. It then tries to receive from each peer: whose connection is closed, is gone. The verdict is
left in the process group's store, for a rank that comes late would find those closed too that gave up in
the meantime.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

PROBE = 73  # a tag that nobody sends with
PROBE_S = 1.0
VERDICT = "cpdrun/ranks that ended"


class RankLost(RuntimeError):
    """Another rank's process ended, or cannot be reached, while this one waited for it."""


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
    ended = _verdict() or _probe(group)
    cause = str(error).strip().splitlines()[0]
    me = dist.get_rank()
    if not ended:
        return f"rank {me} lost contact with its peers: {cause}"
    with suppress(Exception):  # the store may have lived in the process that ended
        _get_default_store().set(VERDICT, ",".join(map(str, ended)))
    names = ", ".join(map(str, ended))
    several = "s" if len(ended) > 1 else ""
    return f"rank{several} {names} ended in the middle of a step; rank {me} stops ({cause})"


def _verdict() -> list[int]:
    with suppress(Exception):
        store = _get_default_store()
        if store.check([VERDICT]):
            return [int(rank) for rank in store.get(VERDICT).decode().split(",")]
    return []


def _probe(group: dist.ProcessGroup | None) -> list[int]:
    """The global ranks whose connection is closed; [] where the backend cannot tell."""
    if dist.get_backend(group) != "gloo":
        return []
    ended = []

    def receive(peer: int) -> None:
        try:
            dist.recv(torch.empty(1, dtype=torch.uint8), peer, group, PROBE)
        except RuntimeError:
            ended.append(peer)

    for peer in dist.get_process_group_ranks(group):
        if peer != dist.get_rank():
            threading.Thread(target=receive, args=(peer,), daemon=True).start()
    time.sleep(PROBE_S)
    return sorted(ended)
