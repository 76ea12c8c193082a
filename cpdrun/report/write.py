"""Run `cpdrun report`: read the runs of a sweep, print the answer, and write the tables, pictures and page."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from cpdrun.config.margin import Typed
from cpdrun.costmodel import CalibrationError, Network, NotCalibratedError, network
from cpdrun.record import SweepDir, check_inside, write_text
from cpdrun.report import answers_text, best_of, completeness, export, pareto, pivot, tables
from cpdrun.report.cost.axes import COSTS
from cpdrun.report.diagnosis.worse_groups import worse_groups
from cpdrun.report.document import ReportDocument
from cpdrun.report.methods import comparison, crossover, crossover_text
from cpdrun.report.page import html, markup, paper, pictures
from cpdrun.report.page.table_files import TABLES
from cpdrun.study import ReportError, ReportUsageError, answers
from cpdrun.study.answers import ChainVerdict
from cpdrun.study.axes import plain
from cpdrun.study.collect import sweep_names
from cpdrun.study.reader import read_study
from cpdrun.study.study import Study

DEFAULT_PICTURES = ("png", "svg")
MAIN_PLOT = "accuracy_vs_bits"
FORMATS = (*TABLES, "html", *pictures.KINDS)


@dataclass(frozen=True)
class Report:
    """The results of a report and the files that it wrote.

    Attributes:
        verdicts: The fields of `cpdrun.study.answers.ChainVerdict` for each chain. A chain holds the candidates of one
            facet that share a way of scaling.
        next_command: The search command that adds pairs. It is empty if more pairs settle nothing or the command is not
            known.
        sentences: The answer.
        notes: What is missing, failed, mixed or left out, one note an item.
        table: The columns of table.csv.
        files: The paths of the written files.
        details: The columns of details.csv.
        crossover: The predicted step times, or None if they cannot be predicted.
        fronts: The Pareto front and its knee for each cost that varies within a facet.
    """

    verdicts: list[dict[str, Any]]
    next_command: str
    sentences: list[str]
    notes: list[str]
    table: pd.DataFrame
    files: list[Path]
    details: pd.DataFrame
    crossover: pd.DataFrame | None
    fronts: list[dict[str, Any]] = field(default_factory=list)

    def document(self) -> ReportDocument:
        """Return the document of the report for programs."""
        return ReportDocument(
            verdicts=[ChainVerdict(**row) for row in self.verdicts],
            next_command=self.next_command or None,
            sentences=self.sentences,
            notes=self.notes,
            table=_records(self.details),
            fronts=self.fronts,
            crossover=[] if self.crossover is None else _records(self.crossover),
            files=self.files,
        )


def write_report(
    sweeps: Sequence[SweepDir],
    *,
    metric: str | None = None,
    formats: Sequence[str] = ("md", "csv"),
    ci: float | None = None,
    tolerance: Typed | None = None,
    rows: Sequence[str] = (),
    cols: Sequence[str] = (),
    networks: Sequence[str] = (),
    export_to: Sequence[str] = (),
    costs: Sequence[str] = (),
    baseline: Mapping[str, Any] | None = None,
    console: Console | None = None,
) -> Report:
    """Write the report on `sweeps` and print its answer and table on `console`.

    The report on one sweep goes into the report folder of the sweep. The report on several sweeps goes into the folder
    `A+B` next to the first sweep.

    Args:
        sweeps: The sweeps to read.
        metric: The metric to compare. By default it is the metric that a search of these runs asked for, or else the
            metric by which the dataset is judged. The report on any other metric goes into a subfolder with its name.
        formats: Kinds of tables, `html` for the page, and kinds of pictures. If no kind of picture is named, png and
            svg are written.
        ci: The confidence level of the intervals in percent. By default it is the level that a search of these runs
            used, or else 95.
        tolerance: The margin, which is how much worse than the baseline is still good enough. It is a number in the
            unit in which the metric is shown, or a percentage such as "2%" of the baseline's value or improvement,
            whichever is smaller. By default it is the margin that a search of these runs used, or else 0.5 points of a
            share and 2 % of any other metric.
        rows: Axes to list down the side of an additional table, pivot.*.
        cols: Axes to list along the top of that table.
        networks: The networks of the predicted speed-up and step times, by name or as yaml files. By default these are
            all named networks and the calibrated one.
        export_to: The tools to export to: tensorboard, mlflow, wandb.
        costs: The costs whose Pareto fronts are described in sentences: bytes, kept, bitops, area. By default these are
            all costs that differ.
        baseline: The values that identify the baseline by key, such as {"format": "bf16"}. By default these are the
            values that a search of these runs asked for, or else fp32.
        console: Where to print. By default this is a new console on standard output.

    Returns:
        The results and the paths of the written files.

    Raises:
        ReportError: There is nothing to report, the question cannot be asked, or a file cannot be written.
        ReportUsageError: An argument has a value that is not allowed.
    """
    console = console or Console()
    _check(formats, ci, export_to, costs)
    study = read_study(
        list(sweeps),
        metric=metric,
        ci=ci,
        tolerance=tolerance,
        networks=_networks(networks),
        baseline=baseline,
    )
    pivoted = pivot.complete(study, rows, cols) if rows or cols else None
    next_command = answers.next_command(study, sweeps)
    first, matrix = answers_text.headline(study, next_command)
    notes = completeness.notes(study, sweeps)
    verdicts = [asdict(verdict) for verdict in answers.chain_verdicts(study)]
    answer = [*first, *pareto.sentences(study, costs), *comparison.fewest(study)]
    best = best_of.shown(study)
    _print(console, study, answer, [each for each in (matrix, best) if each is not None], notes)

    figures, reasons = pictures.draw(study)
    fastest, reason = _fastest(study)
    reasons += [reason] if reason else []
    _say(console, *(fastest[0] if fastest else []), style="bold")
    _say(console, *reasons, style="dim")

    root, folder = _folders(sweeps, study)
    kinds = [kind for kind in formats if kind in pictures.KINDS] or list(DEFAULT_PICTURES)
    try:
        check_inside(root, folder)
        folder.mkdir(parents=True, exist_ok=True)
        files = _write_tables(
            study, folder, [kind for kind in formats if kind in TABLES], answer, matrix, notes
        )
        if best is not None:
            made = [kind for kind in formats if kind in TABLES]
            files += [TABLES[kind](folder / "best_of", best_of.numbers(study), best) for kind in made]
        if pivoted is not None:
            files += _write_pivot(study, folder, [kind for kind in formats if kind in TABLES], *pivoted)
        files += _write_crossover(folder, [kind for kind in formats if kind in TABLES], fastest)
        rendered = pictures.render(figures if "svg" in kinds or "html" in formats else {})
        files += pictures.write(folder, figures, rendered, kinds)
        if "html" in formats:
            write_text(
                folder / "report.html",
                html.page(
                    study,
                    first,
                    matrix,
                    notes,
                    reasons,
                    rendered,
                    best,
                    *_answers_by_question(study, costs, fastest),
                ),
            )
            files.append(folder / "report.html")
        files += [export.write(tool, study, folder) for tool in export_to]
    except OSError as error:
        raise ReportError(f"cannot write {error.filename or folder}: {error.strerror}") from None
    _say(console, *_where(folder, files))
    numbers = None if fastest is None else fastest[2]
    found, fronts = tables.details(study), pareto.numbers(study)
    said = verdicts, next_command, answer, notes + reasons
    return Report(*said, tables.frame(study), files, found, numbers, fronts)


def _check(
    formats: Sequence[str],
    ci: float | None,
    export_to: Sequence[str],
    costs: Sequence[str],
) -> None:
    unknown = [name for name in formats if name not in FORMATS]
    if unknown:
        raise ReportUsageError(f"unknown report format {unknown[0]!r}; there are: {', '.join(FORMATS)}")
    unknown = [tool for tool in export_to if tool not in export.names()]
    if unknown:
        raise ReportUsageError(f"cannot export to {unknown[0]!r}; there are: {', '.join(export.names())}")
    if unknown := [name for name in costs if name not in COSTS]:
        raise ReportUsageError(f"unknown cost {unknown[0]!r}; there are: {', '.join(COSTS)}")
    if ci is not None and not 0 < ci < 100:
        raise ReportUsageError(
            f"ci={ci:g} is not a confidence level; give per cent, between 0 and 100, e.g. 95"
        )


def _networks(names: Sequence[str]) -> dict[str, Network]:
    try:
        return {name: network(name) for name in names}
    except CalibrationError as error:
        raise ReportUsageError(str(error)) from None


def _folders(sweeps: Sequence[SweepDir], study: Study) -> tuple[Path, Path]:
    """Return the folder of the sweep and the folder of its report.

    The report on a metric other than the default one has its own folder, so that neither report overwrites the other.
    """
    once = list(sweep_names(sweeps).values())
    sweep = once[0]
    if len(once) > 1:
        sweep = SweepDir(sweep.path.parent / "+".join(sweep.name for sweep in once))
    of_metric = "" if study.is_default_metric else re.sub(r"[^\w-]", "_", study.metric.name)[:100]
    return sweep.path, sweep.report / of_metric


def _answers_by_question(
    study: Study, costs: Sequence[str], fastest: "Fastest | None"
) -> tuple[dict[str, list[str]], dict[str, tuple[str, tables.Shown]]]:
    """Return the sentences and the tables that the page shows next to the pictures, by key of `plots.QUESTIONS`."""
    why = worse_groups(study)
    said = {
        "sure": answers_text.counts(study),
        "workers": answers_text.order_sentences(study),
        "cost": [*pareto.sentences(study, costs), *comparison.fewest(study)],
        "time": fastest[0] if fastest else [],
        "why": why[0] if why else [],
    }
    shown = {"time": ("Fastest by network", fastest[1])} if fastest else {}
    return said, shown | ({"why": ("What each lost", why[1])} if why else {})


def _print(
    console: Console, study: Study, answer: list[str], summaries: list[tables.Shown], notes: list[str]
) -> None:
    _say(console, *answer, style="bold")
    for summary in summaries:
        _print_table(console, summary, [False] * len(summary.rows))
    _say(console, *(f"note: {note}" for note in notes), style="yellow")
    _print_table(console, tables.brief(study), [group.is_baseline for group in study.groups])


def _print_table(console: Console, shown: tables.Shown, bold: list[bool]) -> None:
    table = markup.terminal(shown, bold, console.encoding)
    width = console.width
    if (
        not console.is_terminal
    ):  # A file can hold a table of any width. A terminal folds the table to its own width.
        console.width = max(
            width, console.measure(table, options=console.options.update(width=10_000)).maximum
        )
    console.print(table)
    console.width = width


def _write_tables(
    study: Study,
    folder: Path,
    kinds: list[str],
    answer: list[str],
    matrix: tables.Shown | None,
    notes: list[str],
) -> list[Path]:
    """Write the table of means in each of `kinds` and return the paths.

    table.csv has only the columns of `tables.frame`, on which other programs rely. With it come details.csv, which has
    all columns, and runs.csv, which has a row for each run. The Markdown table also has the answer, the matrix and the
    notes.
    """
    shown, details, files = tables.full(study), tables.details(study), []
    for kind in kinds:
        if kind == "tex":
            files += paper.write(folder, study)
            continue
        numbers = tables.frame(study) if kind == "csv" else details
        files.append(TABLES[kind](folder / "table", numbers, shown))
        if kind == "csv":
            files.append(TABLES[kind](folder / "details", details, shown))
            files.append(TABLES[kind](folder / "runs", tables.runs(study), shown))
        if kind == "md":
            parts = [markup.escape_markdown(line) for line in answer]
            parts += [markup.markdown(matrix).rstrip()] if matrix is not None else []
            parts += [markup.escape_markdown(line) for line in notes]
            write_text(files[-1], "\n\n".join([*parts, files[-1].read_text(encoding="utf-8")]))
    return files


def _write_pivot(
    study: Study, folder: Path, kinds: list[str], down: list[str], along: list[str]
) -> list[Path]:
    shown, numbers = pivot.shown(study, down, along), pivot.numbers(study, down, along)
    return [TABLES[kind](folder / "pivot", numbers, shown) for kind in kinds]


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    return json.loads(table.to_json(orient="records", default_handler=str))


Fastest = tuple[list[str], tables.Shown, pd.DataFrame]


def _fastest(study: Study) -> tuple[Fastest | None, str]:
    """Return which method is fastest on which network, as sentences, a shown table and numbers.

    Returns:
        The prediction and "", or None and the reason why nothing can be predicted. The reason is "" if the runs are not
        calibrated and no networks were given, because the user did not ask for a prediction.
    """
    try:
        found = crossover.crossover(study)
    except CalibrationError as error:
        is_asked = study.networks or not isinstance(error, NotCalibratedError)
        return None, f"no crossover: {error}" if is_asked else ""
    return (
        crossover_text.sentences(study, found),
        crossover_text.shown(study, found),
        crossover_text.numbers(study, found),
    ), ""


def _write_crossover(folder: Path, kinds: list[str], fastest: Fastest | None) -> list[Path]:
    """Write crossover.* in each of `kinds`, and remove the files of an earlier report that this report does not write.

    The Markdown file begins with the sentences about the fastest method on each network.
    """
    files = []
    for kind in TABLES:
        if fastest is None or kind not in kinds:
            (folder / f"crossover.{kind}").unlink(missing_ok=True)
            continue
        said, shown, numbers = fastest
        files.append(TABLES[kind](folder / "crossover", numbers, shown))
        if kind == "md":
            parts = [markup.escape_markdown(line) for line in said]
            write_text(files[-1], "\n\n".join([*parts, files[-1].read_text(encoding="utf-8")]))
    return files


def _where(folder: Path, files: list[Path]) -> list[str]:
    """Return the lines that list the written files: the file to open first by its path, the others by name."""
    first = [file for file in files if file.suffix == ".html"] or [f for f in files if f.stem == MAIN_PLOT][
        :1
    ]
    rest = ", ".join(file.name for file in files if file not in first)
    return [f"open {file}" for file in first] + [f"in {folder}: {rest}"]


def _say(console: Console, *lines: str, style: str = "") -> None:
    """Print lines without markup and without wrapping.

    A terminal wraps lines by itself, and lines in a file must not be wrapped.
    """
    for line in lines:
        console.print(
            markup.encodable(plain(line), console.encoding),
            style=style,
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
