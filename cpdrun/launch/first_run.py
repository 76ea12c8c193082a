"""The first runs of a sweep, which show whether the other runs may start.

A missing package, or a wrong pattern for the metric of a script, makes all runs fail in the same way. Therefore, the
other runs start only after a first run has ended without such a failure.
"""

from collections.abc import Sequence

from cpdrun.config.script import NO_METRIC, is_script
from cpdrun.launch.base import Event, Job, LaunchOptions
from cpdrun.launch.executors import executor_class, make_executor
from cpdrun.launch.progress.display import Display
from cpdrun.record import Ending, Result

# A run that fails within this many seconds failed at startup, so the others would fail, too.
QUICK_S = 20.0


class FirstRun:
    """Delays the other jobs of a sweep until a first run has ended.

    For a script, a single run starts first, because a missing metric is detected only at the end of a run. For cpdrun's
    own training loop, as many runs start as this machine can train at the same time. No job is delayed if the sweep
    already has a result, if a scheduler starts the runs, or with --keep-going.

    Args:
        jobs: The jobs to run.
        options: The options of the launch.
        display: The display that shows the launch.
        only_scripts: Whether only jobs of scripts are delayed.

    Attributes:
        jobs: The jobs that may start immediately.
        problem: The reason why the other jobs must not start, or "".
    """

    def __init__(
        self, jobs: Sequence[Job], options: LaunchOptions, display: Display, *, only_scripts: bool = False
    ) -> None:
        self._display = display
        self.problem = ""
        self._is_awaited = (
            bool(jobs)
            and (is_script(jobs[0].config) or not only_scripts)
            and executor_class(jobs[0].config["launcher"]).here
            and not options.keep_going
            and not any(run.result() for run in jobs[0].run.sweep.runs())
        )
        first = _at_once(jobs, options) if self._is_awaited else len(jobs)
        self.jobs, self._held_back = list(jobs[:first]), list(jobs[first:])
        display.held_back = len(self._held_back)

    @property
    def held_back(self) -> int:
        """The number of jobs that are still delayed."""
        return len(self._held_back)

    def more(self, event: Event) -> list[Job]:
        """Return the delayed jobs if they may start after the given event, and otherwise an empty list.

        The outcome of the first run that ends decides this.
        """
        if self._is_awaited:
            self._is_awaited = False
            self.problem = _problem(event)
            result = event.job.run.result()
            if self.problem:
                self._display.say(f"{self.problem} {self._consequence()}")
            elif result is not None and is_script(event.job.config):
                self._display.say(_found(result))
        if self.problem:
            return []
        held_back, self._held_back = self._held_back, []
        self._display.held_back = 0
        return held_back

    def _consequence(self) -> str:
        """Return a sentence about the runs that do not start because the first run has failed."""
        if not self._held_back:
            return ""
        if len(self.jobs) == 1:
            return "No other run was started; --keep-going starts them anyway."
        count = f"{self.held_back} run{' was' if self.held_back == 1 else 's were'}"
        return f"{count} not started; --keep-going starts them anyway."


def _at_once(jobs: Sequence[Job], options: LaunchOptions) -> int:
    """Return the number of jobs that start before any of them has ended."""
    if is_script(jobs[0].config):
        return 1
    executor = make_executor(jobs[0].config["launcher"], jobs[0].run.sweep, options)
    ranks = executor.at_once(list(jobs))
    return len(jobs) if ranks is None else max(1, ranks // max(job.nproc for job in jobs))


def _problem(event: Event) -> str:
    """Return the problem that made a run fail and would make the other runs fail, too, or "" if there is none."""
    outcome = event.outcome
    # A killed run does not mean that the other runs would fail.
    if outcome is None or not outcome.status.is_failure or outcome.status is Ending.KILLED:
        return ""
    if NO_METRIC in outcome.reason:
        return "The first run ended without its metric."
    if outcome.started is None or outcome.ended is None or outcome.ended - outcome.started > QUICK_S:
        return ""
    return f"The first run failed after {outcome.ended - outcome.started:.0f} s."


def _found(result: Result) -> str:
    """Return a message such as `found val_loss and val_acc; val_loss decides, lower is better`."""
    *others, last = result.metrics
    names = f"{', '.join(others)} and {last}" if others else last
    measure = result.measures.get(result.judge or "")
    way = "" if measure is None else f", {'higher' if measure.higher_is_better else 'lower'} is better"
    return f"found {names}; {result.judge} decides{way}"
