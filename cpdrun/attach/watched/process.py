"""The process of a user's script, seen from the one that watches it: started, read, told to stop, and its end.

The script runs in a process of its own, so that whatever it does (os._exit, a crash in C++, the kernel's kill) its last
words are in the log, and what it printed is read to the end.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NoReturn

from cpdrun.attach.watched.log import BoundedLog, Lines
from cpdrun.parent import die_with

READ_BYTES = 1 << 16
LOOK_S = 0.25


class ScriptProcess:
    """A started script; `lines` are to be read until it has ended, then `exit_code` says how (-n: signal n)."""

    def __init__(self, pid: int, pipe: int) -> None:
        self.pid, self.pipe = pid, pipe
        self.pidfd = os.pidfd_open(pid)
        self.exit_code: int | None = None

    @classmethod
    def forked(cls, body: Callable[[], int]) -> "ScriptProcess":
        """`body` in a fork of this process, which has torch imported; what it returns is the exit code."""
        reader, writer = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            _become_the_script(parent, reader, writer, body)
        os.close(writer)
        return cls(pid, reader)

    @classmethod
    def of_command(cls, command: Sequence[str], environ: Mapping[str, str], folder: str) -> "ScriptProcess":
        """A program. Raises OSError where it cannot be started."""
        reader, writer = os.pipe()
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

    def _end(self) -> None:
        self.signal(signal.SIGKILL)  # what it left behind
        _, status = os.waitpid(self.pid, 0)
        self.exit_code = os.waitstatus_to_exitcode(status)


def _become_the_script(parent: int, reader: int, writer: int, body: Callable[[], int]) -> NoReturn:
    code = 1
    try:
        os.setpgid(0, 0)
        die_with(parent)
        os.close(reader)
        for fd in (1, 2):
            os.dup2(writer, fd)
        os.close(writer)
        code = body()
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
