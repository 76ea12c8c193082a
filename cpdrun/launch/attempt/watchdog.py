"""Tells a run that has hung, or takes too long, from one that works: by the file that its rank 0 touches.

Ranks notice among themselves when one of them hangs, and name it. Nobody inside a run notices when its one process
is stopped, when all of them are, or when one waits for something that is no rank.
"""

import time
from pathlib import Path

NAMING_S = (
    15.0  # once their patience is over, ranks have this long to find out which of them hangs, and to say so
)
OF_TRAINING, OF_SCRIPT = "no step", "no output, no run.log() and no optimizer step"
ASLEEP_S = 10.0  # between two looks: the watchdog was stopped itself, and the run probably with it


class Watchdog:
    """Of one attempt, which begins now; `clock` counts seconds.

    Args:
        pulse: the file that is touched as the run gets on; it may not exist yet.
        patience_s: how long a run may stand still.
        limit_s: how long an attempt may take; None: for ever.
        signs: what the run gets on by, in words.
    """

    def __init__(
        self,
        pulse: Path,
        patience_s: float,
        limit_s: float | None,
        clock=time.monotonic,
        signs: str = OF_TRAINING,
    ) -> None:
        self.pulse, self.patience_s, self.limit_s, self._clock = pulse, patience_s, limit_s, clock
        self.signs = signs
        self._began = self._got_on = self._looked = clock()
        self._touched: int | None = None

    def look(self) -> None:
        """To be called once a second."""
        now = self._clock()
        asleep = now - self._looked
        if asleep > ASLEEP_S:  # neither the run nor its limit is to be charged with that
            self._began += asleep
            self._got_on += asleep
        self._looked = now
        try:
            touched = self.pulse.stat().st_mtime_ns
        except OSError:
            touched = None
        if touched != self._touched:
            self._touched, self._got_on = touched, now

    @property
    def hangs_s(self) -> float:
        """Return the seconds since the run's patience was over; 0 or less if it is not."""
        return self._looked - self._got_on - self.patience_s

    @property
    def hangs(self) -> str:
        """Return why the run is to be killed, or ""."""
        return (
            f"hung or stopped: {self.signs} in {self.patience_s:g} s (patience_s)" if self.hangs_s > 0 else ""
        )

    @property
    def overtime_s(self) -> float:
        """Seconds past the limit; 0 or less within it."""
        return -1.0 if self.limit_s is None else self._looked - self._began - self.limit_s
