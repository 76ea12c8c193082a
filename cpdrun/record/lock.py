"""Who works on a run: the holder of an flock on its `.lock`.

The kernel drops the lock when the last process that inherited the descriptor is gone, so a run that was
killed at any instant is free again at once, and a run whose children still live is not.
"""

import fcntl
import os
import time

from cpdrun.record.layout import RunDir

CLAIM_PATIENCE_S = 0.5  # a look by is_claimed holds the lock for microseconds; a real holder, for much longer


def claim(run: RunDir) -> int | None:
    """Take the run for this process and the children it hands the descriptor to.

    Returns the inheritable file descriptor that holds the lock (keep it open), or None when another
    process has the run.
    """
    fd = os.open(run.lock, os.O_RDWR | os.O_CREAT, 0o644)
    deadline = time.monotonic() + CLAIM_PATIENCE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.set_inheritable(fd, True)
            return fd
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(fd)
                return None
            time.sleep(0.02)


def is_claimed(run: RunDir) -> bool:
    """Whether some process works on the run now."""
    try:
        fd = os.open(run.lock, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
