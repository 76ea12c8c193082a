"""Gradient synchronisation: few bits on the wire, and the same bits when one process plays all machines."""

from cpdrun.comm.base import GradientSync
from cpdrun.comm.collectives import all_reduce, all_reduce_, all_reduce_coalesced, emulate_all_reduce
from cpdrun.comm.hook import ddp_hook
from cpdrun.comm.local_steps import LocalSteps
from cpdrun.comm.sums.sum import Sum
from cpdrun.comm.sync import AllReduceSync
from cpdrun.comm.wire.failure import RankLost, naming_lost_ranks

__all__ = [
    "AllReduceSync",
    "GradientSync",
    "LocalSteps",
    "RankLost",
    "Sum",
    "all_reduce",
    "all_reduce_",
    "all_reduce_coalesced",
    "ddp_hook",
    "emulate_all_reduce",
    "naming_lost_ranks",
]
