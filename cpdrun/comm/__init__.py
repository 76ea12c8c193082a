"""Gradient synchronization in few bits per value.

The results do not depend on how the workers are divided among processes. One process that emulates all workers computes
the same bits as one process per worker.
"""

from typing import Any

from cpdrun.comm.script.all_to_all import all_to_all, emulate_all_to_all
from cpdrun.comm.script.collectives import all_reduce, all_reduce_, all_reduce_coalesced, emulate_all_reduce
from cpdrun.comm.script.ddp_hook import ddp_hook
from cpdrun.comm.script.local_steps import LocalSteps
from cpdrun.comm.sums.sum import Sum
from cpdrun.comm.sync.all_reduce import AllReduceSync
from cpdrun.comm.sync.base import GradientSync
from cpdrun.comm.wire.lost_ranks import RankLost, naming_lost_ranks

__all__ = [
    "AllReduceSync",
    "GradientSync",
    "LocalSteps",
    "RankLost",
    "Sum",
    "all_reduce",
    "all_reduce_",
    "all_reduce_coalesced",
    "all_to_all",
    "ddp_hook",
    "emulate_all_reduce",
    "emulate_all_to_all",
    "fsdp_comm",
    "naming_lost_ranks",
]


def __getattr__(name: str) -> Any:
    """Import `fsdp_comm` when it is first used, because torch's FSDP takes a second to import."""
    if name != "fsdp_comm":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from cpdrun.comm.script.fsdp import fsdp_comm

    return fsdp_comm
