"""The live display of a search: candidates, runs, and a line for each run that ends."""

from collections.abc import Sequence

from rich.console import Console, Group

from cpdrun.launch import Display, Job
from cpdrun.record import Progress
from cpdrun.report.search_text import (
    describe_missing_prediction,
    describe_news,
    describe_smallest,
    make_table,
)
from cpdrun.search.ladders import LadderState
from cpdrun.search.plan import forecast_cost
from cpdrun.search.results import Results


class SearchDisplay(Display):
    """A display of the candidates above the table of runs.

    When a run ends, its line names the smallest certified format where other commands name the best run. The time left
    includes the runs that the search is likely to need. New verdicts get lines of their own.
    """

    def __init__(self, console: Console, axes: Sequence[str], results: Results) -> None:
        super().__init__(console, axes, results.question.settings.metric)
        self._results = results
        self._states = results.states()
        self._candidates = make_table(results, self._states)
        self._is_cost_known = False
        self._show_missing_predictions()

    def expect(self, runs: int) -> None:
        """Add submitted runs.

        They were part of `held_back`, the number of likely further runs, so it becomes smaller.
        """
        super().expect(runs)
        self.held_back: int = max(0, self.held_back - runs)

    def on_end(self, states: list[LadderState]) -> None:
        """Update the display after a run has ended, and print new verdicts."""
        self._show_missing_predictions()
        for line in describe_news(self._results, self._states, states):
            self._print(line)
        self._states = states
        self._candidates = make_table(self._results, states)
        further = forecast_cost(self._results, None, states).runs
        self._is_cost_known = further is not None
        self.held_back = max(0, (further or 0) - (self._submitted - self._ended))

    def _best_text(self, job: Job) -> str:
        return describe_smallest(self._results, self._states)

    def _seconds_left(self, fractions: float) -> float | None:
        return super()._seconds_left(fractions) if self._is_cost_known else None

    def _show_missing_predictions(self) -> None:
        while self._results.unpredicted:
            self.say(describe_missing_prediction(self._results.unpredicted.pop()))

    def _table(self, progress: list[tuple[Job, Progress]]) -> Group:
        return Group(self._candidates, "", super()._table(progress))
