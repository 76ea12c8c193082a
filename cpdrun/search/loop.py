"""Run a search: start runs, wait for results, and choose the next runs.

On this machine, the next runs are chosen whenever a run ends. On a cluster, they are chosen after each round of runs.
If a search is stopped, the same command continues it, because it reads the run folders and the sweep's list of runs.
Runs that other commands made in this sweep count, too.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import Any

from cpdrun.launch import Display, Event, Job, LaunchOptions, Session, Summary
from cpdrun.launch.executors import make_executor
from cpdrun.launch.first_run import FirstRun
from cpdrun.record import EXPECTED_RUNS, Ending
from cpdrun.record.run_end import failure_in
from cpdrun.search.ladders import LadderState
from cpdrun.search.plan import forecast_cost
from cpdrun.search.results import Results, observed_runs, sweep_record
from cpdrun.search.schedule import wanted_runs
from cpdrun.stats.ended_runs import RunKey
from cpdrun.stats.failures import Failure
from cpdrun.sweep import write_manifest, write_question
from cpdrun.whatif.baseline_runs import with_observation

KILL_RETRIES = 2  # retries of a run whose process a signal has killed, which is seldom the run's fault


class RunQueue:
    """The runs in flight, and the choice of the next runs."""

    def __init__(self, results: Results) -> None:
        self.results = results
        # Both are keyed by the run's name. `_listed` has the runs that sweep.yaml lists.
        self._in_flight: dict[str, RunKey] = {}
        self._listed: dict[str, RunKey] = {}
        # A run that failed in an earlier search is tried once more, and counts as failed until then.
        self._to_retry = results.failures

    def wanted(self, most: int | None, *, ahead: bool) -> list[RunKey]:
        """Return the runs to start next within the budget, with at most `most` in flight.

        Failed runs of earlier searches come first, then the most useful. `ahead` includes runs that only keep idle
        cores busy.
        """
        results, in_flight = self.results, set(self._in_flight.values())
        states = results.answerable_states()
        found: list[RunKey] = []
        tuning = results.question.tuning
        further = wanted_runs(states, results.ended, in_flight, results.rules(), tuning, ahead=ahead)
        for key in chain(self._to_retry, further):
            if (most is not None and len(in_flight) + len(found) >= most) or self._is_spent(len(found)):
                break
            found.append(key)
        return found

    def next_jobs(self, most: int | None, *, ahead: bool) -> list[Job]:
        """Return the next runs as jobs. This lists them in sweep.yaml and counts them as in flight."""
        question, keys = self.results.question, self.wanted(most, ahead=ahead)
        observed = observed_runs(self.results)
        runs = [question.cells[name][seed] for name, seed in keys]
        runs = [
            with_observation(run) if key in observed else run for run, key in zip(runs, keys, strict=True)
        ]
        new = {run.name: key for run, key in zip(runs, keys, strict=True)}
        self._to_retry = [key for key in self._to_retry if key not in keys]
        self._in_flight |= new
        self._listed |= new
        if runs:
            listed = [question.cells[name][seed] for name, seed in self._listed.values()]
            write_manifest(question.as_plan(listed), self._record())
        return [Job(question.directory.run(run.name), run.config, run.overrides) for run in runs]

    def _record(self) -> dict[str, Any]:
        """Return the `search` section of sweep.yaml, with the expected total number of runs."""
        further = forecast_cost(self.results, None).runs
        total = {} if further is None else {EXPECTED_RUNS: self.results.runs + further}
        return sweep_record(self.results) | total

    def take(self, event: Event) -> None:
        """Record the result or the failure of a run that has ended.

        A preempted run has neither, so it may be started again.
        """
        assert event.outcome is not None
        key = self._in_flight.pop(event.job.run.name)
        if not self.results.take(key) and event.outcome.status is not Ending.PREEMPTED:
            self.results.fail(key, failure_in(event.outcome) or Failure.UNKNOWN)

    def _is_spent(self, further: int) -> bool:
        budget, results = self.results.question.settings.budget, self.results
        if budget is None:
            return False
        coming = len(self._in_flight) + further
        if budget.runs is not None:
            return results.runs + coming >= budget.runs
        assert budget.core_hours is not None
        a_run = results.core_seconds / results.runs if results.runs else 0.0
        return results.core_seconds + (coming + 1) * a_run > budget.core_hours * 3600


def search(
    session: Session,
    results: Results,
    launcher: dict[str, Any],
    options: LaunchOptions,
    display: Display,
    cancelled_before: int | None,
    on_end: Callable[[list[LadderState]], None],
) -> list[Summary]:
    """Start the most useful runs until nothing is left to decide, or the budget is spent.

    The search also stops after an interruption, after a failed round with the option `fail_fast`, or if the
    sweep was canceled, so that its `cancellation` is no longer `cancelled_before`. `on_end` is called with
    the verdicts after each run that ends.

    Returns:
        One summary for each round of runs. Runs on this machine form a single round.
    """
    queue, directory = RunQueue(results), results.question.directory
    options = replace(options, kill_retries=KILL_RETRIES)
    most = parallel_runs(results, launcher, options)

    def more(event: Event) -> list[Job]:
        queue.take(event)
        held_back = first.more(event)
        on_end(results.states())
        if first.problem or most is None:
            return []
        return [*held_back, *queue.next_jobs(most, ahead=True)]

    summaries: list[Summary] = []
    while jobs := queue.next_jobs(most, ahead=most is not None):
        first = FirstRun(jobs, options, display, only_scripts=True)
        summaries.append(
            session.launch(directory, first.jobs, launcher, options, display, cancelled_before, more=more)
        )
        stopped = summaries[-1].interrupted or (summaries[-1].failed and options.fail_fast)
        if stopped or most is not None:  # on this machine, `more` has started all further runs
            break
    if results.question.tuning:
        write_question(directory, sweep_record(results))  # adds the chosen values
    return summaries


def parallel_runs(results: Results, launcher: dict[str, Any], options: LaunchOptions) -> int | None:
    """Return how many runs train at the same time. None if a scheduler decides it."""
    cell = next(iter(results.question.cells.values()))
    run = cell[0]
    job = Job(results.question.directory.run(run.name), run.config, run.overrides)
    ranks = make_executor(launcher, results.question.directory, options).at_once([job])
    return None if ranks is None else max(1, ranks // job.nproc)
