"""Collect the content of a report: the answer, the notes and the tables.

This module prints and writes nothing. `cpdrun.report.write` prints the content and writes the files.
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
from cpdrun.report import answers_text, fork_text, tables
from cpdrun.report import crossover as crossover_text
from cpdrun.report.best_of import best_table
from cpdrun.report.cost import COSTS
from cpdrun.report.layout_table import layout_table
from cpdrun.report.study_text import margin_text
from cpdrun.study import ReportUsageError, answers
from cpdrun.study.fork_test import ForkTest, fork_tests
from cpdrun.study.pareto import front_rows
from cpdrun.study.reader import read_study
from cpdrun.study.study import Study


@dataclass(frozen=True)
class ReportOptions:
    """Options of a report.

    If a search made the runs, `metric`, `ci`, `tolerance` and `baseline` default to those of the search.

    Attributes:
        metric: The metric to compare. Default: the usual metric of the dataset.
        ci: The confidence level of the intervals in percent. Default: 95.
        tolerance: The non-inferiority margin. A number is in the unit in which the metric is shown. A percentage such
            as "2%" refers to the baseline's value or to its improvement, whichever is smaller. Default: 0.5 points for
            a share, and 2% for any other metric.
        baseline: The config values of the baseline, such as {"format": "bf16"}. Default: fp32.
        rows: The axes along the rows of an additional table.
        cols: The axes along the columns of the additional table.
        networks: Names or yaml files of the networks for which step times are predicted. Default: every named network
            and the calibrated one.
        costs: The costs whose Pareto fronts are described: bytes, kept, bitops, area. Default: those whose front is
            informative.
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
        """Raise ReportUsageError if an option has an invalid value."""
        if unknown := [name for name in self.costs if name not in COSTS]:
            raise ReportUsageError(f"unknown cost {unknown[0]!r}; there are: {', '.join(COSTS)}")
        if self.ci is not None and not 0 < self.ci < 100:
            raise ReportUsageError(
                f"ci={self.ci:g} is not a confidence level; give a percentage between 0 and 100, such as 95"
            )


@dataclass(frozen=True)
class NamedTable:
    """A table with files of its own, as numbers and as text, with sentences about it.

    `name` is the stem of the file names, and `title` the heading on the page.
    """

    name: str
    title: str
    numbers: pd.DataFrame
    shown: tables.Shown
    sentences: Sequence[str] = ()


@dataclass(frozen=True)
class Content:
    """The content of a report.

    A facet is a set of groups that differ only in format and gradient scaling. A ladder is the list of one facet's
    candidates that share a gradient scaling.

    Attributes:
        study: The runs, grouped and compared with the baseline.
        sweeps: The sweeps whose runs were read.
        verdicts: The answer of each ladder.
        next_command: The search command that would add useful pairs; "" if there is none.
        answer: The sentences of the answer. The verdicts come first.
        costs: The sentences about costs.
        notes: The notes on missing, failed and left-out runs and on mixed versions.
        matrix: The table of answers; None if the study has few facets.
        best: Each format at its best value of the tuned axes; None if no axis is tuned.
        layout: The table with the requested axes; None if none were requested.
        crossover: The predicted step times; None without a usable calibration.
        forks: The gaps over the steps; None if no runs start from a checkpoint.
        fork_tests: The same as plain data.
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
    forks: NamedTable | None
    fork_tests: list[ForkTest]
    fronts: list[dict[str, Any]]


def read_content(sweeps: Sequence[SweepDir], options: ReportOptions) -> Content:
    """Read the runs of some sweeps and return the content of their report.

    Raises:
        ReportError: There is nothing to report, or the runs cannot be compared as requested.
        ReportUsageError: An option has an invalid value.
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
    forks = fork_tests(study)
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
        forks=_forks(study, forks),
        fork_tests=forks,
        fronts=front_rows(study, {key: cost.find for key, cost in COSTS.items()}),
    )


def _best(study: Study) -> NamedTable | None:
    found = best_table(study)
    return None if found is None else NamedTable("best_of", "Each at its best", *found)


def _forks(study: Study, tests: list[ForkTest]) -> NamedTable | None:
    if not tests:
        return None
    shown, numbers = fork_text.shown(tests, study.metric), fork_text.numbers(tests)
    sentences = fork_text.sentences(tests, study.metric, study.ci)
    return NamedTable("fork_test", "Gap over the steps", numbers, shown, sentences)


def _layout(study: Study, rows: Sequence[str], cols: Sequence[str]) -> NamedTable | None:
    if not rows and not cols:
        return None
    numbers, shown = layout_table(study, rows, cols)
    title = f"{study.metric.title} by {' and '.join((*rows, *cols))}"
    sentence = (
        f"Each cell: {study.metric.title}, mean over seeds, and the verdict (✓ certified, ✗ refuted, ? open, "
        f"= not tested, because the runs equal the baseline's). Margin: {margin_text(study.margin, study.metric)}."
    )
    return NamedTable("pivot", title, numbers, shown, [sentence])


def _crossover(study: Study, sweeps: Sequence[SweepDir]) -> tuple[NamedTable | None, str]:
    """Return the table of predicted step times, or None and the reason why there is none.

    The reason is "" if the user did not ask for a prediction: no sweep is calibrated, and no network was named.
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
