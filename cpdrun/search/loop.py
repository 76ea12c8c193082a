"""The loop of a search: start runs, wait for results and decide again.

On this machine, the search decides after each run. On a cluster, it decides after each round of runs. Only the run
folders and the sweep's own list of runs are stored. However a search was stopped, the next search of the same question
reads them and continues. A run that another command has made counts as well.
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
from cpdrun.search.results import Results, baseline_problem, sweep_record
from cpdrun.search.schedule import wanted_runs
from cpdrun.stats.ended_runs import RunKey
from cpdrun.stats.failures import Failure
from cpdrun.sweep import write_manifest, write_question
from cpdrun.whatif.baseline_runs import with_observation

# How often a run is tried again if a signal killed its process. The run itself is seldom the cause.
KILL_RETRIES = 2


class RunQueue:
    """The runs in flight, and the choice of the next runs."""

    def __init__(self, results: Results) -> None:
        self.results = results
        # The runs in flight and all listed runs, by the name of the run.
        self._in_flight: dict[str, RunKey] = {}
        self._listed: dict[str, RunKey] = {}
        # Each of these runs is tried once more. It counts as failed until it ends well.
        self._to_retry = results.failures

    def wanted(self, most: int | None, *, ahead: bool) -> list[RunKey]:
        """Return the runs that fill up to `most` in flight, or all runs that are needed if `most` is None.

        Runs that failed in an earlier search come first, then the runs that settle most.
        """
        results, in_flight = self.results, set(self._in_flight.values())
        states = [state for state in results.states() if not baseline_problem(results, state.ladder.baseline)]
        found: list[RunKey] = []
        tuning = results.question.tuning
        further = wanted_runs(states, results.ended, in_flight, results.rules(), tuning, ahead=ahead)
        for key in chain(self._to_retry, further):
            if (most is not None and len(in_flight) + len(found) >= most) or self._is_spent(len(found)):
                break
            found.append(key)
        return found

    def next_jobs(self, most: int | None, *, ahead: bool) -> list[Job]:
        """Return the next runs as jobs, list them in sweep.yaml, and count them as in flight."""
        question, keys = self.results.question, self.wanted(most, ahead=ahead)
        first = self.results.first_runs
        runs = [question.cells[name][seed] for name, seed in keys]
        runs = [with_observation(run) if key in first else run for run, key in zip(runs, keys, strict=True)]
        new = {run.name: key for run, key in zip(runs, keys, strict=True)}
        self._to_retry = [key for key in self._to_retry if key not in keys]
        self._in_flight |= new
        self._listed |= new
        if runs:
            listed = [question.cells[name][seed] for name, seed in self._listed.values()]
            write_manifest(question.as_plan(listed), self._record())
        return [Job(question.directory.run(run.name), run.config, run.overrides) for run in runs]

    def _record(self) -> dict[str, Any]:
        """Return the question for sweep.yaml, with the number of runs that the search is likely to take in total."""
        further = forecast_cost(self.results, None).runs
        total = {} if further is None else {EXPECTED_RUNS: self.results.runs + further}
        return sweep_record(self.results) | total

    def take(self, event: Event) -> None:
        """Take in the result of a run of this search that has ended, well or not."""
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
    """Run what settles most until nothing is left to settle or the budget is spent.

    Raises whatever `Session.launch` raises.

    Args:
        session: The session that launches the runs.
        results: The results so far. They are updated.
        launcher: The config of the launcher.
        options: The options of the launch.
        display: The display of the runs.
        cancelled_before: The cancellation of the sweep that was known when the command was typed.
        on_end: Called after a run has ended, with the verdicts that follow from it.

    Returns:
        One summary for each round. On this machine there is one round.
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
        if stopped or most is not None:  # On this machine, `more` has asked for all runs.
            break
    if results.question.tuning:
        write_question(directory, sweep_record(results))  # It now includes the chosen values.
    return summaries


def parallel_runs(results: Results, launcher: dict[str, Any], options: LaunchOptions) -> int | None:
    """Return how many runs this machine trains at the same time, at least one, or None if a scheduler decides."""
    cell = next(iter(results.question.cells.values()))
    run = cell[0]
    job = Job(results.question.directory.run(run.name), run.config, run.overrides)
    ranks = make_executor(launcher, results.question.directory, options).at_once([job])
    return None if ranks is None else max(1, ranks // job.nproc)
