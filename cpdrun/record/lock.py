"""Who works on a run: the holder of an flock on its `.lock`.

The kernel drops the lock when the last process that inherited the descriptor is gone, so a run that was
killed at any instant is free again at once, and a run whose children still live is not.

Some file systems of clusters have no flock, nor has Windows. There the holder is whoever created `.holder`, and touches
it while it lives; one that was not touched for STALE_S seconds, by the file system's own clock, is taken over.
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

CLAIM_PATIENCE_S = 0.5  # a look by is_claimed holds the lock for microseconds; a real holder, for much longer
HEARTBEAT_S = 15.0
STALE_S = 120.0
NO_FLOCK = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


def claim(run: RunDir) -> int | None:
    """Claim the run for this process and the children that inherit the descriptor.

    Temporary files that an earlier, killed holder left are removed.

    Returns:
        The inheritable file descriptor that holds the lock (keep it open), or None if another process has the run.
        Call `heartbeat` every HEARTBEAT_S while it is held, and `release` in the end.
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
    """Hold the lock file `path` exclusively, after waiting for other holders. Without flock, nobody waits.

    Temporary files that a killed holder left beside it are removed.
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
    """Say that the holder lives, where flock does not say it; False where another took the run over meanwhile."""
    try:
        mine = read_record(run.holder).decode("utf-8", "replace") == _signature()
    except FileNotFoundError:  # the kernel's lock says it
        return True
    if mine:
        os.utime(run.holder)
    return mine


def release(run: RunDir, fd: int) -> None:
    """Give the run back. The lock of flock is free once the children have closed the descriptor too."""
    if heartbeat(run):
        run.holder.unlink(missing_ok=True)
    os.close(fd)


def is_claimed(run: RunDir) -> bool:
    """Return whether some process works on the run now. What is no lock file of ours claims nothing."""
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
    """Open or create a lock file. Raises NotRegularError for a link, a pipe or a device in its place."""
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
    """Become the holder in place of a dead one: of several who saw that it is, one gets the right to look again."""
    right = run.holder.with_name(f"{run.holder.name}.takeover")
    if not _create(right):
        if _is_stale(right, run):  # whoever had it died within these lines
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
    """Create `path` and say so, or leave the one that is there."""
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
        os.utime(run.lock)  # the server stamps both files, so that clocks need not agree
        return run.lock.stat().st_mtime - path.stat().st_mtime > STALE_S
    except OSError:
        return False
