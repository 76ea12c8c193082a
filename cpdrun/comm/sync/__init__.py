"""Synchronization of gradients between workers. Each module contains one method, with the interface `GradientSync`."""

from cpdrun.comm.sync.all_reduce import AllReduceSync, decoded

__all__ = ["AllReduceSync", "decoded"]
