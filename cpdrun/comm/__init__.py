"""Gradient synchronisation: few bits on the wire, and the same bits when one process plays all machines."""

from cpdrun.comm.base import GradientSync
from cpdrun.comm.emulation import emulate_all_reduce
from cpdrun.comm.sync import AllReduceSync

__all__ = ["AllReduceSync", "GradientSync", "emulate_all_reduce"]
