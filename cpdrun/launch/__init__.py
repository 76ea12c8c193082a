"""Launching: jobs in, finished run directories out, on this machine or through Slurm.

The main path: `launch` (run.py) hands jobs to an Executor (base.py; local.py, slurm.py); the executor starts
one agent a run (agent.py); the agent asks an engine (engine.py here is its client, cpdrun.train.ranks.engine the
program) to start the ranks. Nothing here imports torch. Names are imported on first use, so that an agent
does not pay for the display.
"""

from importlib import import_module
from typing import Any

_HOME = {
    "FolderGoneError": "base",
    "Job": "base",
    "LaunchError": "base",
    "LaunchOptions": "base",
    "Summary": "base",
    "launch": "run",
    "preflight": "run",
    "warm_up": "run",
    "would_write": "run",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
