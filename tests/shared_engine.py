"""Start engines by forking one process that has imported everything, instead of importing torch for every sweep.

A command that trains starts `python -m cpdrun.train.engine --warm FD`, which spends five seconds on imports. The
tests set CPDRUN_ENGINE_MODULE to this module. It passes the descriptor, its environment and its working directory to
a server, which forks a process for them. That process does what the engine does after its imports. The real start is
tested in tests/launch.
"""

import contextlib
import json
import multiprocessing
import multiprocessing.connection
import os
import selectors
import signal
import socket
import sys
import threading
from pathlib import Path

SOCKET_VARIABLE = "CPDRUN_TEST_ENGINES"
_context = multiprocessing.get_context("forkserver")


@contextlib.contextmanager
def shared_engines(path: Path):
    """Accept requests at the socket `path`. The server starts with the first request.

    Yields:
        The environment variables of the commands that are to use it.
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
        # If the server dies, commands that wait for an engine would otherwise wait forever.
        if is_over not in multiprocessing.connection.wait([servers[0].sentinel, is_over]):
            listener.close()

    thread = threading.Thread(target=start_on_request, daemon=True)
    thread.start()
    try:
        yield {
            "CPDRUN_ENGINE_MODULE": "shared_engine",
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
    """Fork a process for each connection, kill it when its connection closes, and close the connection when it ends."""
    from cpdrun.parent import die_with

    die_with(os.getppid())
    multiprocessing.current_process().daemon = False  # daemonic processes must not start ranks
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(is_over, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if (
                    key.fileobj is is_over
                ):  # the tests have ended or were killed; the engines end with this process
                    os._exit(0)
                elif key.fileobj is listener:
                    connection, _ = listener.accept()
                    data, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 3)
                    while not data.endswith(b"\n") and (more := connection.recv(1 << 20)):
                        data += more
                    if not data.endswith(b"\n"):  # the command was killed before it had sent its request
                        for descriptor in (*descriptors, connection.detach()):
                            os.close(descriptor)
                        continue
                    pid = os.fork()
                    if pid == 0:
                        selector.close()
                        _become_engine(json.loads(data), descriptors)
                    for descriptor in descriptors:
                        os.close(descriptor)
                    ended = os.pidfd_open(pid)
                    selector.register(connection, selectors.EVENT_READ, (pid, ended, connection))
                    selector.register(ended, selectors.EVENT_READ, (pid, ended, connection))
                elif key.data[1] in selector.get_map():  # the other of the two may have been handled just now
                    pid, ended, connection = key.data
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    selector.unregister(connection)
                    selector.unregister(ended)
                    connection.close()
                    os.close(ended)


def _become_engine(request: dict, descriptors: list[int]) -> None:
    from cpdrun.parent import die_with
    from cpdrun.train import engine

    try:
        die_with(os.getppid())
        os.setsid()
        control, output, errors = descriptors
        os.dup2(output, 1)
        os.dup2(errors, 2)
        os.environ.clear()
        os.environ |= request["environ"]
        os.chdir(request["folder"])
        sys.path[:] = request["path"]
        engine.serve_warm(socket.socket(fileno=control))
    finally:
        os._exit(0)


def main(words: list[str]) -> None:
    from cpdrun.parent import die_with

    if words[0] != "--warm":
        from cpdrun.train import engine

        engine.main(words)
        return
    control = int(words[1])
    die_with(int(words[words.index("--parent") + 1]))
    environ = {key: value for key, value in os.environ.items() if key != SOCKET_VARIABLE}
    request = {"environ": environ, "folder": str(Path.cwd()), "path": sys.path}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[SOCKET_VARIABLE])
        data = json.dumps(request).encode() + b"\n"
        sent = socket.send_fds(connection, [data], [control, 1, 2])
        connection.sendall(data[sent:])
        os.close(control)
        connection.recv(1)


if __name__ == "__main__":
    main(sys.argv[1:])
