"""Documents of `cpdrun report --json` and `cpdrun report --plots --json`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cpdrun.study.answers import LadderVerdict
from cpdrun.study.fork_test import ForkTest


@dataclass
class ReportDocument:
    """The results of a report and the paths of its files.

    Attributes:
        verdicts: The answer for each facet and gradient scaling.
        next_command: The search command that adds pairs for open verdicts, or null if there is none.
        sentences: The sentences of the answer, then those about costs.
        notes: The notes on missing, failed and left-out runs and on mixed versions.
        table: The rows of details.csv, one per group of runs that differ only in their seed.
        fronts: The Pareto front and its knee for each cost that varies within a facet.
        crossover: The predicted step times. Empty if they cannot be predicted.
        files: The paths of the written files.
        fork_tests: The gaps over the steps, if runs start from a checkpoint.
        layout: The rows of the table with the requested axes. Empty if none were requested.
    """

    verdicts: list[LadderVerdict]
    next_command: str | None
    sentences: list[str]
    notes: list[str]
    table: list[dict[str, Any]]
    fronts: list[dict[str, Any]]
    crossover: list[dict[str, Any]]
    files: list[Path]
    fork_tests: list[ForkTest] = field(default_factory=list)
    layout: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class PlotRow:
    """A plot that a report can contain.

    Attributes:
        name: The name of the plot and the stem of its files.
        title: The heading.
        needs: The data without which the plot is not drawn.
    """

    name: str
    title: str
    needs: str


@dataclass
class PlotsDocument:
    """All plots that a report can contain.

    Attributes:
        plots: The plots, sorted by name.
    """

    plots: list[PlotRow]
