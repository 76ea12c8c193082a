"""The heartbeat of a run: a file that rank 0 touches after every step and every evaluated batch.

The watchdog in the launcher (cpdrun.launch.attempt.watchdog) checks its modification time. The code that makes progress
touches the file itself. A separate thread would continue to touch it while the training hangs.
"""

import os
import time
from contextlib import suppress
from pathlib import Path

INTERVAL_S = 1.0


class _State:
    """The heartbeat of this process, which is a rank of one run."""

    file: Path | None = None
    last_beat = 0.0


def start(file: Path) -> None:
    """Create `file` and use it for the heartbeat from now on."""
    file.touch()
    _State.file, _State.last_beat = file, time.monotonic()


def beat() -> None:
    """Report progress. Calls are cheap, and have no effect before `start`."""
    now = time.monotonic()
    if _State.file is not None and now - _State.last_beat >= INTERVAL_S:
        _State.last_beat = now
        with suppress(OSError):  # If the folder was deleted, the next write to it raises an error.
            os.utime(_State.file)
