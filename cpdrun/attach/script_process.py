"""The process of a user's script, as its parent process sees it, and the log of the script's output.

The script runs in a separate process. Therefore, its whole output is read and logged, however the process ends, for
example by os._exit, by a crash in C++, or by a kill from the kernel.
"""

import contextlib
import os
import select
import signal
import stat
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from cpdrun.parent import adopt_orphans, die_with
from cpdrun.process_tree import Process, descendants
from cpdrun.script_metrics.lines import Lines

READ_BYTES = 1 << 16
POLL_S = 0.25
MAX_LOG_BYTES = 64 << 20  # If a log becomes longer, only END_BYTES at its beginning and at its end are kept.
END_BYTES = 1 << 20


class BoundedLog:
    """A log file of bounded size. If it becomes too long, its middle is removed.

    Other processes may append to the file, too.

    Args:
        path: The file.
        most_bytes: The size at which the middle is removed.
        end_bytes: The number of bytes that are kept at the beginning, and the number that are kept at the end.
    """

    def __init__(self, path: Path, most_bytes: int = MAX_LOG_BYTES, end_bytes: int = END_BYTES) -> None:
        self.path, self.most_bytes, self.end_bytes = path, most_bytes, end_bytes
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._size = os.fstat(self.fd).st_size
        self._dropped = 0

    def write(self, data: bytes) -> None:
        """Append to the file. Raises OSError if the disk is full."""
        view = memoryview(data)
        while view:
            view = view[os.write(self.fd, view) :]
        self._size += len(data)
        if self._size > self.most_bytes:
            self._drop_middle()

    def _drop_middle(self) -> None:
        size = os.fstat(self.fd).st_size
        end = os.pread(self.fd, self.end_bytes, size - self.end_bytes)
        self._dropped += size - 2 * self.end_bytes
        os.ftruncate(self.fd, self.end_bytes)
        note = f"\n... {self._dropped:,} bytes are left out here: a log of more than {self.most_bytes >> 20} MiB\n"
        kept = note.encode() + end.partition(b"\n")[2]
        os.write(self.fd, kept)
        self._size = self.end_bytes + len(kept)


class ScriptProcess:
    """A running script. Read `lines` until it has ended.

    Attributes:
        exit_code: The exit code, or -n if signal n ended the script. None while it runs.
        left_behind: Processes that the script started and that still run after the script has ended, because they are
            in another process group.
    """

    def __init__(self, pid: int, pipe: int) -> None:
        self.pid, self.pipe = pid, pipe
        self.pidfd = os.pidfd_open(pid)
        self.exit_code: int | None = None
        self.left_behind: list[Process] = []

    @classmethod
    def fork(cls, body: Callable[[], int]) -> "ScriptProcess":
        """Call `body` in a fork of this process, which has imported torch. The result of `body` is the exit code."""
        reader, writer = os.pipe()
        adopt_orphans()
        sys.stdout.flush()
        sys.stderr.flush()
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            _run_in_child(parent, writer, body)
        os.close(writer)
        return cls(pid, reader)

    @classmethod
    def start(cls, command: Sequence[str], environ: Mapping[str, str], folder: str) -> "ScriptProcess":
        """Start a program. Raises OSError if it cannot be started."""
        reader, writer = os.pipe()
        adopt_orphans()
        parent = os.getpid()
        try:
            process = subprocess.Popen(
                command,
                env=dict(environ),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                process_group=0,
                preexec_fn=lambda: die_with(parent),
            )
        finally:
            os.close(writer)
        process.returncode = 0  # `_end` waits for this process, so subprocess must not.
        return cls(process.pid, reader)

    def lines(self, log: BoundedLog, poll: Callable[[], None]) -> Iterator[str]:
        """Yield the lines that the script prints, and write them to `log`.

        The iteration ends when the script ends, even if a process that the script left running has its output open.

        Args:
            log: The log of the script.
            poll: A function that is called about four times a second.
        """
        lines, polled = Lines(), 0.0
        os.set_blocking(self.pipe, False)
        ended = closed = False
        while not ended:
            waiting = [self.pidfd] if closed else [self.pidfd, self.pipe]
            ready, _, _ = select.select(waiting, [], [], POLL_S)
            ended = self.pidfd in ready
            if ended:
                self._end()
            while not closed and (data := self._read()) is not None:
                closed = not data
                if data:
                    log.write(data)
                    yield from lines.feed(data)
                if time.monotonic() - polled > POLL_S:
                    break
            while ended and not closed and (data := self._read()):
                log.write(data)
                yield from lines.feed(data)
            if time.monotonic() - polled > POLL_S:
                polled = time.monotonic()
                self._reap_orphans()
                poll()
        yield from lines.last()

    def _read(self) -> bytes | None:
        """Return the next bytes of the output, b"" at its end, or None if no output is available at the moment."""
        try:
            return os.read(self.pipe, READ_BYTES)
        except BlockingIOError:
            return None

    def signal(self, number: int) -> None:
        """Send a signal to all processes in the script's process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def _reap_orphans(self) -> None:
        """Wait for ended processes that the script's children have left to this process."""
        with contextlib.suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if ended.si_pid == self.pid:  # `_end` waits for the script itself.
                    return
                os.waitpid(ended.si_pid, 0)

    def _end(self) -> None:
        self.signal(signal.SIGKILL)  # End the remaining processes in the script's process group.
        _, status = os.waitpid(self.pid, 0)
        self.exit_code = os.waitstatus_to_exitcode(status)
        # Not left behind: the script's group, which was just killed, this process's group, and ended processes (None)
        not_left_behind = (self.pid, os.getpgrp(), None)
        self.left_behind = [
            process for process in descendants(os.getpid()) if _group_of(process.pid) not in not_left_behind
        ]


def _group_of(pid: int) -> int | None:
    """Return the process group of a process, or None if the process has ended."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _close_inherited_files() -> None:
    """Close the files that this process inherited: the run's lock, the connection to the agent, the engine's pipes.

    A run counts as running as long as some process has one of these files open, and a script may leave a process
    running that never ends. Devices remain open, because libraries may already use them.
    """
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 (numbers, not paths)
        with contextlib.suppress(OSError):
            if int(name) > 2 and not stat.S_ISCHR(os.fstat(int(name)).st_mode):
                os.close(int(name))


def _run_in_child(parent: int, writer: int, body: Callable[[], int]) -> NoReturn:
    code = 1
    try:
        os.setpgid(0, 0)
        die_with(parent)
        for fd in (1, 2):
            os.dup2(writer, fd)
        _close_inherited_files()
        code = body()
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
