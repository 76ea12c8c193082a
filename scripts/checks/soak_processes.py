"""Functions for all soak tests, which start commands of cpdrun, wait for them, and find their processes."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from cpdrun.record import RunDir

T = TypeVar("T")


class BrokenError(Exception):
    """Raised if a property that a soak test checks does not hold."""


def start(command: str, arguments: Sequence[str], log: Path, **options: Any) -> subprocess.Popen:
    """Start a command of cpdrun whose output is appended to a log. `options` are those of Popen."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        streams = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file}
        return subprocess.Popen(
            [sys.executable, "-m", "cpdrun.cli", command, *arguments], **streams | options
        )


def wait_for(
    condition: Callable[[], T], what: str, patience_s: float, process: subprocess.Popen | None = None
) -> T:
    """Return the first true value of a condition.

    Args:
        condition: The function that is called repeatedly.
        what: A description of the condition, for the message.
        patience_s: The longest time to wait, in seconds.
        process: A process. If it ends, the function stops waiting.

    Raises:
        BrokenError: The condition did not become true.
    """
    until = time.monotonic() + patience_s
    while not (value := condition()):
        if time.monotonic() > until or (process is not None and process.poll() is not None):
            raise BrokenError(f"{what} did not appear within {patience_s:g} s")
        time.sleep(0.01)
    return value


def proc_folders() -> Iterator[Path]:
    """Yield the folder in /proc of each process."""
    return (folder for folder in Path("/proc").iterdir() if folder.name.isdecimal())


def find_processes(folder: Path) -> list[int]:
    """Return the processes that use `folder`: their command line or an open file contains its path."""
    found = []
    for process in proc_folders():
        if int(process.name) != os.getpid():
            with contextlib.suppress(OSError):
                names = [(process / "cmdline").read_bytes().decode(errors="replace")]
                names += [str(entry.readlink()) for entry in (process / "fd").iterdir()]
                if any(f"{folder}/" in name or name.endswith(str(folder)) for name in names):
                    found.append(int(process.name))
    return found


def wait_until_alone(folder: Path, patience_s: float) -> None:
    """Wait until no process uses a folder. Raise BrokenError if some still do."""
    until = time.monotonic() + patience_s
    while left := find_processes(folder):
        if time.monotonic() > until:
            raise BrokenError(f"{folder.name}: these processes did not end: {left}")
        time.sleep(0.1)


def find_rank(run: RunDir, rank: int) -> int | None:
    """Return the process that writes the log of a rank, or None."""
    log = run.attempts()[0].rank_log(rank).resolve()
    for process in proc_folders():
        with contextlib.suppress(OSError):
            if (process / "fd" / "1").readlink() == log:
                return int(process.name)
    return None


def find_roles(launcher: subprocess.Popen) -> dict[str, list[int]]:
    """Return the processes of a sweep by role, from their command lines and their parents."""
    parents, lines = {}, {}
    for process in proc_folders():
        with contextlib.suppress(OSError):
            state, parent = (process / "stat").read_text().rsplit(")", 1)[1].split()[:2]
            if state != "Z":
                pid = int(process.name)
                parents[pid] = int(parent)
                lines[pid] = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    found: dict[str, list[int]] = {"launcher": [launcher.pid]}
    role_of = {launcher.pid: "launcher"}
    for pid in _descendants(launcher.pid, parents):
        if "cpdrun.launch.attempt.agent" in " ".join(lines[pid]):
            role = "agent"
        elif role_of[parents[pid]] == "launcher":
            role = "warm process"
        else:  # Engines are forked from the warm process or started by an agent. Ranks are forked from an engine.
            role = "engine" if role_of[parents[pid]] in ("warm process", "agent") else "rank"
        role_of[pid] = role
        found.setdefault(role, []).append(pid)
    return found


def _descendants(root: int, parents: dict[int, int]) -> list[int]:
    """Return the descendants of `root`, with parents before their children."""
    found = [root]
    for pid in found:
        found += sorted(child for child, parent in parents.items() if parent == pid)
    return found[1:]
