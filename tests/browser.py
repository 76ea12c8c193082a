"""A real headless Chromium, driven over its DevTools pipe (no extra package).

The protocol: JSON messages ended by a zero byte, written to descriptor 3 and read from descriptor 4.
"""

import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def find() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    def __init__(self, read_fd: int, write_fd: int):
        self._read_fd, self._write_fd, self._buffer, self._sent, self._session = (
            read_fd,
            write_fd,
            b"",
            0,
            None,
        )
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; events that come before are kept in `events`."""
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write_fd, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive(30)
            if answer.get("id") == self._sent:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self.events.append(answer)

    def open(self, path: Path) -> None:
        self.navigate(path.as_uri())

    def navigate(self, address: str) -> None:
        self._load("Page.navigate", url=address)

    def reload(self) -> None:
        self._load("Page.reload")

    def _load(self, method: str, **parameters: Any) -> None:
        self.events = [event for event in self.events if event.get("method") != "Page.loadEventFired"]
        self.call(method, **parameters)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive(30))

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression on the page; of a promise what it holds in the end."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def point_at(self, selector: str) -> None:
        """Move the mouse onto the first element that `selector` finds."""
        box = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
            " return [b.left + b.width / 2, b.top + b.height / 2] })()"
        )
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])

    def click(self, selector: str) -> None:
        self.point_at(selector)
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def complaints(self) -> list[str]:
        """Errors on the console, uncaught exceptions, and requests that left the page's own file."""
        found = []
        for event in self.events:
            parameters = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(str(parameters["exceptionDetails"]))
            if event.get("method") == "Runtime.consoleAPICalled" and parameters["type"] in (
                "error",
                "assert",
            ):
                found.append(str(parameters["args"]))
            if event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
                found.append(parameters["entry"]["text"])
            if event.get("method") == "Network.requestWillBeSent":
                url = parameters["request"]["url"]
                if not url.startswith(("file:", "data:", "about:")):
                    found.append(url)
        return found

    def _receive(self, patience_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + patience_s
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read_fd], [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                raise TimeoutError("the browser does not answer")
            self._buffer += os.read(self._read_fd, 1 << 20)
        line, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(line)


@contextlib.contextmanager
def start(program: str) -> Iterator[Browser]:
    """A browser with one empty page; it ends with the context."""
    to_browser, from_browser = os.pipe(), os.pipe()
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--remote-debugging-pipe",
        "--window-size=1200,900",
    ]
    # Its descriptors 3 and 4 are made by a shell, from whatever numbers the pipes have here.
    shell = f'exec "$0" "$@" 3<&{to_browser[0]} 4>&{from_browser[1]}'
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            ["bash", "-c", shell, program, *options, f"--user-data-dir={profile}"],
            pass_fds=(to_browser[0], from_browser[1]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser[0])
        os.close(from_browser[1])
        try:
            yield Browser(from_browser[0], to_browser[1])
        finally:
            process.terminate()
            process.wait(timeout=20)
            os.close(to_browser[1])
            os.close(from_browser[0])
