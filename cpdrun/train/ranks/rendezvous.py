"""The rendezvous of the ranks of a run at a store on this machine.

torch's store runs a thread in the process that forks the ranks. When a rank connects, libc formats the peer's address
in that thread, under a lock of its resolver. A rank forked at that moment inherits the locked lock without the thread
that would release it, and its first address lookup never returns. Therefore all ranks wait at a :class:`Gate` until the
last one is forked.
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
BACKLOG = 4096  # ranks that may connect to the store at the same time
MEET_S = 60.0  # Ranks are forked within a second, so a rank that is missing after a minute is lost.
ARRIVED = "cpdrun/arrived"


class Gate:
    """Blocks each of `ranks` processes, which are forked one after the other, until all are forked.

    It must be created in the process that forks them.
    """

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.reader, self.writer = os.pipe()

    def pass_through(self, local_rank: int) -> None:
        """Wait until all ranks are forked."""
        if local_rank == self.ranks - 1:  # This rank was forked last.
            os.write(self.writer, b"." * local_rank)
        else:
            os.read(self.reader, 1)
        self.close()

    def close(self) -> None:
        """Close the pipe."""
        os.close(self.reader)
        os.close(self.writer)


class LoopbackRendezvous(StaticTCPRendezvous):
    """torch's static rendezvous for one node.

    Its store listens on 127.0.0.1, whereas torch's own listens on every interface. The port is open from the start, so
    no other program can take it.
    """

    BACKEND = "cpdrun-loopback"

    def __init__(self, parameters: RendezvousParameters) -> None:
        listener = socket.create_server((LOOPBACK, 0), backlog=BACKLOG)
        port = listener.getsockname()[1]
        super().__init__(LOOPBACK, port, rank=0, world_size=1, run_id=parameters.run_id, timeout=int(MEET_S))
        self._store = TCPStore(
            LOOPBACK, port, 1, True, self.timeout, multi_tenant=True, master_listen_fd=listener.detach()
        )

    def get_backend(self) -> str:
        """Return the name under which torch knows this rendezvous."""
        return self.BACKEND


rendezvous_handler_registry.register(LoopbackRendezvous.BACKEND, LoopbackRendezvous)


def meet(backend: str, patience_s: float) -> None:
    """Form the process group of all ranks from the environment variables that torchrun sets.

    Args:
        backend: The backend of torch.distributed.
        patience_s: The timeout of later operations, in seconds.

    Raises:
        RankLost: Some ranks did not arrive within MEET_S or `patience_s`. The message names them.
    """
    meet_s = min(MEET_S, patience_s)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store, _, _ = next(dist.rendezvous("env://", timeout=timedelta(seconds=meet_s)))
    arrived = PrefixStore(ARRIVED, store)
    try:
        arrived.set(str(rank), "")
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=meet_s)
        )
    except RuntimeError as error:
        raise RankLost(
            f"{_describe_missing(arrived, ranks)} within {meet_s:g} s; rank {rank} stops"
        ) from error
    set_timeout(patience_s)


def set_timeout(seconds: float) -> None:
    """Set the timeout of the default group's operations."""
    patience = timedelta(seconds=seconds)
    dist.distributed_c10d._get_default_store().set_timeout(patience)
    with suppress(AttributeError):
        dist.set_timeout(patience)
        return
    dist.distributed_c10d._set_pg_timeout(patience)  # the name before torch 2.15


def _describe_missing(arrived: dist.Store, ranks: int) -> str:
    try:
        missing = [str(rank) for rank in range(ranks) if not arrived.check([str(rank)])]
    except RuntimeError:
        return "the ranks' store ended"
    if not missing:
        return f"not all of {ranks} ranks could connect to one another"
    return f"rank{'s' if len(missing) > 1 else ''} {', '.join(missing)} did not come to the rendezvous"
