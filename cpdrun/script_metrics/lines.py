"""Split the output of a script into lines while it arrives."""

import re
from collections.abc import Iterator

LINE_BYTES = 64 << 10  # longer lines are cut
COLORS = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")  # escape sequences of terminals


class Lines:
    """Split a stream of bytes into lines. A carriage return also ends a line, because progress bars use it."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[str]:
        """Add `data` and yield every line that is now complete."""
        *lines, self._rest = re.split(rb"[\r\n]", self._rest + data)
        if len(self._rest) > LINE_BYTES:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            if line.strip():
                yield COLORS.sub(b"", line[:LINE_BYTES]).decode("utf-8", "replace")

    def last(self) -> Iterator[str]:
        """Yield the last line if it has no line end."""
        yield from self.feed(b"\n")
