"""Detection of a run that hangs or takes too long, based on a file that rank 0 touches when it makes progress.

If one of several ranks hangs, the other ranks detect and report this. But they cannot detect that all processes of the
run are stopped, or that a process waits for something other than a rank.
"""

import time
from pathlib import Path

# After `patience_s` without progress, ranks have this many seconds to find and report the rank that hangs.
NAMING_S = 15.0
OF_TRAINING, OF_SCRIPT = "no step", "no output, no run.log() and no optimizer step"
# If more than this many seconds pass between two checks, the watchdog and probably the run were suspended.
ASLEEP_S = 10.0


class Watchdog:
    """The watchdog of one attempt. The time of the attempt is measured from the creation of the watchdog.

    Args:
        pulse: The file that the run touches when it makes progress. It may not exist yet.
        patience_s: The longest time without progress, in seconds. After that, the run counts as hanging.
        limit_s: The longest duration of an attempt, in seconds. None for no limit.
        clock: A function that returns the time in seconds.
        signs: A description of the missing signs of progress, for the message about a run that hangs.
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
        """Check the progress of the run. Call this once a second."""
        now = self._clock()
        asleep = now - self._looked
        if asleep > ASLEEP_S:  # This time counts neither as time without progress nor toward the limit.
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
        """The number of seconds since the run started to count as hanging. It is 0 or less if it does not hang."""
        return self._looked - self._got_on - self.patience_s

    @property
    def hangs(self) -> str:
        """The reason why the run must be killed, or "" if it does not hang."""
        return (
            f"hung or stopped: {self.signs} in {self.patience_s:g} s (patience_s)" if self.hangs_s > 0 else ""
        )

    @property
    def overtime_s(self) -> float:
        """The number of seconds since the limit was reached. It is 0 or less if it is not reached."""
        return -1.0 if self.limit_s is None else self._looked - self._began - self.limit_s
