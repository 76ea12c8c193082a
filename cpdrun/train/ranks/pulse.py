"""The sign of life of a run: a file that rank 0 touches as it gets on, a step or a batch of the evaluation at a time.

The agent outside looks at it (cpdrun.launch.attempt.watchdog). It is touched by what makes progress and by no thread
beside it, since a thread would go on where the training hangs.
"""

import os
import time
from contextlib import suppress
from pathlib import Path

EVERY_S = 1.0


class _Pulse:
    """Of this process, which is a rank of one run."""

    file: Path | None = None
    beaten = 0.0


def start(file: Path) -> None:
    """Create `file`, to be touched from now on."""
    file.touch()
    _Pulse.file, _Pulse.beaten = file, time.monotonic()


def beat() -> None:
    """Say that the run has got on. Costs nothing to call often; does nothing before `start`."""
    now = time.monotonic()
    if _Pulse.file is not None and now - _Pulse.beaten >= EVERY_S:
        _Pulse.beaten = now
        with suppress(OSError):  # where the folder is gone, the next write says so
            os.utime(_Pulse.file)
