"""How the ranks of a run meet: all forked before the first connects, at a store of this machine, within a minute.

torch's store runs a thread in the process that forks the ranks. When a rank connects, that thread has libc format the
peer's address, under a lock of libc's resolver; a rank forked at that moment inherits the lock, held by a thread it
does not have, and its own first look-up of an address never returns. So ranks wait at a :class:`Gate` until the last
is forked.
"""

import os
import socket
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous import RendezvousParameters, rendezvous_handler_registry
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from cpdrun.comm import RankLost

LOOPBACK = "127.0.0.1"
BACKLOG = 4096  # ranks that may knock at the store at the same moment
MEET_S = 60.0  # ranks are forked within a second; one that is not there after a minute will not come
HERE = "cpdrun/arrived"


class Gate:
    """Holds each of `ranks` processes, forked one after the other from the one that made this, until all are forked."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.reader, self.writer = os.pipe()

    def pass_through(self, local_rank: int) -> None:
        if local_rank == self.ranks - 1:  # the last to be forked
            os.write(self.writer, b"." * local_rank)
        else:
            os.read(self.reader, 1)
        self.close()

    def close(self) -> None:
        os.close(self.reader)
        os.close(self.writer)


class LoopbackRendezvous(StaticTCPRendezvous):
    """torch's static rendezvous for one node. Its store listens on 127.0.0.1, not on every interface as torch's own
    does, and at a port that is held from the start, so that no other program takes it meanwhile."""

    BACKEND = "cpdrun-loopback"

    def __init__(self, parameters: RendezvousParameters) -> None:
        listener = socket.create_server((LOOPBACK, 0), backlog=BACKLOG)
        port = listener.getsockname()[1]
        super().__init__(LOOPBACK, port, rank=0, world_size=1, run_id=parameters.run_id, timeout=int(MEET_S))
        self._store = TCPStore(
            LOOPBACK, port, 1, True, self.timeout, multi_tenant=True, master_listen_fd=listener.detach()
        )

    def get_backend(self) -> str:
        return self.BACKEND


rendezvous_handler_registry.register(LoopbackRendezvous.BACKEND, LoopbackRendezvous)


def meet(backend: str, patience_s: float) -> None:
    """Form the process group of all ranks, by the environment that torchrun sets; later waits last up to `patience_s`.

    Raises RankLost, which names the ranks that did not come within MEET_S, or `patience_s` where that is less.
    """
    meet_s = min(MEET_S, patience_s)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store, _, _ = next(dist.rendezvous("env://", timeout=timedelta(seconds=meet_s)))
    arrived = PrefixStore(HERE, store)
    try:
        arrived.set(str(rank), "")
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=meet_s)
        )
    except RuntimeError as error:
        raise RankLost(f"{_who_is_missing(arrived, ranks)} within {meet_s:g} s; rank {rank} stops") from error
    set_timeout(patience_s)


def set_timeout(seconds: float) -> None:
    """How long the default group's operations wait, from now on."""
    patience = timedelta(seconds=seconds)
    dist.distributed_c10d._get_default_store().set_timeout(patience)
    with suppress(AttributeError):
        dist.set_timeout(patience)
        return
    dist.distributed_c10d._set_pg_timeout(patience)  # its name before torch 2.15


def _who_is_missing(arrived: dist.Store, ranks: int) -> str:
    try:
        missing = [str(rank) for rank in range(ranks) if not arrived.check([str(rank)])]
    except RuntimeError:
        return "the ranks' store ended"
    if not missing:
        return f"not all of {ranks} ranks could connect to one another"
    return f"rank{'s' if len(missing) > 1 else ''} {', '.join(missing)} did not come to the rendezvous"
