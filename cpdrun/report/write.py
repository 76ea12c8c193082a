"""`cpdrun report`: read the runs of a sweep, say the answer, write tables, pictures and the page."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console

from cpdrun.record import SweepDir, write_text
from cpdrun.report import completeness, html, markup, pivot, plots, style, svg, tables, verdict
from cpdrun.report.errors import ReportError
from cpdrun.report.files import TABLES
from cpdrun.report.study import Study, plain, read_study

PICTURES = ("png", "svg", "pdf")
DEFAULT_PICTURES = ("png", "svg")
MAIN_PLOT = "accuracy_vs_bits"
FORMATS = (*TABLES, "html", *PICTURES)


@dataclass(frozen=True)
class Report:
    """What was found and what was written."""

    sentences: list[str]
    notes: list[str]  # what is missing, failed, mixed, or was left out
    table: pd.DataFrame
    files: list[Path]


def write_report(
    sweeps: Sequence[SweepDir],
    *,
    metric: str = "test_accuracy",
    formats: Sequence[str] = ("md", "csv"),
    ci: float = 95,
    tolerance: float | None = None,
    rows: Sequence[str] = (),
    cols: Sequence[str] = (),
    console: Console | None = None,
) -> Report:
    """Write the report on `sweeps` and print its answer and table on `console`.

    One sweep's report goes into its report folder; that of several into the folder `A+B` beside the first.
    `formats` are kinds of table, `html` for the page, and kinds of picture (png and svg where none is named).
    `ci` is the interval's width in per cent; `tolerance`, how much worse than fp32 counts as equal, in shown
    units (points for an accuracy, default 0.5). `rows` and `cols` name axes for one more table, pivot.*.
    Raises ReportError where there is nothing to report or the question cannot be put.
    """
    console = console or Console()
    _check(formats, ci, tolerance)
    study = read_study(list(sweeps), metric=metric, ci=ci, tolerance=tolerance)
    pivoted = pivot.complete(study, rows, cols) if rows or cols else None
    answer, notes = verdict.sentences(study), completeness.notes(study, sweeps)
    _print(console, study, answer, notes)

    folder = _folder(sweeps)
    folder.mkdir(parents=True, exist_ok=True)
    figures, reasons = _draw(study)
    notes += reasons
    _say(console, *reasons, style="dim")
    kinds = [kind for kind in formats if kind in PICTURES] or list(DEFAULT_PICTURES)
    files = _write_tables(study, folder, [kind for kind in formats if kind in TABLES], answer + notes)
    if pivoted is not None:
        files += _write_pivot(study, folder, [kind for kind in formats if kind in TABLES], *pivoted)
    rendered = {name: svg.render(figures[name]) for name in figures if "svg" in kinds or "html" in formats}
    files += _write_pictures(folder, figures, rendered, kinds)
    if "html" in formats:
        write_text(folder / "report.html", html.page(study, answer, notes, rendered))
        files.append(folder / "report.html")
    _say(console, *_where(folder, files))
    return Report(answer, notes, tables.frame(study), files)


def _check(formats: Sequence[str], ci: float, tolerance: float | None) -> None:
    unknown = [name for name in formats if name not in FORMATS]
    if unknown:
        raise ReportError(f"unknown report format {unknown[0]!r}; there are: {', '.join(FORMATS)}")
    if not 0 < ci < 100:
        raise ReportError(f"ci={ci:g} is not a confidence level; give per cent, between 0 and 100, e.g. 95")
    if tolerance is not None and not tolerance >= 0:
        raise ReportError(
            f"tol={tolerance:g} is not a tolerance; give how much worse than fp32 is still equal, e.g. 0.5"
        )


def _folder(sweeps: Sequence[SweepDir]) -> Path:
    if len(sweeps) == 1:
        return sweeps[0].report
    return SweepDir(sweeps[0].path.parent / "+".join(sweep.name for sweep in sweeps)).report


def _print(console: Console, study: Study, answer: list[str], notes: list[str]) -> None:
    _say(console, *answer, style="bold")
    _say(console, *(f"note: {note}" for note in notes), style="yellow")
    bold = [group.is_baseline for group in study.groups]
    console.print(markup.terminal(tables.brief(study), bold))


def _draw(study: Study) -> tuple[dict[str, Figure], list[str]]:
    """Every plot that the runs allow, by name, and one line for each that they do not."""
    figures, reasons = {}, []
    for name, draw in plots.available():
        try:
            with matplotlib.rc_context(style.RC):
                figures[name] = draw(study)
                figures[name].draw_without_rendering()  # lays it out, once for all kinds of file
                figures[name].set_layout_engine("none")
        except plots.NotDrawnError as reason:
            reasons.append(f"no {name}: {reason}")
    return figures, reasons


def _write_tables(study: Study, folder: Path, kinds: list[str], lines: list[str]) -> list[Path]:
    """table.csv has the columns that others rely on; the other kinds, and details.csv, have all there is."""
    shown, details, files = tables.full(study), tables.details(study), []
    for kind in kinds:
        numbers = tables.frame(study) if kind == "csv" else details
        files.append(TABLES[kind](folder / "table", numbers, shown))
        if kind == "csv":
            files.append(TABLES[kind](folder / "details", details, shown))
        if kind == "md":
            head = "\n\n".join(markup.escape_markdown(line) for line in lines)
            write_text(files[-1], f"{head}\n\n{files[-1].read_text(encoding='utf-8')}")
    return files


def _write_pivot(
    study: Study, folder: Path, kinds: list[str], down: list[str], along: list[str]
) -> list[Path]:
    shown, numbers = pivot.shown(study, down, along), pivot.numbers(study, down, along)
    return [TABLES[kind](folder / "pivot", numbers, shown) for kind in kinds]


def _write_pictures(
    folder: Path, figures: dict[str, Figure], rendered: dict[str, str], kinds: list[str]
) -> list[Path]:
    files = []
    for name in plots.names():
        for kind in PICTURES:
            path = folder / f"{name}.{kind}"
            if name not in figures or kind not in kinds:
                path.unlink(missing_ok=True)  # of an earlier report on other runs
                continue
            if kind == "svg":
                write_text(path, svg.standalone(rendered[name]))
            else:
                stable = {"CreationDate": None} if kind == "pdf" else None
                with matplotlib.rc_context(style.RC):
                    figures[name].savefig(path, dpi=style.PNG_DPI, metadata=stable)
            files.append(path)
    return files


def _where(folder: Path, files: list[Path]) -> list[str]:
    """What to open first by its path, the rest by name."""
    first = [file for file in files if file.suffix == ".html"] or [f for f in files if f.stem == MAIN_PLOT][
        :1
    ]
    rest = ", ".join(file.name for file in files if file not in first)
    return [f"open {file}" for file in first] + [f"in {folder}: {rest}"]


def _say(console: Console, *lines: str, style: str = "") -> None:
    """Lines as they are: no markup, no wrapping (a terminal wraps by itself, a file must not be wrapped)."""
    for line in lines:
        console.print(plain(line), style=style, markup=False, highlight=False, soft_wrap=True)
