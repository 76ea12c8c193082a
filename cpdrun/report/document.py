"""The documents of `cpdrun report --json` and `cpdrun report --plots --json`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cpdrun.study.answers import LadderVerdict


@dataclass
class ReportDocument:
    """The results of a report, and the files that it wrote.

    Attributes:
        verdicts: The answer of each facet and scaling.
        next_command: The search that adds pairs to open questions.
        sentences: The answer.
        notes: What is missing, failed, mixed or left out.
        table: A row for each group of runs that differ only in their seed.
        fronts: The Pareto front and its knee for each cost that varies within a facet.
        crossover: The predicted step times. Empty if they cannot be predicted.
        files: The paths of the files.
        layout: The rows of the table with the requested axes. Empty if none was requested.
    """

    verdicts: list[LadderVerdict]
    next_command: str | None
    sentences: list[str]
    notes: list[str]
    table: list[dict[str, Any]]
    fronts: list[dict[str, Any]]
    crossover: list[dict[str, Any]]
    files: list[Path]
    layout: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class PlotRow:
    """A plot that a report may have.

    Attributes:
        name: The name of the plot and of its files.
        title: The heading.
        needs: What the runs must have for the plot to be drawn.
    """

    name: str
    title: str
    needs: str


@dataclass
class PlotsDocument:
    """All plots that a report may have.

    Attributes:
        plots: The plots by name.
    """

    plots: list[PlotRow]
