"""Files that are whole or absent: temporary file, fsync, rename; and JSON lines that survive a kill.

JSON here is strict: NaN and infinities, which JSON lacks, are written as null.
"""

import contextlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

MAX_JSON_BYTES = 256 << 20
_NO_FILE = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
_LINE = json.JSONEncoder(allow_nan=False).encode  # one for all lines: json.dumps makes one each time
_UMASK = os.umask(0)  # it can be read only by setting it
os.umask(_UMASK)


def write_text(path: Path, text: str) -> None:
    """As `write_bytes`, of text in UTF-8."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` by `content` in one step: a reader sees the old file or the new one, never a part.

    Raises OSError where the file system refuses (disk full, read-only); the old file is then untouched.
    """
    try:
        fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        error.filename = str(path)
        raise
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            # mkstemp keeps files to their owner; records are shared
            os.fchmod(file.fileno(), 0o666 & ~_UMASK)
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise


def json_text(value: Any) -> str:
    """`value` as every command prints JSON for programs: strict, non-finite floats become null, in UTF-8."""
    return json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON in one step (see write_text); non-finite floats become null."""
    write_text(path, json.dumps(_finite(value), indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """The JSON value in `path`, or None where the file is absent or holds no valid JSON: a folder of that name, a file
    that may not be read, and JSON so deep or so long that nobody here wrote it hold none."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            return None
        return json.loads(path.read_text(encoding="utf-8"))
    except (*_NO_FILE, ValueError, RecursionError):
        return None


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in `path`, or None where the file is absent or holds anything else."""
    value = read_json(path)
    return value if isinstance(value, dict) else None


def append_json_line(path: Path, row: dict[str, Any], *, to_disk: bool = True) -> None:
    """Add `row` as one line of JSON and hand it to the disk; a line that a kill cut short is ended first.
    Not `to_disk`, it survives its process and not its machine, and costs microseconds."""
    line = _LINE(_finite(row)).encode() + b"\n"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            line = b"\n" + line
        while line:
            line = line[os.write(fd, line) :]
        if to_disk:
            os.fsync(fd)
    finally:
        os.close(fd)


def write_json_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write all `rows` in one step, a line each; as `write_json`."""
    write_text(path, "".join(_LINE(_finite(row)) + "\n" for row in rows))


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a JSON-lines file; a line cut short by a kill, or damaged, is passed over."""
    try:
        file = path.open("rb")
    except _NO_FILE:
        return
    with file:
        for line in file:
            with contextlib.suppress(ValueError, RecursionError):
                row = json.loads(line)
                if isinstance(row, dict):
                    yield row


def remove(path: Path) -> None:
    """Take `path` away, or the folder that somebody put in its place; nothing where it is absent."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
