"""Synchronization of gradients between workers: one exchange per module, behind `GradientSync`."""

from cpdrun.comm.sync.all_reduce import AllReduceSync, decoded

__all__ = ["AllReduceSync", "decoded"]
