"""Reading and writing the files of a record.

A record may come from anyone, so `open_record` is the only function that opens a file of it for reading: it accepts
regular files and refuses everything else. Files are replaced in one step (temporary file, fsync, rename), and JSON
lines survive a kill. JSON is strict: NaN and infinities, which JSON lacks, are written as null.
"""

import contextlib
import errno
import json
import math
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    import numpy as np

MAX_JSON_BYTES = 16 << 20
MAX_LINE_BYTES = 4 << 20  # of JSON lines and of logs
MAX_LINES_BYTES = 256 << 20  # of a whole file of JSON lines
MAX_ARRAYS_BYTES = 512 << 20  # of observed.npz, unpacked
STALE_S = 60  # a temporary file this old was left behind by a killed process: writing one takes milliseconds
_SUFFIX = ".partial"  # of temporary files
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY
_LINE = json.JSONEncoder(allow_nan=False).encode  # one for all lines: json.dumps makes one each time
_UMASK = os.umask(0)  # it can be read only by setting it
os.umask(_UMASK)


class NotRegularError(OSError):
    """A file of a record that is none: a link, a pipe, a device, a folder, or larger than any that cpdrun writes."""


NOT_REGULAR = "is not a regular file"
_NO_FILE = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError, NotRegularError)


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text`, encoded as UTF-8, in one step (see `write_bytes`)."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` by `content` in one step: a reader sees the old file or the new one, never a part.

    Raises OSError where the file system refuses (disk full, read-only); the old file is then untouched.
    """
    try:
        fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_SUFFIX)
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
    return json.dumps(finite(value), indent=2, ensure_ascii=False, allow_nan=False)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON in one step (see write_text); non-finite floats become null."""
    write_text(path, json.dumps(finite(value), indent=2, allow_nan=False) + "\n")


def open_record(path: Path) -> BinaryIO:
    """Open a file of a record for reading, without waiting and without following a link.

    Raises:
        NotRegularError: `path` is a link, a pipe, a socket, a device or a folder.
        OSError: the file is absent or cannot be read.
    """
    try:
        fd = os.open(path, _OPEN)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotRegularError(
                errno.ELOOP, "is a symbolic link; a record contains only regular files", str(path)
            ) from None
        if error.errno == errno.ENXIO:  # a socket
            raise NotRegularError(errno.EINVAL, NOT_REGULAR, str(path)) from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise NotRegularError(errno.EINVAL, NOT_REGULAR, str(path))
        return os.fdopen(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


def read_record(path: Path, max_bytes: int = MAX_JSON_BYTES) -> bytes:
    """Return the contents of a file of a record. Raises as `open_record`, and NotRegularError for a larger file."""
    with open_record(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise NotRegularError(errno.EFBIG, f"is larger than {max_bytes >> 20} MiB", str(path))
    return content


def read_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of an open file, each with its end. A line longer than MAX_LINE_BYTES is cut there."""
    while line := file.readline(MAX_LINE_BYTES):
        rest = line
        while not rest.endswith(b"\n") and (rest := file.readline(MAX_LINE_BYTES)):
            pass
        yield line if line.endswith(b"\n") or not rest else line[:-1] + b"\n"


def check_inside(root: Path, path: Path) -> None:
    """Raise NotRegularError if any component of `path` below `root` is a symbolic link.

    Files that are written to a received folder must not land outside of it.
    """
    for part in (path, *path.parents):
        if part == root:
            return
        if part.is_symlink():
            raise NotRegularError(
                errno.ELOOP, "is a symbolic link that may point outside the folder; remove it", str(part)
            )


def read_json(path: Path, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """Return the JSON value in `path`, or None if there is none.

    A file that is absent, may not be read, is no regular file, is too large or holds no valid JSON has no value.
    """
    try:
        return json.loads(read_record(path, max_bytes))
    except (*_NO_FILE, ValueError, RecursionError):
        return None


def read_object(path: Path, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any] | None:
    """Return the JSON object in `path`, or None if the file is absent or holds anything else."""
    value = read_json(path, max_bytes)
    return value if isinstance(value, dict) else None


def append_json_line(path: Path, row: dict[str, Any], *, to_disk: bool = True) -> None:
    """Add `row` as one line of JSON and hand it to the disk; a line that a kill cut short is ended first.
    Not `to_disk`, it survives its process and not its machine, and costs microseconds."""
    line = _LINE(finite(row)).encode() + b"\n"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)
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
    write_text(path, "".join(_LINE(finite(row)) + "\n" for row in rows))


def read_json_lines(path: Path, max_rows: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a JSON-lines file.

    Lines that a kill cut short, that are damaged or longer than MAX_LINE_BYTES are skipped, and so is everything after
    the first MAX_LINES_BYTES. Of a file with more than `max_rows` lines, evenly spaced ones are read, and the last.
    """
    try:
        file = open_record(path)
    except _NO_FILE:
        return
    with file:
        count = 0 if max_rows is None else sum(1 for _ in _bounded_lines(file))
        stride = 1 if max_rows is None else math.ceil(count / max_rows)
        file.seek(0)
        for number, line in enumerate(_bounded_lines(file), 1):
            if stride > 1 and number % stride and number != count:
                continue
            with contextlib.suppress(ValueError, RecursionError):
                row = json.loads(line)
                if isinstance(row, dict):
                    yield row


def _bounded_lines(file: BinaryIO) -> Iterator[bytes]:
    for line in read_lines(file):
        if file.tell() > MAX_LINES_BYTES:
            return
        yield line


def read_arrays(path: Path) -> dict[str, "np.ndarray"]:
    """Return the arrays of an .npz file. Nothing in it is unpickled.

    Raises:
        OSError: the file is absent, cannot be read or is no regular file.
        ValueError: it is damaged, holds objects, or unpacks to more than MAX_ARRAYS_BYTES.
    """
    import zipfile
    import zlib

    import numpy as np

    with open_record(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                if sum(member.file_size for member in archive.infolist()) > MAX_ARRAYS_BYTES:
                    raise ValueError(f"is larger than {MAX_ARRAYS_BYTES >> 20} MiB")
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
        except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, MemoryError, RuntimeError) as error:
            raise ValueError(str(error) or type(error).__name__) from None


def remove_stale_files(folder: Path) -> None:
    """Remove the temporary files that killed processes left in `folder`. Younger ones may be in use and stay."""
    for path in folder.glob(f".*{_SUFFIX}"):
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_mtime > STALE_S:
                path.unlink()


def remove(path: Path) -> None:
    """Take `path` away, or the folder that somebody put in its place; nothing where it is absent."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def finite(value: Any) -> Any:
    """Return JSON data with None in place of every float that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
