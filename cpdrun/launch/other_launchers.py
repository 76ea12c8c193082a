"""Tracking of the jobs of this launch whose runs are trained by another launcher or worker."""

import time

from cpdrun.launch.attempt.ending import end_of
from cpdrun.launch.base import Event, Job
from cpdrun.record import failed_since, is_claimed

POLL_S = 1.0  # the interval between two checks of the jobs


class Elsewhere:
    """The jobs whose runs another launcher or worker has claimed or finished.

    When a job is submitted, the number of attempts of its run is recorded. If a later attempt fails, another process
    made it, and the run is not tried again here.

    Attributes:
        jobs: The jobs whose runs have not ended yet.
    """

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self._known: dict[str, int] = {}
        self._looked = 0.0

    def note(self, job: Job) -> None:
        """Record a submitted job."""
        self._known[job.run.name] = job.run.attempts_so_far

    def known(self, job: Job) -> int:
        return self._known[job.run.name]

    def has(self, job: Job) -> bool:
        """Return True if another process has claimed or finished the run of a job.

        An agent checks this, too, after it has claimed a run. The check here avoids starting an agent in vain.
        """
        run = job.run
        return run.done.exists() or is_claimed(run) or failed_since(run, self.known(job))

    def look(self) -> tuple[list[Event], list[Job]]:
        """Return the events of runs that other processes have ended, and the jobs that they dropped."""
        if not self.jobs or time.monotonic() - self._looked < POLL_S:
            return [], []
        self._looked = time.monotonic()
        waited_for, self.jobs = self.jobs, []
        events, dropped = [], []
        for job in waited_for:
            if is_claimed(job.run) and not job.run.done.exists():
                self.jobs.append(job)
            elif (outcome := end_of(job.run, self.known(job))) is not None:
                events.append(Event(job, outcome, elsewhere=True))
            else:
                dropped.append(job)
        return events, dropped
