"""The content of a report: the answer, the notes and the tables about the runs of some sweeps.

Nothing is drawn, printed or written here. `cpdrun.report.write` does that, and `cpdrun.report.page` makes HTML.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from cpdrun.config.margin import Typed
from cpdrun.costmodel import CalibrationError, Network, network
from cpdrun.costmodel.crossover import crossover
from cpdrun.record import SweepDir
from cpdrun.report import answers_text, best_of, tables
from cpdrun.report import crossover as crossover_text
from cpdrun.report.cost import COSTS
from cpdrun.report.layout_table import layout_table
from cpdrun.study import ReportUsageError, answers
from cpdrun.study.pareto import front_rows
from cpdrun.study.reader import read_study
from cpdrun.study.study import Study


@dataclass(frozen=True)
class ReportOptions:
    """What a report compares and describes.

    Attributes:
        metric: The metric to compare. By default it is the metric that a search of these runs asked for, or else the
            metric by which the dataset is judged.
        ci: The confidence level of the intervals in percent. By default it is the level that a search of these runs
            used, or else 95.
        tolerance: The margin, which is how much worse than the baseline is still good enough. It is a number in the
            unit in which the metric is shown, or a percentage such as "2%" of the baseline's value or improvement,
            whichever is smaller. By default it is the margin that a search of these runs used, or else 0.5 points of a
            share and 2 % of any other metric.
        baseline: The values that identify the baseline by key, such as {"format": "bf16"}. By default these are the
            values that a search of these runs asked for, or else fp32.
        rows: The axes of the rows of an additional table.
        cols: The axes of the columns of that table.
        networks: The networks of the predicted speed-up and step times, by name or as yaml files. By default these are
            all named networks and the calibrated one.
        costs: The costs whose Pareto fronts are described in sentences: bytes, kept, bitops, area. By default these are
            all costs that differ.
    """

    metric: str | None = None
    ci: float | None = None
    tolerance: Typed | None = None
    baseline: Mapping[str, Any] | None = None
    rows: Sequence[str] = ()
    cols: Sequence[str] = ()
    networks: Sequence[str] = ()
    costs: Sequence[str] = ()

    def check(self) -> None:
        """Raise ReportUsageError if a value is not allowed."""
        if unknown := [name for name in self.costs if name not in COSTS]:
            raise ReportUsageError(f"unknown cost {unknown[0]!r}; there are: {', '.join(COSTS)}")
        if self.ci is not None and not 0 < self.ci < 100:
            raise ReportUsageError(
                f"ci={self.ci:g} is not a confidence level; give a percentage between 0 and 100, such as 95"
            )


@dataclass(frozen=True)
class NamedTable:
    """A table that is written to files of its own.

    Attributes:
        name: The name of the files without a suffix.
        title: The heading.
        numbers: The table as numbers.
        shown: The table as text.
        sentences: The sentences about the table.
    """

    name: str
    title: str
    numbers: pd.DataFrame
    shown: tables.Shown
    sentences: Sequence[str] = ()


@dataclass(frozen=True)
class Content:
    """The content of a report.

    Attributes:
        study: The study that the report is about.
        sweeps: The sweeps.
        verdicts: The answer of each ladder. A ladder holds the candidates of one facet that share a way of scaling.
        next_command: The search command that adds pairs. It is empty if more pairs settle nothing or the command is not
            known.
        answer: The sentences of the answer, the verdicts first.
        costs: The sentences about the costs.
        notes: What is missing, failed, mixed or left out, one note an item.
        matrix: The table of the answers if there are many facets, or None.
        best: The table of each format at its best tuned value, or None.
        layout: The table with the requested axes along its sides, or None.
        crossover: The table of the predicted step times, or None if they cannot be predicted.
        fronts: The Pareto front and its knee for each cost that varies within a facet.
    """

    study: Study
    sweeps: Sequence[SweepDir]
    verdicts: list[answers.LadderVerdict]
    next_command: str
    answer: list[str]
    costs: list[str]
    notes: list[str]
    matrix: tables.Shown | None
    best: NamedTable | None
    layout: NamedTable | None
    crossover: NamedTable | None
    fronts: list[dict[str, Any]]


def read_content(sweeps: Sequence[SweepDir], options: ReportOptions) -> Content:
    """Read the runs of some sweeps and return the content of their report.

    Raises:
        ReportError: There is nothing to report, or the question cannot be asked.
        ReportUsageError: An option has a value that is not allowed.
    """
    options.check()
    study = read_study(
        list(sweeps),
        metric=options.metric,
        ci=options.ci,
        tolerance=options.tolerance,
        networks=_networks(options.networks),
        baseline=options.baseline,
    )
    layout = _layout(study, options.rows, options.cols)
    next_command = answers.next_command(study, sweeps)
    answer, matrix = answers_text.headline(study, next_command)
    predicted, reason = _crossover(study, sweeps)
    return Content(
        study=study,
        sweeps=sweeps,
        verdicts=answers.ladder_verdicts(study),
        next_command=next_command,
        answer=answer,
        costs=[*answers_text.cost_sentences(study, options.costs), *answers_text.method_sentences(study)],
        notes=[*answers_text.notes(study, sweeps), *([reason] if reason else [])],
        matrix=matrix,
        best=_best(study),
        layout=layout,
        crossover=predicted,
        fronts=front_rows(study, {key: cost.find for key, cost in COSTS.items()}),
    )


def _best(study: Study) -> NamedTable | None:
    shown = best_of.shown(study)
    if shown is None:
        return None
    return NamedTable("best_of", "Each at its best", best_of.numbers(study), shown)


def _layout(study: Study, rows: Sequence[str], cols: Sequence[str]) -> NamedTable | None:
    if not rows and not cols:
        return None
    numbers, shown = layout_table(study, rows, cols)
    title = f"{study.metric.title} by {' and '.join((*rows, *cols))}"
    return NamedTable("pivot", title, numbers, shown)


def _crossover(study: Study, sweeps: Sequence[SweepDir]) -> tuple[NamedTable | None, str]:
    """Return which method is fastest on which network.

    Returns:
        The prediction and "", or None and the reason why nothing can be predicted. The reason is "" if the user asked
        for no prediction, which means that there is no calibration and no network was named.
    """
    try:
        found = crossover(study)
    except CalibrationError as error:
        is_asked = study.networks or any(sweep.calibration.exists() for sweep in sweeps)
        return None, f"no crossover: {error}" if is_asked else ""
    shown, numbers = crossover_text.shown(study, found), crossover_text.numbers(study, found)
    sentences = crossover_text.sentences(study, found)
    return NamedTable("crossover", "Fastest by network", numbers, shown, sentences), ""


def _networks(names: Sequence[str]) -> dict[str, Network]:
    try:
        return {name: network(name) for name in names}
    except CalibrationError as error:
        raise ReportUsageError(str(error)) from None
