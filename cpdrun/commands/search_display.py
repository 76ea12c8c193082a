"""The display of a search: the table of candidates above the table of runs, and a line for each run that ends."""

from collections.abc import Sequence

from rich.console import Console, Group

from cpdrun.launch import Display, Event, Job
from cpdrun.record import Progress
from cpdrun.report.search_text import describe_missing_prediction, describe_progress, make_table
from cpdrun.search.ladders import LadderState
from cpdrun.search.plan import forecast_cost
from cpdrun.search.results import Results
from cpdrun.stats.evidence import Verdict


class SearchDisplay(Display):
    """A display with the table of candidates above the table of runs.

    After each run, it prints the new verdicts, the smallest certified format so far, and the time left.
    """

    def __init__(
        self, console: Console, axes: Sequence[str], results: Results, slots: int | None = None
    ) -> None:
        super().__init__(console, axes)
        self._results = results
        self._slots = slots
        states = results.states()
        self._verdicts = _verdicts(states)
        self._candidates = make_table(results, states)
        self._show_missing_predictions()

    def on_end(self, event: Event, states: list[LadderState]) -> None:
        """Show the verdicts after a run has ended."""
        self._show_missing_predictions()
        verdicts = _verdicts(states)
        changed = [label for label, verdict in verdicts.items() if verdict is not self._verdicts[label]]
        self._verdicts = verdicts
        self._candidates = make_table(self._results, states)
        cost = forecast_cost(self._results, self._slots, states)
        line = describe_progress(self._results, states, cost, changed)
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _show_missing_predictions(self) -> None:
        while self._results.unpredicted:
            self.say(describe_missing_prediction(self._results.unpredicted.pop()))

    def _table(self, progress: list[tuple[Job, Progress]]) -> Group:
        return Group(self._candidates, "", super()._table(progress))


def _verdicts(states: Sequence[LadderState]) -> dict[str, Verdict]:
    return {
        candidate.label: width.verdict_of(judgement)
        for state in states
        for candidate, judgement, width in state
    }
