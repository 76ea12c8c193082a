"""Launching: jobs in, finished run directories out, on this machine or through a scheduler.

The main path: a Session (session.py) hands jobs to an Executor (base.py; local.py, pull.py, slurm/) and follows its
events (drive.py); the executor starts one agent a run (attempt/agent.py); the agent asks an engine (connection.py is
its client, cpdrun.train.engine the program) to start the ranks. Nothing here imports torch. Names are imported on
first use, so that an agent does not pay for the display.
"""

from importlib import import_module
from typing import Any

_HOME = {
    "Display": "progress.display",
    "Event": "base",
    "FolderGoneError": "base",
    "Job": "base",
    "LaunchError": "base",
    "LaunchOptions": "base",
    "Session": "session",
    "Summary": "summary",
    "axes_of": "progress.axes",
    "print_summary": "progress.display",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
