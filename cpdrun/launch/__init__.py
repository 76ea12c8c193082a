"""Launch runs on this machine or through a scheduler. The results are complete run directories.

A Session (session.py) submits jobs to an Executor (base.py), of which there are several: local.py, pull.py and slurm/.
It then follows the executor's events (drive.py). The executor starts one agent per run (attempt/agent.py). The agent
connects to an engine (attempt/connection.py), and the engine (cpdrun.train.engine) starts the ranks.

Nothing here imports torch. Names are imported on first use, so that an agent starts without importing the display.
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
