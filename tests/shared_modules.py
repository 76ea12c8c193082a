"""Run modules of cpdrun in forked processes, so that the tests import torch only once.

A cpdrun command starts other processes with `python -m MODULE ARGUMENTS`: the engine that trains, and modules that
simulate formats or build a model. Each of these processes would spend two to five seconds on imports.

The tests set CPDRUN_MODULE_RUNNER to this module, so the command runs `python -m shared_modules MODULE ARGUMENTS`
instead. This process sends its arguments, environment, working directory and file descriptors to a server, which has
already imported everything. The server forks a process that runs the module. Some tests in tests/launch, and
tests/test_wheel.py, start modules without the server.

If CPDRUN_TEST_STAND_IN is set, engines only pretend to train (see tests/launch/stand_in.py).
"""

import contextlib
import importlib
import json
import multiprocessing
import multiprocessing.connection
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
from pathlib import Path
from types import ModuleType

ENGINE = "cpdrun.train.engine"
SOCKET_VARIABLE = "CPDRUN_TEST_MODULES"
STAND_IN_VARIABLE = "CPDRUN_TEST_STAND_IN"
_context = multiprocessing.get_context("forkserver")


@contextlib.contextmanager
def shared_modules(path: Path):
    """Accept requests at the socket `path`. The server is started when the first request arrives.

    Yields:
        The environment variables that make commands use the server.
    """
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(32)
    is_over, wake = socket.socketpair()
    servers = []

    def start_on_request() -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            selector.register(is_over, selectors.EVENT_READ)
            ready = [key.fileobj for key, _ in selector.select()]
        if is_over in ready:
            return
        servers.append(_context.Process(target=_serve, args=(listener, is_over), daemon=True))
        servers[0].start()
        # If the server dies, close the listener. Otherwise, commands that wait for an answer would hang.
        if is_over not in multiprocessing.connection.wait([servers[0].sentinel, is_over]):
            listener.close()

    thread = threading.Thread(target=start_on_request, daemon=True)
    thread.start()
    try:
        yield {
            "CPDRUN_MODULE_RUNNER": "shared_modules",
            SOCKET_VARIABLE: str(path),
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])
            ),
        }
    finally:
        wake.close()
        thread.join()
        for server in servers:
            server.kill()
            server.join()
        listener.close()
        is_over.close()


def _serve(listener: socket.socket, is_over: socket.socket) -> None:
    """Fork a process for each connection and send its exit code back when it exits.

    If the client disconnects first, the process is killed.
    """
    from cpdrun.parent import die_with

    die_with(os.getppid())
    multiprocessing.current_process().daemon = False  # multiprocessing does not allow daemons to start ranks
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(is_over, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is is_over:
                    # The tests have ended or were killed. Linux kills the forked processes when this process exits.
                    os._exit(0)
                elif key.fileobj is listener:
                    connection, _ = listener.accept()
                    data, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 3)
                    while not data.endswith(b"\n") and (more := connection.recv(1 << 20)):
                        data += more
                    if not data.endswith(b"\n"):  # The command was killed while it sent its request.
                        for descriptor in (*descriptors, connection.detach()):
                            os.close(descriptor)
                        continue
                    pid = os.fork()
                    if pid == 0:
                        selector.close()
                        _run(json.loads(data), *descriptors)
                    for descriptor in descriptors:
                        os.close(descriptor)
                    ended = os.pidfd_open(pid)
                    selector.register(connection, selectors.EVENT_READ, (pid, ended, connection))
                    selector.register(ended, selectors.EVENT_READ, (pid, ended, connection))
                elif key.data[1] in selector.get_map():
                    # The process has ended, or its client has disconnected. If both happen in one pass of this loop,
                    # the condition skips the second event.
                    pid, ended, connection = key.data
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    with contextlib.suppress(OSError):
                        connection.sendall(str(code).encode())
                    selector.unregister(connection)
                    selector.unregister(ended)
                    connection.close()
                    os.close(ended)


def _run(request: dict, output: int, errors: int, control: int | None = None) -> None:
    """Run the requested module in this process, which was forked for the request, and exit."""
    from cpdrun.parent import die_with

    code = 1
    try:
        die_with(os.getppid())
        os.setsid()
        os.dup2(output, 1)
        os.dup2(errors, 2)
        os.environ.clear()
        os.environ |= request["environ"]
        os.chdir(request["folder"])
        sys.path[:] = request["path"]
        module, *words = request["words"]
        if control is not None:
            _engine().serve_warm(socket.socket(fileno=control))
        else:
            import torch

            torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
            code = _main(module, words)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _engine() -> ModuleType:
    if os.environ.get(STAND_IN_VARIABLE):
        importlib.import_module("stand_in").install()
    return importlib.import_module(ENGINE)


def _main(module: str, words: list[str]) -> int:
    """Run a module as `python -m` does, and return its exit code."""
    if "--parent" in words:
        # Remove this option: the process is a child of the server, not of the given parent. The server kills the
        # process after the parent ends.
        at = words.index("--parent")
        del words[at : at + 2]
    sys.argv = [module, *words]
    sys.modules.pop(module, None)
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def main(words: list[str]) -> int:
    from cpdrun.parent import die_with

    descriptors = [1, 2]
    if words[0] == ENGINE:
        if words[1] != "--warm":
            _engine().main(words[1:])
            return 0
        descriptors.append(int(words[2]))
    if "--parent" in words:
        die_with(int(words[words.index("--parent") + 1]))
    environ = {key: value for key, value in os.environ.items() if key != SOCKET_VARIABLE}
    request = {"words": words, "environ": environ, "folder": str(Path.cwd()), "path": sys.path}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[SOCKET_VARIABLE])
        data = json.dumps(request).encode() + b"\n"
        sent = socket.send_fds(connection, [data], descriptors)
        connection.sendall(data[sent:])
        for control in descriptors[2:]:
            os.close(control)
        code = int(connection.recv(16) or -signal.SIGKILL)
    if code < 0:
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
