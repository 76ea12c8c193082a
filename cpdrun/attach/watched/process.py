"""The process of a user's script, seen from the one that watches it: started, read, told to stop, and its end.

The script runs in a process of its own, so that whatever it does (os._exit, a crash in C++, the kernel's kill) its last
words are in the log, and what it printed is read to the end.
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
from typing import NoReturn

from cpdrun.attach.watched.log import BoundedLog
from cpdrun.parent import adopt_orphans, die_with
from cpdrun.process_tree import Process, descendants
from cpdrun.script_metrics.lines import Lines

READ_BYTES = 1 << 16
LOOK_S = 0.25


class ScriptProcess:
    """A started script. Read `lines` until it has ended; then `exit_code` tells how (-n: by signal n).

    left_behind: the processes that the script started, that left its process group, and that outlive it.
    """

    def __init__(self, pid: int, pipe: int) -> None:
        self.pid, self.pipe = pid, pipe
        self.pidfd = os.pidfd_open(pid)
        self.exit_code: int | None = None
        self.left_behind: list[Process] = []

    @classmethod
    def forked(cls, body: Callable[[], int]) -> "ScriptProcess":
        """`body` in a fork of this process, which has torch imported; what it returns is the exit code."""
        reader, writer = os.pipe()
        adopt_orphans()
        sys.stdout.flush()
        sys.stderr.flush()
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            _become_the_script(parent, writer, body)
        os.close(writer)
        return cls(pid, reader)

    @classmethod
    def of_command(cls, command: Sequence[str], environ: Mapping[str, str], folder: str) -> "ScriptProcess":
        """A program. Raises OSError where it cannot be started."""
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
        process.returncode = 0  # it is waited for by `_end`
        return cls(process.pid, reader)

    def lines(self, log: BoundedLog, look: Callable[[], None]) -> Iterator[str]:
        """What it prints, line by line, also into `log`; `look` is called some times a second. Ends with the script,
        though a process that it left behind may hold its output open."""
        lines, looked = Lines(), 0.0
        os.set_blocking(self.pipe, False)
        ended = closed = False
        while not ended:
            waiting = [self.pidfd] if closed else [self.pidfd, self.pipe]
            ready, _, _ = select.select(waiting, [], [], LOOK_S)
            ended = self.pidfd in ready
            if ended:
                self._end()
            while not closed and (data := self._read()) is not None:
                closed = not data
                if data:
                    log.write(data)
                    yield from lines.feed(data)
                if time.monotonic() - looked > LOOK_S:
                    break
            if ended and not closed:
                yield from self._rest(log, lines)
            if time.monotonic() - looked > LOOK_S:
                looked = time.monotonic()
                self._reap_orphans()
                look()
        yield from lines.last()

    def _rest(self, log: BoundedLog, lines: Lines) -> Iterator[str]:
        while data := self._read():
            log.write(data)
            yield from lines.feed(data)

    def _read(self) -> bytes | None:
        """b"" at the end of it, None where there is nothing now."""
        try:
            return os.read(self.pipe, READ_BYTES)
        except BlockingIOError:
            return None

    def signal(self, number: int) -> None:
        """To the script and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def _reap_orphans(self) -> None:
        """Collect the processes that the script's children left to this process, and that have ended."""
        with contextlib.suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if ended.si_pid == self.pid:  # `_end` waits for it
                    return
                os.waitpid(ended.si_pid, 0)

    def _end(self) -> None:
        self.signal(signal.SIGKILL)  # the rest of its process group
        _, status = os.waitpid(self.pid, 0)
        self.exit_code = os.waitstatus_to_exitcode(status)
        not_left_behind = (self.pid, os.getpgrp(), None)  # just killed, our own, or gone
        self.left_behind = [
            process for process in descendants(os.getpid()) if _group_of(process.pid) not in not_left_behind
        ]


def _group_of(pid: int) -> int | None:
    """Return the process group, or None if the process is gone."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _close_inherited_files() -> None:
    """Close what this process inherited: the lock of the run, the connection to its agent, the pipes of its engine.

    As long as a process holds one of them, its run counts as running, and a script may leave a process behind that
    never ends. Devices stay open: libraries may use them already.
    """
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 (numbers, not paths)
        with contextlib.suppress(OSError):
            if int(name) > 2 and not stat.S_ISCHR(os.fstat(int(name)).st_mode):
                os.close(int(name))


def _become_the_script(parent: int, writer: int, body: Callable[[], int]) -> NoReturn:
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
