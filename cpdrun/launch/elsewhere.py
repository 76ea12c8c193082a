"""Runs that were given to us and that another launcher or worker has, or has had."""

import time

from cpdrun.launch.attempt.ending import end_of
from cpdrun.launch.base import Event, Job
from cpdrun.record import failed_since, is_claimed

LOOK_S = 1.0  # how often to look


class Elsewhere:
    """Remembers how many attempts each run had when it was given to us: a later one that failed is another's failure,
    and is not tried again here."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []  # waited for
        self._known: dict[str, int] = {}
        self._looked = 0.0

    def note(self, job: Job) -> None:
        """`job` was given to us."""
        self._known[job.run.name] = job.run.attempts_so_far

    def known(self, job: Job) -> int:
        return self._known[job.run.name]

    def has(self, job: Job) -> bool:
        """Whether another has the run, or has brought it to its end. An agent looks too, once it has claimed the run;
        this spares it."""
        run = job.run
        return run.done.exists() or is_claimed(run) or failed_since(run, self.known(job))

    def look(self) -> tuple[list[Event], list[Job]]:
        """The ends of runs that others brought to their end, and the jobs that they dropped."""
        if not self.jobs or time.monotonic() - self._looked < LOOK_S:
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
