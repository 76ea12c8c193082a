"""Serve the report of a running sweep to a browser on this machine.

The server writes no files and executes nothing that a run recorded. It answers only requests for `/` that name this
machine as the host. Checking the host prevents DNS rebinding, in which a foreign web page makes its own name point to
this machine.
"""

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import bottle

from cpdrun.record import State, SweepDir, read_manifest, state_of
from cpdrun.report.content import ReportOptions, read_content
from cpdrun.report.page import html, pictures
from cpdrun.study import ReportError
from cpdrun.study.collect import sweep_names

HOST = "127.0.0.1"
HOSTS = (HOST, "localhost")
_NOT_STARTED = "not started"


@dataclass(frozen=True)
class Progress:
    """The progress of some sweeps.

    Attributes:
        version: A text that changes whenever a run changes its state.
        total: The number of runs, including those that are only listed in a manifest.
        ended: The number of runs that have a result or failed.
        failed: The number of runs that failed or cannot be read.
        running: The number of runs that are running.
    """

    version: str
    total: int
    ended: int
    failed: int
    running: int

    @property
    def is_over(self) -> bool:
        """Whether all runs have ended."""
        return self.ended == self.total


def read_progress(sweeps: Sequence[SweepDir]) -> Progress:
    states = [line for sweep in sweep_names(sweeps).values() for line in _states(sweep)]
    counts = Counter(state for _, state in states)
    failed = counts[State.FAILED] + counts["unreadable"]
    return Progress(
        version=hashlib.sha256(repr(states).encode()).hexdigest()[:16],
        total=len(states),
        ended=counts[State.DONE] + failed,
        failed=failed,
        running=counts[State.RUNNING],
    )


def _states(sweep: SweepDir) -> list[tuple[str, str]]:
    """Return (path, state) for each run of a sweep.

    In addition to `State`, a state can be "unreadable" or "not started".
    """
    found: dict[str, str] = {}
    for run in sweep.runs():
        try:
            found[run.name] = str(state_of(run))
        except (OSError, ValueError):
            found[run.name] = "unreadable"
    try:
        planned = read_manifest(sweep).get("runs")
    except (OSError, ValueError, AttributeError):
        planned = None
    for name in planned if isinstance(planned, list) else ():
        found.setdefault(str(name), _NOT_STARTED)
    return [(str(sweep.run(name).path), state) for name, state in found.items()]


class LivePage:
    """The page of some sweeps, which several threads can read.

    Making the page takes at most a fifth of the time, because the runs need the processor.
    """

    def __init__(self, sweeps: Sequence[SweepDir], options: ReportOptions) -> None:
        self.sweeps = sweeps
        self.options = options
        self._version = ""
        self._text = ""
        self._next_s = 0.0
        self._lock = threading.Lock()

    def read(self) -> tuple[str, str]:
        """Return the version and the text of the page, remade if a run has changed."""
        with self._lock:
            began_s = time.monotonic()
            if began_s >= self._next_s:
                progress = read_progress(self.sweeps)
                if progress.version != self._version:
                    self._text = self._make(progress)
                    self._version = progress.version
                ended_s = time.monotonic()
                self._next_s = ended_s + 4 * (ended_s - began_s)
            return self._version, self._text

    def _make(self, progress: Progress) -> str:
        try:
            content = read_content(self.sweeps, self.options)
        except ReportError as error:
            return html.waiting_page(list(sweep_names(self.sweeps)), str(error), progress)
        return html.page(content, pictures.svgs(pictures.render(content.study, ["svg"])), progress)


def application(page: LivePage) -> bottle.Bottle:
    """Return the web application that serves `page` at `/`."""
    app = bottle.Bottle()

    @app.hook("before_request")
    def check_host() -> None:
        name = bottle.request.get_header("Host", "").rpartition(":")
        if (name[0] or name[2]) not in HOSTS:
            bottle.abort(404)

    @app.get("/")
    def index() -> Any:
        version, text = page.read()
        tag = f'"{version}"'
        headers = {"ETag": tag, "Cache-Control": "no-store", "X-Frame-Options": "DENY"}
        if bottle.request.get_header("If-None-Match") == tag:
            return bottle.HTTPResponse(status=304, headers=headers)
        return bottle.HTTPResponse(text, 200, headers | {"Content-Type": "text/html; charset=utf-8"})

    app.default_error_handler = lambda error: error.status_line
    return app


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Handler(WSGIRequestHandler):
    # The time in seconds after which the server closes a connection on which the browser sends nothing.
    timeout = 60

    def log_message(self, format: str, *args: Any) -> None:
        """Discard the log of requests."""


def live_server(sweeps: Sequence[SweepDir], options: ReportOptions) -> WSGIServer:
    """Return a server that listens on a free port of this machine only."""
    return make_server(HOST, 0, application(LivePage(sweeps, options)), _Server, _Handler)


def serve(sweeps: Sequence[SweepDir], options: ReportOptions, announce: Callable[[str], None]) -> None:
    """Serve the report until Ctrl-C.

    `announce` is called with the address of the page when the server accepts connections.
    """
    with live_server(sweeps, options) as server:
        announce(f"http://{HOST}:{server.server_port}/")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return
