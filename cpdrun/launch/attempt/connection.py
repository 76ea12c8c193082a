"""The client side of `cpdrun.train.engine`, which connects to an engine and sends requests to it.

An engine starts the ranks of a run. A warm engine is forked from a process that has already imported torch. A cold
engine imports torch itself.
"""

import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from typing import IO, Any

from cpdrun.config.script import is_script
from cpdrun.parent import module_command

ENGINE = "cpdrun.train.engine"
# The modules whose function `run_rank` runs a rank of cpdrun's own training loop, and of a user's script.
RANK, SCRIPT_RANK = "cpdrun.train.rank", "cpdrun.attach.rank"
# The modules whose function `check` checks whether runs of cpdrun's own training loop, and runs of a script, can start.
CHECKER, SCRIPT_CHECKER = (
    "cpdrun.train.preflight.check",
    "cpdrun.attach.runner",
)
KILL_CHECK_S = 0.25  # the interval at which `ask` checks whether the engine was killed
LEAVING_S = 10.0  # the time that the processes of ranks have to exit after the ranks have ended


class WarmEngine:
    """A process that has imported torch and forks an engine for each connection that it receives.

    The process starts on first use, or earlier if `start` is called, and is ready about two seconds later. Requests
    wait until then. If the process was killed or closed, it is started again on the next use.
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
        """The descriptor of the control socket. An agent inherits it and passes it to `warm_connection`."""
        self.start()
        return self._control.fileno()

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def check(self, configs: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
        """Return the problems of configs and the notes about them, one line each.

        SCRIPT_CHECKER checks the configs of scripts, and CHECKER all others.
        """
        problems: list[str] = []
        notes: list[str] = []
        for by, of_script in ((CHECKER, False), (SCRIPT_CHECKER, True)):
            if selected := [config for config in configs if is_script(config) is of_script]:
                found = self._check(by, selected)
                problems += found[0]
                notes += found[1]
        return problems, notes

    def _check(self, by: str, configs: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
        answer: dict[str, Any] | None = None
        began: list[int] = []
        if (connection := warm_connection(self.control)) is not None:
            with connection:
                answer, _ = ask(connection, {"do": "check", "by": by, "configs": configs}, [], began.append)
        if answer is not None:
            return answer["problems"], answer["notes"]
        if began and self.is_alive():
            return [
                "the process that tested the model and the data was killed, by a user or because the machine is out of "
                "memory"
            ], []
        return ["the trainer could not be imported (its message is above)"], []

    def close(self) -> None:
        if self._process is not None:
            self._control.close()
            self._process.kill()
            self._process.wait()
            self._process = None


class Starter:
    """Starts the ranks of a run in an engine on this machine, which is either warm or cold.

    Args:
        warm: The descriptor of the control socket of a warm process. None for a cold start.
    """

    nodes = 1  # the number of engines among which the ranks are divided

    def __init__(self, warm: int | None = None) -> None:
        self.kind = "cold" if warm is None else "warm"
        self._warm = warm
        self._connection: socket.socket | None = None
        self._is_killed = False
        self.engine: int | None = None  # the process that started the ranks, while they run
        self.leaves_processes = (
            False  # whether the latest request left processes running after its ranks ended
        )

    def start(
        self, request: dict[str, Any], lock: int, log: IO[str], given_up: Callable[[], bool]
    ) -> dict[str, Any] | None:
        """Send a request to an engine, and wait until the ranks have ended.

        Args:
            request: The request, as described in `cpdrun.train.engine`.
            lock: The descriptor of the run's lock, which the ranks inherit.
            log: The log of the attempt, to which the engine writes.
            given_up: A function that is called before the request is sent. If it returns true, nothing is started.

        Returns:
            The engine's answer. None if the engine was killed or nothing was started.
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
        """Kill the ranks. `start` returns when they are gone. This may be called from a signal handler."""
        self._is_killed = True
        if (connection := self._connection) is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(
                    socket.SHUT_WR
                )  # This ends the engine. `ask` continues to read until all ranks have ended.
            if (engine := self.engine) is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(
                        engine, signal.SIGKILL
                    )  # An engine suspended by a signal (such as SIGSTOP) does not notice the shutdown.

    def _started(self, pid: int) -> None:
        self.engine = pid


def warm_connection(control: int) -> socket.socket | None:
    """Return a connection to a new engine that a warm process forks.

    Args:
        control: The descriptor of the control socket of the warm process.

    Returns:
        The connection, or None if the warm process is gone.
    """
    ours, theirs = socket.socketpair()
    with theirs, socket.socket(fileno=os.dup(control)) as channel:
        try:
            socket.send_fds(channel, [b"c"], [theirs.fileno()])
        except OSError:
            ours.close()
            return None
    return ours


def cold_connection(log: IO[str]) -> socket.socket:
    """Start an engine that imports torch itself, and return a connection to it. The engine prints to `log`."""
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
    """Send a request to an engine, and wait for its answer and then for the end of all its processes.

    All processes of the request inherit the connection, so its end of file shows that they are gone. After the answer,
    or after the engine was killed, this function waits for at most LEAVING_S seconds. A process that still exists then
    is not a rank, but a process that a rank has left behind.

    Args:
        connection: The connection to the engine.
        request: The request.
        descriptors: The file descriptors to send with the request.
        on_start: A function that is called with the process id of the engine.
        is_killed: A function that returns whether the engine has been killed.

    Returns:
        The answer, and whether all processes are gone. The answer is None if the engine was killed or could not start.
    """
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        data = json.dumps(request).encode() + b"\n"
        sent = socket.send_fds(connection, [data], descriptors) if descriptors else 0
        connection.sendall(data[sent:])
    connection.settimeout(KILL_CHECK_S)
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
    return module_command(ENGINE)


def _start(how: str, theirs: socket.socket, output: IO[str] | None = None) -> subprocess.Popen:
    command = [*engine_command(), how, str(theirs.fileno()), "--parent", str(os.getpid())]
    # With a new session, Ctrl-C on the terminal reaches only the launcher, which handles it.
    return subprocess.Popen(
        command,
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )
