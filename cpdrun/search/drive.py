"""Ask for runs, launch them and decide again: run by run on this machine, in rounds on a cluster.

Only the run folders and the sweep's own list of runs are stored. However a search was stopped, the next search of the
same question reads them and continues. A run that another command has made counts as well.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from rich.console import Console, Group

from cpdrun.launch import Display, Event, Job, LaunchOptions, Session, Summary
from cpdrun.launch.executors import make_executor
from cpdrun.launch.first_run import FirstRun
from cpdrun.record import Ending, Progress
from cpdrun.record.run_end import failure_in
from cpdrun.search.observed import observed
from cpdrun.search.results import Results
from cpdrun.search.schedule import Ask, Standing, wanted
from cpdrun.search.tuned_words import asked
from cpdrun.search.words import one_line, table
from cpdrun.stats.evidence import Verdict
from cpdrun.stats.failures import Failure
from cpdrun.sweep import write_manifest, write_question

# How often a run is tried again if a signal killed its process. The run itself is seldom the cause.
KILL_RETRIES = 2


class SearchDisplay(Display):
    """A display with the table of candidates above the table of runs.

    If the output is not a terminal, it prints a line when the verdict on a candidate changes.
    """

    def __init__(self, console: Console, axes: Sequence[str], results: Results) -> None:
        super().__init__(console, axes)
        self._results = results
        self._verdicts = _verdicts(results.standings())
        self._candidates = table(results)

    def news(self, standings: Sequence[Standing]) -> None:
        """Update the display after a run has ended."""
        self._candidates = table(self._results)
        for label, verdict in _verdicts(standings).items():
            if verdict is not self._verdicts[label]:
                self.say(one_line(self._results, standings, label))
            self._verdicts[label] = verdict

    def _table(self, progress: list[tuple[Job, Progress]]) -> Group:
        return Group(self._candidates, "", super()._table(progress))


class Driver:
    """The runs in flight, and the choice of the next runs."""

    def __init__(self, results: Results, display: SearchDisplay | None = None) -> None:
        self.results = results
        self._display = display
        # The runs in flight and all listed runs, by the name of the run.
        self._in_flight: dict[str, Ask] = {}
        self._listed: dict[str, Ask] = {}
        # Each of these runs is tried once more. It counts as failed until it ends well.
        self._to_retry = results.failures

    def asks(self, most: int | None, *, ahead: bool) -> list[Ask]:
        """Return the runs that fill up to `most` in flight, or all runs that are needed if `most` is None.

        Runs that failed in an earlier search come first, then the runs that settle most.
        """
        results, in_flight = self.results, set(self._in_flight.values())
        standings = [s for s in results.standings() if not results.problem(s.chain.baseline)]
        found: list[Ask] = []
        tuning = results.question.tuning
        further = wanted(standings, results.ended, in_flight, results.rules(), tuning, ahead=ahead)
        for ask in chain(self._to_retry, further):
            if (most is not None and len(in_flight) + len(found) >= most) or self._is_spent(len(found)):
                break
            found.append(ask)
        return found

    def next(self, most: int | None, *, ahead: bool) -> list[Job]:
        """Return the next runs as jobs, list them in sweep.yaml, and count them as in flight."""
        question, asks = self.results.question, self.asks(most, ahead=ahead)
        while self._display is not None and self.results.unpredicted:
            self._display.say(self.results.unpredicted.pop())
        first = self.results.first_runs
        runs = [question.cells[name][seed] for name, seed in asks]
        runs = [observed(run) if ask in first else run for run, ask in zip(runs, asks, strict=True)]
        new = {run.name: ask for run, ask in zip(runs, asks, strict=True)}
        self._to_retry = [ask for ask in self._to_retry if ask not in asks]
        self._in_flight |= new
        self._listed |= new
        if runs:
            listed = [question.cells[name][seed] for name, seed in self._listed.values()]
            write_manifest(question.as_plan(listed), asked(self.results))
        return [Job(question.directory.run(run.name), run.config, run.overrides) for run in runs]

    def ended(self, event: Event) -> None:
        """Take in the result of a run of this search that has ended, well or not."""
        ask = self._in_flight.pop(event.job.run.name)
        if not self.results.take(ask) and event.outcome.status is not Ending.PREEMPTED:
            self.results.failed(ask, failure_in(event.outcome) or Failure.UNKNOWN)
        if self._display is not None:
            self._display.news(self.results.standings())

    def _is_spent(self, further: int) -> bool:
        budget, results = self.results.question.settings.budget, self.results
        if budget is None:
            return False
        coming = len(self._in_flight) + further
        if budget.runs is not None:
            return results.runs + coming >= budget.runs
        a_run = results.core_seconds / results.runs if results.runs else 0.0
        return results.core_seconds + (coming + 1) * a_run > budget.core_hours * 3600


def search(
    session: Session,
    results: Results,
    launcher: dict[str, Any],
    options: LaunchOptions,
    display: SearchDisplay,
    cancelled_before: int | None,
) -> list[Summary]:
    """Run what settles most until nothing is left to settle or the budget is spent.

    Raises whatever `Session.launch` raises.

    Returns:
        One summary for each round. On this machine there is one round.
    """
    driver, directory = Driver(results, display), results.question.directory
    options = replace(options, kill_retries=KILL_RETRIES)
    most = at_once(results, launcher, options)

    def more(event: Event) -> list[Job]:
        driver.ended(event)
        held_back = first.more(event)
        if first.problem or most is None:
            return []
        return [*held_back, *driver.next(most, ahead=True)]

    summaries: list[Summary] = []
    while jobs := driver.next(most, ahead=most is not None):
        first = FirstRun(jobs, options, display, only_scripts=True)
        summaries.append(
            session.launch(directory, first.jobs, launcher, options, display, cancelled_before, more=more)
        )
        stopped = summaries[-1].interrupted or (summaries[-1].failed and options.fail_fast)
        if stopped or most is not None:  # On this machine, `more` has asked for all runs.
            break
    if results.question.tuning:
        write_question(directory, asked(results))  # It now includes the chosen values.
    return summaries


def at_once(results: Results, launcher: dict[str, Any], options: LaunchOptions) -> int | None:
    """Return how many runs this machine trains at the same time, at least one, or None if a scheduler decides."""
    cell = next(iter(results.question.cells.values()))
    run = cell[0]
    job = Job(results.question.directory.run(run.name), run.config, run.overrides)
    ranks = make_executor(launcher, results.question.directory, options).at_once([job])
    return None if ranks is None else max(1, ranks // job.nproc)


def _verdicts(standings: Sequence[Standing]) -> dict[str, Verdict]:
    return {
        candidate.label: width.verdict_of(judgement)
        for standing in standings
        for candidate, judgement, width in standing
    }
