"""A process that ends when the one that started it does, however that ends: an agent, an engine, a rank, a script."""

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1  # of Linux's prctl


def die_with(parent: int) -> None:
    """Have the kernel kill this process when `parent` ends, even by kill -9."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)
