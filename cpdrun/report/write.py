"""Make a report: read the runs of some sweeps, print the answer, and write the tables, the plots, and the page."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from custom_fp.suggestions import did_you_mean
from rich.console import Console

from cpdrun.record import SweepDir, check_inside, write_text
from cpdrun.report import export, tables
from cpdrun.report.content import Content, NamedTable, ReportOptions, read_content
from cpdrun.report.document import ReportDocument
from cpdrun.report.page import html, markup, paper, pictures
from cpdrun.report.page.table_files import TABLES
from cpdrun.report.render import count
from cpdrun.shell.terminal import widen
from cpdrun.study import ReportError, ReportUsageError
from cpdrun.study.axes import plain
from cpdrun.study.collect import sweep_names

PAGE = "report.html"
MAIN_PLOT = "accuracy_vs_bits"
FORMATS = (*TABLES, "html", *pictures.KINDS)
DEFAULT_PICTURES = ("png", "svg")


@dataclass(frozen=True)
class Report:
    """The content of a report and the files that were written.

    Attributes:
        content: The answer, the notes, and the tables.
        table: The table that is written to table.csv.
        details: The table of details.csv.
        files: The paths of the written files.
    """

    content: Content
    table: pd.DataFrame
    details: pd.DataFrame
    files: list[Path]

    @property
    def sentences(self) -> list[str]:
        """The sentences of the answer, followed by the sentences about costs."""
        return [*self.content.answer, *self.content.costs]

    @property
    def page(self) -> Path | None:
        """The path of the HTML page, or None if it was not written."""
        return next((file for file in self.files if file.name == PAGE), None)

    def document(self) -> ReportDocument:
        """Return the report as the document that `cpdrun report --json` prints."""
        crossover, layout = self.content.crossover, self.content.layout
        return ReportDocument(
            verdicts=self.content.verdicts,
            next_command=self.content.next_command or None,
            sentences=self.sentences,
            notes=self.content.notes,
            table=_records(self.details),
            fronts=self.content.fronts,
            crossover=[] if crossover is None else _records(crossover.numbers),
            files=self.files,
            fork_tests=self.content.fork_tests,
            layout=[] if layout is None else _records(layout.numbers),
        )


def write_report(
    sweeps: Sequence[SweepDir],
    options: ReportOptions | None = None,
    *,
    formats: Sequence[str] = ("md", "csv"),
    export_to: Sequence[str] = (),
    console: Console | None = None,
) -> Report:
    """Write the report on `sweeps`, and print its answer and its table.

    The report on one sweep A is written to the folder `A/report`. The report on several sweeps A and B is written to
    the folder `A+B/report`, next to the first sweep.

    Files of an earlier report are replaced. If this report has no content for such a file, the file is removed. Files
    in formats other than `formats` are not touched.

    Args:
        sweeps: The sweeps to read.
        options: What the report compares and describes. By default, every option has its default.
        formats: The formats of the files: csv, md, tex, or parquet for tables, html for the page, and png, svg, or pdf
            for pictures. If no picture format is given, pictures are written as png and svg.
        export_to: The tools to export to: tensorboard, mlflow, wandb.
        console: The console to print to. By default, it is a new console on standard output.

    Raises:
        ReportError: There is nothing to report, the runs do not allow the requested comparison, or a file cannot be
            written.
        ReportUsageError: An argument has a value that is not allowed.
    """
    _check(formats, FORMATS, "unknown report format {}")
    _check(export_to, export.names(), "cannot export to {}")
    content = read_content(sweeps, options or ReportOptions())
    console = console or Console()
    _print_answer(console, content)
    table, details = tables.frame(content.study), tables.details(content.study)
    root, folder = _folders(content)
    try:
        check_inside(root, folder)
        folder.mkdir(parents=True, exist_ok=True)
        files = _write_tables(content, folder, table, details, [kind for kind in formats if kind in TABLES])
        files += _write_pictures(content, folder, formats)
        files += [export.write(tool, content.study, folder) for tool in export_to]
    except OSError as error:
        raise ReportError(f"cannot write {error.filename or folder}: {error.strerror}") from None
    _print_files(console, folder, files)
    return Report(content, table, details, files)


def _check(names: Sequence[str], known: Sequence[str], problem: str) -> None:
    for name in names:
        if name not in known:
            near = did_you_mean(name, known)
            raise ReportUsageError(f"{problem.format(repr(name))}{near}; there are: {', '.join(known)}")


def _folders(content: Content) -> tuple[Path, Path]:
    """Return the folder of the sweep and the folder of its report.

    The report on a metric other than the default has its own folder in the report folder, so that it does not overwrite
    the report on the default metric.
    """
    sweeps, study = list(sweep_names(content.sweeps).values()), content.study
    sweep = sweeps[0]
    if len(sweeps) > 1:
        sweep = SweepDir(sweep.path.parent / "+".join(each.name for each in sweeps))
    of_metric = "" if study.is_default_metric else re.sub(r"[^\w-]", "_", study.metric.name)[:100]
    return sweep.path, sweep.report / of_metric


def _write_tables(
    content: Content, folder: Path, table: pd.DataFrame, details: pd.DataFrame, kinds: Sequence[str]
) -> list[Path]:
    """Write the tables in each format of `kinds` and return the paths.

    Other programs read table.csv, so its columns stay those of `tables.frame`. All columns are in details.csv, and
    runs.csv has a row for each run. table.md also contains the answer, the matrix of formats and scalings, and the
    notes.
    """
    study, files = content.study, []
    shown = tables.full(study)
    answer = [*content.answer, *content.costs]
    for kind in kinds:
        if kind == "tex":
            files += paper.write(folder, study)
        else:
            files.append(TABLES[kind](folder / "table", table if kind == "csv" else details, shown))
        if kind == "csv":
            files.append(TABLES[kind](folder / "details", details, shown))
            files.append(TABLES[kind](folder / "runs", tables.runs(study), shown))
        if kind == "md":
            _put_before(files[-1], answer, content.matrix, content.notes)
        named = {"best_of": content.best, "pivot": content.layout, "crossover": content.crossover}
        named |= {"fork_test": content.forks}
        for name, one in named.items():
            if one is not None:
                files.append(_write_named(one, folder, kind))
            elif name != "pivot":  # Keep a table in a layout that the user requested earlier.
                (folder / f"{name}.{kind}").unlink(missing_ok=True)
    return files


def _write_named(table: NamedTable, folder: Path, kind: str) -> Path:
    file = TABLES[kind](folder / table.name, table.numbers, table.shown)
    if kind == "md" and table.sentences:
        _put_before(file, table.sentences)
    return file


def _put_before(
    file: Path, sentences: Iterable[str], matrix: tables.Shown | None = None, notes: Iterable[str] = ()
) -> None:
    """Insert the sentences, the matrix, and the notes before the table in a Markdown file."""
    parts = [markup.escape_markdown(line) for line in sentences]
    parts += [markup.markdown(matrix).rstrip()] if matrix is not None else []
    parts += [markup.escape_markdown(line) for line in notes]
    write_text(file, "\n\n".join([*parts, file.read_text(encoding="utf-8")]))


def _write_pictures(content: Content, folder: Path, formats: Sequence[str]) -> list[Path]:
    """Draw the plots, write the pictures and the page, and return the paths of the files."""
    kinds = [kind for kind in formats if kind in pictures.KINDS] or DEFAULT_PICTURES
    in_page = ["svg"] if "html" in formats else []
    rendered = pictures.render(content.study, list(dict.fromkeys([*kinds, *in_page])))
    files = pictures.write(folder, rendered, kinds)
    if in_page:
        write_text(folder / PAGE, html.page(content, pictures.svgs(rendered)))
        files.append(folder / PAGE)
    return files


def _print_answer(console: Console, content: Content) -> None:
    """Print the answer, the tables, and the notes, in this order."""
    study = content.study
    _print_lines(console, [*content.answer, *content.costs], style="bold")
    for shown in [content.matrix, *(table.shown for table in (content.best, content.layout) if table)]:
        if shown is not None:
            print_table(console, shown)
    print_table(console, tables.brief(study), [group.is_baseline for group in study.groups])
    if content.crossover is not None:
        _print_lines(console, content.crossover.sentences, style="bold")
    if content.forks is not None:
        _print_lines(console, content.forks.sentences, style="bold")
        print_table(console, content.forks.shown)
    _print_lines(console, [f"note: {note}" for note in content.notes], style="yellow")


def _print_files(console: Console, folder: Path, files: Sequence[Path]) -> None:
    """Print the path of the file to open first, and the names of the other files."""
    plots = [file for file in files if file.suffix[1:] in pictures.KINDS]
    first = [file for file in files if file.name == PAGE] or [
        file for file in plots if file.stem == MAIN_PLOT
    ]
    others = [file.name for file in files if file not in (*plots, *first)]
    if plots:
        kinds, names = ({getattr(file, part): None for file in plots} for part in ("suffix", "stem"))
        others.append(
            f"{count(len(names), 'plot')} ({', '.join(kind[1:] for kind in kinds)}): {', '.join(names)}"
        )
    _print_lines(console, [f"Open {file}" for file in first[:1]] + [f"In {folder}: {', '.join(others)}"])


def print_table(console: Console, shown: tables.Shown, bold: Sequence[bool] = ()) -> None:
    """Print a table. A terminal folds the table to its own width, but a file gets the table in its full width."""
    table = markup.terminal(shown, bold, console.encoding)
    width = console.width
    if not console.is_terminal:
        widen(console, table)
    console.print(table)
    console.width = width


def _print_lines(console: Console, lines: Iterable[str], style: str = "") -> None:
    """Print lines without markup and without wrapping, because terminals wrap lines and files need whole lines."""
    for line in lines:
        text = markup.encodable(plain(line), console.encoding)
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    return json.loads(table.to_json(orient="records", default_handler=str))
