"""How an agent, an engine, a rank and a script depend on the process that started them.

Each ends when its parent does, however that ends, and can look after what its own children leave behind.
"""

import ctypes
import os
import signal

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # of Linux's prctl


def die_with(parent: int) -> None:
    """Have the kernel kill this process when `parent` ends, even by kill -9."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, in place of the machine's first process."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
