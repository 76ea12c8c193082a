"""The log of a script's rank: everything that it prints, within a bounded size."""

import os
from pathlib import Path

MOST_BYTES = 64 << 20  # of a log; one that grows longer keeps its first and its last END_BYTES
END_BYTES = 1 << 20


class BoundedLog:
    """A file that is appended to. Nobody else may write to it meanwhile but by appending.

    Args:
        most_bytes: how long it may grow before its middle is dropped.
        end_bytes: how much of its beginning and of its end is kept then.
    """

    def __init__(self, path: Path, most_bytes: int = MOST_BYTES, end_bytes: int = END_BYTES) -> None:
        self.path, self.most_bytes, self.end_bytes = path, most_bytes, end_bytes
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._size = os.fstat(self.fd).st_size
        self._dropped = 0

    def write(self, data: bytes) -> None:
        """Raises OSError where the disk takes no more."""
        view = memoryview(data)
        while view:
            view = view[os.write(self.fd, view) :]
        self._size += len(data)
        if self._size > self.most_bytes:
            self._drop_the_middle()

    def _drop_the_middle(self) -> None:
        size = os.fstat(self.fd).st_size
        end = os.pread(self.fd, self.end_bytes, size - self.end_bytes)
        self._dropped += size - 2 * self.end_bytes
        os.ftruncate(self.fd, self.end_bytes)
        note = f"\n... {self._dropped:,} bytes are left out here: a log of more than {self.most_bytes >> 20} MiB\n"
        kept = note.encode() + end.partition(b"\n")[2]
        os.write(self.fd, kept)
        self._size = self.end_bytes + len(kept)
