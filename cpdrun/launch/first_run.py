"""The first run of a script goes alone.

A wrong pattern for the metric, or a missing package, makes all runs of a script fail in the same way. The others
start only after the first run has shown that the script trains and logs its metric.
"""

from collections.abc import Callable, Sequence

from cpdrun.config.script import NO_METRIC, is_script
from cpdrun.launch.base import Event, Job, LaunchOptions
from cpdrun.launch.executors import executor_class
from cpdrun.record import Ending, Result

QUICK_S = 20.0  # a run that fails within this many seconds failed at startup, so the others would fail too


class FirstRun:
    """Holds back all jobs but the first until that one has ended.

    Args:
        jobs: What is to be run. Scripts are held back only if none of their sweep's runs has a result yet.
        options: The options of the command line.
        say: Called with a line for the user.
    """

    def __init__(self, jobs: Sequence[Job], options: LaunchOptions, say: Callable[[str], None]) -> None:
        self._say = say
        self.problem = ""
        self.is_awaited = (
            bool(jobs)
            and is_script(jobs[0].config)
            and executor_class(jobs[0].config["launcher"]).here
            and not options.keep_going
            and not any(run.result() for run in jobs[0].run.sweep.runs())
        )
        self._held_back = list(jobs[1:]) if self.is_awaited else []
        self.jobs = list(jobs[: len(jobs) - len(self._held_back)])

    def more(self, event: Event) -> list[Job]:
        """Return the jobs that may start after a run has ended."""
        if not self.has_shown(event):
            return []
        held_back, self._held_back = self._held_back, []
        return held_back

    def has_shown(self, event: Event) -> bool:
        """Return whether the run that has ended shows that the others may start."""
        if self.is_awaited and not self.problem:
            self.is_awaited = False
            self.problem = _problem(event)
            if self.problem:
                self._say(f"{self.problem} No other run was started; --keep-going starts them anyway.")
            elif (result := event.job.run.result()) is not None:
                self._say(_found(result))
        return not self.problem


def _problem(event: Event) -> str:
    outcome = event.outcome
    if not outcome.status.is_failure or outcome.status is Ending.KILLED:  # another run need not be killed
        return ""
    if NO_METRIC in outcome.reason:
        return "The first run trained to its end without its metric."
    if outcome.started is None or outcome.ended is None or outcome.ended - outcome.started > QUICK_S:
        return ""
    return f"The first run failed after {outcome.ended - outcome.started:.0f} s."


def _found(result: Result) -> str:
    """Return `found val_loss and val_acc; val_loss decides, lower is better`."""
    *others, last = result.metrics
    names = f"{', '.join(others)} and {last}" if others else last
    measure = result.measures.get(result.judge or "")
    way = "" if measure is None else f", {'higher' if measure.higher_is_better else 'lower'} is better"
    return f"found {names}; {result.judge} decides{way}"
