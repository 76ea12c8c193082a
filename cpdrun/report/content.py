"""The content of a report: the answer, the notes, and the tables about the runs of some sweeps.

This module draws, prints, and writes nothing. `cpdrun.report.write` prints the content and writes the files, and
`cpdrun.report.page` makes the pictures and the HTML page.
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
        metric: The metric to compare. If a search made these runs, the default is the search's metric. Otherwise, it is
            the metric by which the dataset is judged.
        ci: The confidence level of the intervals in percent. If a search made these runs, the default is the search's
            level. Otherwise, it is 95.
        tolerance: The margin: how much worse than the baseline is still good enough. A number is in the unit in which
            the metric is shown. A percentage such as "2%" refers to the baseline's value or to its improvement,
            whichever is smaller. If a search made these runs, the default is the search's margin. Otherwise, it is 0.5
            points for a share and 2 % for any other metric.
        baseline: The values that identify the baseline, keyed by config key, such as {"format": "bf16"}. If a search
            made these runs, the default is the search's baseline. Otherwise, it is fp32.
        rows: The axes along the rows of an additional table.
        cols: The axes along the columns of the additional table.
        networks: The networks for which speed-ups and step times are predicted. Each is a name or the path of a yaml
            file. The default is every named network and the calibrated one.
        costs: The costs whose Pareto fronts are described in sentences: bytes, kept, bitops, area. By default, the
            sentences describe every informative front.
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
    """A table that has its own files.

    Attributes:
        name: The name of the files without a suffix.
        title: The heading.
        numbers: The table as numbers.
        shown: The table as text.
        sentences: The sentences that describe the table.
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
        sweeps: The sweeps whose runs were read.
        verdicts: The answer of each ladder. A ladder is the list of one facet's candidates that share a gradient
            scaling.
        next_command: The search command that adds pairs. It is empty if further pairs would decide no open verdict, or
            if the command is not known.
        answer: The sentences of the answer. The verdicts come first.
        costs: The sentences about the costs.
        notes: The notes on missing, failed, and left-out runs and on mixed versions. Each item is one note.
        matrix: The table of the answers, or None if there are few facets.
        best: The table that shows each format at its best value of the tuned axes, or None if no axis is tuned.
        layout: The table with the requested axes, or None if none were requested.
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
        ReportError: There is nothing to report, or the runs do not allow the requested comparison.
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
    """Return the table of the predicted step times, which shows the fastest method on each network.

    Returns:
        The table and "". If nothing can be predicted, None and the reason. The reason is "" if the user did not ask for
        a prediction, which means that no sweep has a calibration and no network was named.
    """
    try:
        found = crossover(study)
    except CalibrationError as error:
        is_asked = study.networks or any(sweep.calibration.exists() for sweep in sweeps)
        return None, f"no crossover: {error}" if is_asked else ""
    shown, numbers = crossover_text.shown(found), crossover_text.numbers(found)
    sentences = crossover_text.sentences(study, found)
    return NamedTable("crossover", "Fastest by network", numbers, shown, sentences), ""


def _networks(names: Sequence[str]) -> dict[str, Network]:
    try:
        return {name: network(name) for name in names}
    except CalibrationError as error:
        raise ReportUsageError(str(error)) from None
