"""The tree of the processes of this machine, read from /proc."""

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# The state of a process that was stopped by a signal.
STOPPED = "T"
# A higher age of this process is not believed, because a sandbox may report an impossible start time.
MAX_AGE_S = 60.0
# The maximum length of a command line in a message, in characters.
COMMAND_LENGTH = 80


@dataclass(frozen=True)
class Process:
    """One process.

    Attributes:
        pid: The process id.
        parent: The process id of the parent.
        state: The state as a letter, as in /proc/PID/stat: R (running), S (sleeping), T (stopped by a signal) or Z
            (ended).
    """

    pid: int
    parent: int
    state: str

    def open_file(self, descriptor: int) -> Path | None:
        """Return the path behind a file descriptor, or None if the process is gone or does not have it."""
        try:
            return Path(f"/proc/{self.pid}/fd/{descriptor}").readlink()
        except OSError:
            return None

    @property
    def command(self) -> str:
        """The command line, or "" if the process is gone.

        A forked process has the same command line as the process from which it was forked.
        """
        try:
            words = Path(f"/proc/{self.pid}/cmdline").read_bytes().replace(b"\0", b" ")
        except OSError:
            return ""
        return words.decode(errors="replace").strip()

    def __str__(self) -> str:
        return f"{self.pid} ({self.command[:COMMAND_LENGTH]})"


def this_process() -> Process:
    """Return the process that calls this function."""
    return Process(os.getpid(), os.getppid(), "R")


def descendants(root: int) -> list[Process]:
    """Return the processes below `root` that have not ended, each after its parent."""
    children: dict[int, list[Process]] = {}
    for process in _all():
        children.setdefault(process.parent, []).append(process)
    found = sorted(children.get(root, []), key=lambda process: process.pid)
    for process in found:
        found += sorted(children.get(process.pid, []), key=lambda process: process.pid)
    return [process for process in found if process.state != "Z"]


def holders(path: Path) -> list[Process]:
    """Return the processes that have the file at `path` open."""
    target, found = path.resolve(), []
    for process in _all():
        with contextlib.suppress(OSError):
            if any(entry.readlink() == target for entry in Path(f"/proc/{process.pid}/fd").iterdir()):
                found.append(process)
    return found


def own_age_s() -> float:
    """Return the age of this process in seconds.

    Return 0 if /proc is not available or the age is negative or above MAX_AGE_S.
    """
    try:
        started = float(Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0.0
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")
    return age if 0 <= age <= MAX_AGE_S else 0.0


def _all() -> Iterable[Process]:
    """Yield all processes of this machine."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                # Parse after the last bracket, because the name of the program before it may contain any characters.
                state, parent = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
                yield Process(int(folder.name), int(parent), state)
