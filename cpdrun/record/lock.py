"""Claims of runs, which ensure that only one process works on a run. A claim is an flock on the run's `.lock`.

The kernel releases the lock when the last process that inherited the descriptor has ended. Therefore, another process
can claim a killed run at once, unless one of its children is still alive.

Some file systems of clusters, and Windows, do not support flock. There, the process that creates the file `.holder` has
the claim, and touches the file while it is alive. If the file was not touched for STALE_S seconds, by the clock of the
file system, another process may take over the claim.
"""

import contextlib
import errno
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from cpdrun.record.files import NOT_REGULAR, NotRegularError, open_record, read_record, remove_stale_files
from cpdrun.record.layout import RunDir

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# A process tries for this long to get a lock. If only `is_claimed` holds the lock, it is free again within
# microseconds. A process that has claimed the run holds it much longer.
CLAIM_PATIENCE_S = 0.5
HEARTBEAT_S = 15.0
STALE_S = 120.0
NO_FLOCK = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


def claim(run: RunDir) -> int | None:
    """Claim the run for this process and the children that inherit the descriptor.

    Temporary files of an earlier holder that was killed are removed.

    Returns:
        The inheritable file descriptor of the lock, which must be kept open, or None if another process has claimed the
        run. Call `heartbeat` every HEARTBEAT_S during the claim, and `release` at its end.
    """
    fd = _open_lock(run.lock)
    os.set_inheritable(fd, True)
    deadline = time.monotonic() + CLAIM_PATIENCE_S
    while True:
        try:
            _flock(fd, "LOCK_EX", "LOCK_NB")
            remove_stale_files(run.path)
            return fd
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(fd)
                return None
            time.sleep(0.02)
        except OSError as error:
            if error.errno in NO_FLOCK and _create_holder(run):
                return fd
            os.close(fd)
            if error.errno in NO_FLOCK:
                return None
            raise


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock the file `path` exclusively inside a `with` block, after waiting for other processes that have locked it.

    On a file system without flock, this function does not wait. Temporary files of a killed process in the same folder
    are removed.
    """
    fd = _open_lock(path)
    try:
        try:
            _flock(fd, "LOCK_EX")
        except OSError as error:
            if error.errno not in NO_FLOCK:
                raise
        remove_stale_files(path.parent)
        yield
    finally:
        os.close(fd)


def heartbeat(run: RunDir) -> bool:
    """Show that the holder of a claim is alive, if the file system does not support flock.

    Return False if another process has taken over the claim.
    """
    try:
        mine = read_record(run.holder).decode("utf-8", "replace") == _signature()
    except FileNotFoundError:  # The claim is an flock.
        return True
    if mine:
        os.utime(run.holder)
    return mine


def release(run: RunDir, fd: int) -> None:
    """Release a claim. An flock is released when all children have closed the descriptor, too."""
    if heartbeat(run):
        run.holder.unlink(missing_ok=True)
    os.close(fd)


def is_claimed(run: RunDir) -> bool:
    """Return True if a process has claimed the run. A `.lock` that is not a regular file does not count as a claim."""
    try:
        file = open_record(run.lock)
    except (FileNotFoundError, NotADirectoryError, NotRegularError):
        return False
    fd = file.fileno()
    try:
        _flock(fd, "LOCK_SH", "LOCK_NB")
        return False
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno in NO_FLOCK:
            return run.holder.exists() and not _is_stale(run.holder, run)
        raise
    finally:
        file.close()


def _open_lock(path: Path) -> int:
    """Open or create a lock file. Raises NotRegularError if it is a link, a pipe, or a device."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotRegularError(errno.ELOOP, NOT_REGULAR, str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotRegularError(errno.EINVAL, NOT_REGULAR, str(path))
    return fd


def _flock(fd: int, *ways: str) -> None:
    if fcntl is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    fcntl.flock(fd, sum(getattr(fcntl, way) for way in ways))


def _create_holder(run: RunDir) -> bool:
    if run.holder.exists():
        return _is_stale(run.holder, run) and _take_over(run)
    return _create(run.holder)


def _take_over(run: RunDir) -> bool:
    """Take over the claim of a dead holder. If several processes try this, only one of them succeeds."""
    right = run.holder.with_name(f"{run.holder.name}.takeover")
    if not _create(right):
        if _is_stale(right, run):  # The process that created this file died before it could remove the file.
            right.unlink(missing_ok=True)
        return False
    try:
        if not _is_stale(run.holder, run):
            return False
        run.holder.unlink()
        return _create(run.holder)
    finally:
        right.unlink()


def _create(path: Path) -> bool:
    """Create a file with this process's signature. Return False if the file exists."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return False
    with os.fdopen(fd, "w") as file:
        file.write(_signature())
    return True


def _signature() -> str:
    return f"{socket.gethostname()} {os.getpid()}\n"


def _is_stale(path: Path, run: RunDir) -> bool:
    try:
        os.utime(
            run.lock
        )  # The file server sets the times of both files, so the machines' clocks may differ.
        return run.lock.stat().st_mtime - path.stat().st_mtime > STALE_S
    except OSError:
        return False
