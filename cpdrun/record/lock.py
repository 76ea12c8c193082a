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
import time
from collections.abc import Iterator
from pathlib import Path

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
    """Take the run for this process and the children it hands the descriptor to.

    Returns the inheritable file descriptor that holds the lock (keep it open), or None when another
    process has the run. Call `heartbeat` every HEARTBEAT_S while it is held, and `release` in the end.
    """
    fd = os.open(run.lock, os.O_RDWR | os.O_CREAT, 0o644)
    os.set_inheritable(fd, True)
    deadline = time.monotonic() + CLAIM_PATIENCE_S
    while True:
        try:
            _flock(fd, "LOCK_EX", "LOCK_NB")
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
    """Alone with what `path` stands for: waits for whoever else is in here. Where the file system has no flock, nobody
    waits."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            _flock(fd, "LOCK_EX")
        except OSError as error:
            if error.errno not in NO_FLOCK:
                raise
        yield
    finally:
        os.close(fd)


def heartbeat(run: RunDir) -> bool:
    """Say that the holder lives, where flock does not say it; False where another took the run over meanwhile."""
    try:
        mine = run.holder.read_text(encoding="utf-8") == _signature()
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
    """Whether some process works on the run now."""
    try:
        fd = os.open(run.lock, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return False
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
        os.close(fd)


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
