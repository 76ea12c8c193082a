"""The command that runs a module in a new process, and functions that tie a process to its parent and its descendants.

Agents, engines, ranks and scripts use these functions. Such a process ends when its parent ends, for whatever reason,
and it can adopt the processes that its own children leave behind.
"""

import ctypes
import os
import signal
import sys

# Options of Linux's prctl.
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
# Tests set this variable to the name of a module that runs other modules in its own way, for example in a process that
# has already imported torch.
RUNNER_VARIABLE = "CPDRUN_MODULE_RUNNER"


def module_command(module: str) -> list[str]:
    """Return the command that runs a module in a new process. Callers append the module's arguments."""
    runner = os.environ.get(RUNNER_VARIABLE)
    return [sys.executable, "-m", *([runner] if runner else []), module]


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends, even if the parent is killed by SIGKILL.

    Args:
        parent: The process id of the parent. If it has already ended, this process exits at once.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the call of prctl
        os._exit(1)


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent ends, instead of the machine's init process."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
