"""Read and write the files of a record.

A record may come from an untrusted source. Therefore all files of a record are opened for reading by `open_record`,
which accepts only regular files. Files are replaced in one step: a temporary file is written, synced to the disk, and
renamed. If the process is killed, complete JSON lines are not lost. NaN and infinities are written as null, because
JSON does not have them.
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
MAX_LINE_BYTES = 4 << 20  # the limit for a line of a JSON-lines file or of a log
MAX_LINES_BYTES = 256 << 20  # the limit for a JSON-lines file
MAX_ARRAYS_BYTES = 512 << 20  # the limit for the unpacked contents of an .npz file
STALE_S = (
    60  # Writing takes milliseconds, so a temporary file that is older than this belongs to a killed process.
)
_SUFFIX = ".partial"  # the suffix of temporary files
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY
_LINE = json.JSONEncoder(allow_nan=False).encode  # json.dumps would create a new encoder for each line.
_UMASK = os.umask(0)  # The umask can be read only by setting it.
os.umask(_UMASK)


class NotRegularError(OSError):
    """Raised if a path in a record is not a regular file, or the file is larger than any file that cpdrun writes.

    For example, the path may be a link, a pipe, a device, or a folder.
    """


NOT_REGULAR = "is not a regular file"
_NO_FILE = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError, NotRegularError)


def write_text(path: Path, text: str) -> None:
    """Replace the contents of `path` by `text` in UTF-8, in one step like `write_bytes`."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Replace the contents of `path` in one step, so that a reader sees either the old contents or the new ones.

    Raises:
        OSError: The file cannot be written, for example because the disk is full. The old file is unchanged.
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
            # mkstemp makes the file private to its owner, but records are shared.
            os.fchmod(file.fileno(), 0o666 & ~_UMASK)
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise


def json_text(value: Any) -> str:
    """Return `value` as the JSON that commands print for other programs.

    Floats that are not finite become null. Characters outside ASCII are not escaped.
    """
    return json.dumps(finite(value), indent=2, ensure_ascii=False, allow_nan=False)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON, in one step like `write_bytes`. Floats that are not finite become null."""
    write_text(path, json.dumps(finite(value), indent=2, allow_nan=False) + "\n")


def open_record(path: Path) -> BinaryIO:
    """Open a file of a record for reading, without waiting and without following a link.

    Raises:
        NotRegularError: `path` is a link, a pipe, a socket, a device or a folder.
        OSError: The file does not exist or cannot be read.
    """
    try:
        fd = os.open(path, _OPEN)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotRegularError(
                errno.ELOOP, "is a symbolic link; a record contains only regular files", str(path)
            ) from None
        if error.errno == errno.ENXIO:  # The path is a socket.
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
    """Return the contents of a file of a record.

    Raises:
        NotRegularError: `path` is not a regular file, or it is larger than `max_bytes`.
        OSError: The file does not exist or cannot be read.
    """
    with open_record(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise NotRegularError(errno.EFBIG, f"is larger than {max_bytes >> 20} MiB", str(path))
    return content


def read_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of an open file, each with its newline. Lines longer than MAX_LINE_BYTES are cut."""
    while line := file.readline(MAX_LINE_BYTES):
        rest = line
        while not rest.endswith(b"\n") and (rest := file.readline(MAX_LINE_BYTES)):
            pass
        yield line if line.endswith(b"\n") or not rest else line[:-1] + b"\n"


def check_inside(root: Path, path: Path) -> None:
    """Raise NotRegularError if any component of `path` below `root` is a symbolic link.

    This prevents a link in a folder from an untrusted source from redirecting a write to another folder.
    """
    for part in (path, *path.parents):
        if part == root:
            return
        if part.is_symlink():
            raise NotRegularError(
                errno.ELOOP, "is a symbolic link that may point outside the folder; remove it", str(part)
            )


def read_json(path: Path, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """Return the JSON value in a file.

    Return None if the file does not exist, cannot be read, is not a regular file, is larger than `max_bytes`, or does
    not contain valid JSON.
    """
    try:
        return json.loads(read_record(path, max_bytes))
    except (*_NO_FILE, ValueError, RecursionError):
        return None


def read_object(path: Path, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any] | None:
    """Return the JSON object in a file. Return None if `read_json` returns None or another value."""
    value = read_json(path, max_bytes)
    return value if isinstance(value, dict) else None


def append_json_line(path: Path, row: dict[str, Any], *, to_disk: bool = True) -> None:
    """Append a line of JSON to a file.

    If the last line of the file is incomplete because its writer was killed, a newline is added to it first.

    Args:
        path: The file. It is created if it does not exist.
        row: The JSON object of the line. Floats that are not finite become null.
        to_disk: Whether to sync the file to the disk. If not, the call takes only microseconds, but the line is lost if
            the machine crashes. It is not lost if the process is killed.
    """
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
    """Write a JSON-lines file with the given rows, in one step like `write_bytes`."""
    write_text(path, "".join(_LINE(finite(row)) + "\n" for row in rows))


def read_json_lines(path: Path, max_rows: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a JSON-lines file. Yield nothing if the file cannot be read.

    Lines that are incomplete, damaged, or longer than MAX_LINE_BYTES are skipped. Only the first MAX_LINES_BYTES of the
    file are read. If the file has more than `max_rows` lines, only evenly spaced lines and the last line are read.
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
    """Return the arrays of an .npz file, keyed by name. Nothing is unpickled.

    Raises:
        OSError: The file does not exist, cannot be read, or is not a regular file.
        ValueError: The file is damaged, contains Python objects, or is larger than MAX_ARRAYS_BYTES when unpacked.
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
    """Remove the temporary files that killed processes left in `folder`.

    Files younger than STALE_S are not removed, because they may be in use.
    """
    for path in folder.glob(f".*{_SUFFIX}"):
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_mtime > STALE_S:
                path.unlink()


def remove(path: Path) -> None:
    """Remove a file or folder with its contents. Do nothing if it does not exist."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def finite(value: Any) -> Any:
    """Return JSON data in which None replaces every float that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
