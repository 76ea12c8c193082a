"""The asking side of cpdrun.train.engine: a connection to an engine, warm or cold, and a request over it."""

import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import IO, Any

from cpdrun.config.script import is_script

ENGINE = "cpdrun.train.engine"
RANK, SCRIPT_RANK = "cpdrun.train.rank", "cpdrun.attach.rank"  # what a rank of a run is: its `run_rank`
LOOK, SCRIPT_LOOK = (
    "cpdrun.train.preflight.check",
    "cpdrun.attach.runner",
)  # what looks whether runs can start: its `check`
LOOK_S = 0.25  # between two looks at whether the engine was killed
LEAVING_S = 10.0  # for the ranks to leave memory, once they have ended
# Tests of the launcher put a stand-in here whose "training" they control.
MODULE_VARIABLE = "CPDRUN_ENGINE_MODULE"


class WarmEngine:
    """A process that has torch imported and forks an engine for each connection it is given.

    It starts on first use, or earlier with `start`, and is ready about two seconds later. Requests wait until then. If
    it was killed or closed, it is started again when it is used.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen | None = None

    def start(self) -> None:
        if self.is_alive():
            return
        self.close()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = _start("--warm", theirs)

    @property
    def control(self) -> int:
        """The descriptor that an agent inherits to ask for connections."""
        self.start()
        return self._control.fileno()

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def look(self, configs: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
        """Return the problems of configs and the notes about them, one line each.

        SCRIPT_LOOK checks the configs of scripts, and LOOK all others.
        """
        problems: list[str] = []
        notes: list[str] = []
        for by, of_script in ((LOOK, False), (SCRIPT_LOOK, True)):
            if asked := [config for config in configs if is_script(config) is of_script]:
                found = self._look(by, asked)
                problems += found[0]
                notes += found[1]
        return problems, notes

    def _look(self, by: str, configs: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
        answer, began = None, []
        if (connection := warm_connection(self.control)) is not None:
            with connection:
                answer, _ = ask(connection, {"do": "check", "by": by, "configs": configs}, [], began.append)
        if answer is not None:
            return answer["problems"], answer["notes"]
        if began and self.is_alive():
            return [
                "out of memory, probably: the process that tried out model and data was killed (by hand, or by the "
                "kernel for want of memory)"
            ], []
        return ["the trainer could not be imported (its message is above)"], []

    def close(self) -> None:
        if self._process is not None:
            self._control.close()
            self._process.kill()
            self._process.wait()
            self._process = None


class Starter:
    """Starts the ranks of a run in an engine on this machine. The engine is forked from a warm process, or starts cold.

    Args:
        warm: The descriptor of the control socket of a warm process. None for a cold start.
    """

    nodes = 1  # engines that share the ranks

    def __init__(self, warm: int | None = None) -> None:
        self.kind = "cold" if warm is None else "warm"
        self._warm = warm
        self._connection: socket.socket | None = None
        self._is_killed = False
        self.engine: int | None = None  # the process that started the ranks, while they run
        self.leaves_processes = False  # whether some process of the latest request outlives its ranks

    def start(
        self, request: dict[str, Any], lock: int, log: IO[str], given_up: Callable[[], bool]
    ) -> dict[str, Any] | None:
        """Put `request`, wait until the ranks have ended, and return the answer, or None if the engine was killed.

        Nothing is started once `given_up` is true.
        """
        answer, self._is_killed, self.leaves_processes = None, False, False
        with (self._warm and warm_connection(self._warm)) or cold_connection(log) as connection:
            self._connection = connection
            if not given_up():
                answer, all_gone = ask(
                    connection, request, [lock, log.fileno()], self._started, lambda: self._is_killed
                )
                self.leaves_processes = not all_gone
            self.engine = self._connection = None
        return answer

    def kill(self) -> None:
        """Kill the ranks at once; `start` returns when they are gone. May be called from a signal handler."""
        self._is_killed = True
        if (connection := self._connection) is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)  # the engine dies of it; we read until all are gone
            if (engine := self.engine) is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(engine, signal.SIGKILL)  # it may be stopped, and hear nothing

    def _started(self, pid: int) -> None:
        self.engine = pid


def warm_connection(control: int) -> socket.socket | None:
    """A connection to a new engine, forked from the warm process behind `control`; None where that is gone."""
    ours, theirs = socket.socketpair()
    with theirs, socket.socket(fileno=os.dup(control)) as channel:
        try:
            socket.send_fds(channel, [b"c"], [theirs.fileno()])
        except OSError:
            ours.close()
            return None
    return ours


def cold_connection(log: IO[str]) -> socket.socket:
    """A connection to a new engine that imports torch first; what it prints goes to `log`."""
    ours, theirs = socket.socketpair()
    with theirs:
        _start("--once", theirs, log)
    return ours


def ask(
    connection: socket.socket,
    request: dict[str, Any],
    descriptors: list[int],
    on_start: Callable[[int], None] = lambda pid: None,
    is_killed: Callable[[], bool] = lambda: False,
) -> tuple[dict[str, Any] | None, bool]:
    """Put `request`, and wait for the answer and then for the last process behind it to be gone.

    Once the answer is there, or the engine was killed, the wait lasts LEAVING_S at most: what still holds the
    connection then is no rank, but a process that a rank left behind.

    Args:
        on_start: Called with the engine's process.
        is_killed: Whether somebody has killed the engine meanwhile.

    Returns:
        The answer, or None if there was none because the engine was killed or could not start; and whether every
        process behind it is gone.
    """
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        data = json.dumps(request).encode() + b"\n"
        sent = socket.send_fds(connection, [data], descriptors) if descriptors else 0
        connection.sendall(data[sent:])
    connection.settimeout(LOOK_S)
    answer, received, until = None, b"", math.inf
    while time.monotonic() < until:
        if until == math.inf and (answer is not None or is_killed()):
            until = time.monotonic() + LEAVING_S
        try:
            part = connection.recv(65536)
        except TimeoutError:
            continue
        except ConnectionResetError:
            return answer, True
        if not part:
            return answer, True
        *lines, received = (received + part).split(b"\n")
        for line in map(json.loads, lines):
            if "pid" in line:
                on_start(line["pid"])
            else:
                answer = line
    return answer, False


def engine_command() -> list[str]:
    return [sys.executable, "-m", os.environ.get(MODULE_VARIABLE, ENGINE)]


def _start(how: str, theirs: socket.socket, output: IO[str] | None = None) -> subprocess.Popen:
    command = [*engine_command(), how, str(theirs.fileno()), "--parent", str(os.getpid())]
    # A session of its own: Ctrl-C on the terminal is the launcher's to handle.
    return subprocess.Popen(
        command,
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )
