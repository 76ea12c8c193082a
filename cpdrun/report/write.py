"""`cpdrun report`: read the runs of a sweep, say the answer, write tables and pictures."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import pandas as pd
from rich.console import Console

from cpdrun.record import SweepDir, write_text
from cpdrun.report import plots, style, tables, verdict
from cpdrun.report.completeness import notes as completeness_notes
from cpdrun.report.errors import ReportError
from cpdrun.report.study import Study, read_study

TABLES = {"csv": tables.csv, "md": tables.markdown}
PICTURES = ("png", "svg")


@dataclass(frozen=True)
class Report:
    """What was found and what was written."""

    sentences: list[str]
    notes: list[str]  # what is missing, failed, or was left out
    table: pd.DataFrame
    files: list[Path]


def write_report(
    sweeps: Sequence[SweepDir],
    *,
    metric: str = "test_accuracy",
    formats: Sequence[str] = ("md", "csv"),
    ci: float = 95,
    tolerance: float | None = None,
    console: Console | None = None,
) -> Report:
    """Write the report on `sweeps` and print its answer and table on `console`.

    One sweep's report goes into its report folder; that of several into the folder `A+B` beside the first.
    `ci` is the interval's width in per cent; `tolerance`, how much worse than fp32 counts as equal, in shown
    units (points for an accuracy, default 0.5). Raises ReportError where there is nothing to report.
    """
    console = console or Console()
    _check(formats, ci)
    study = read_study(list(sweeps), metric=metric, ci=ci, tolerance=tolerance)
    answer, notes = verdict.sentences(study), completeness_notes(study, sweeps)
    for line in answer:
        _say(console, line, style="bold")
    for note in notes:
        _say(console, f"note: {note}", style="yellow")
    console.print(tables.terminal(study))
    folder = _folder(sweeps)
    folder.mkdir(parents=True, exist_ok=True)
    files = [_write_table(study, folder / f"table.{name}", TABLES[name], answer, notes) for name in formats]
    for name, draw in plots.available():
        try:
            files += _write_picture(study, folder, name, draw)
        except plots.NotDrawnError as reason:
            notes.append(f"no {name}: {reason}")
            _say(console, f"note: {notes[-1]}", style="yellow")
    _say(console, "written: " + ", ".join(str(file) for file in files))
    return Report(answer, notes, tables.frame(study), files)


def _check(formats: Sequence[str], ci: float) -> None:
    unknown = [name for name in formats if name not in TABLES]
    if unknown:
        raise ReportError(f"unknown report format {unknown[0]!r}; there are: {', '.join(TABLES)}")
    if not 0 < ci < 100:
        raise ReportError(f"ci={ci:g} is not a confidence level; give per cent, between 0 and 100, e.g. 95")


def _folder(sweeps: Sequence[SweepDir]) -> Path:
    if len(sweeps) == 1:
        return sweeps[0].report
    return SweepDir(sweeps[0].path.parent / "+".join(sweep.name for sweep in sweeps)).report


def _write_table(study: Study, path: Path, render, answer: list[str], notes: list[str]) -> Path:
    text = render(study)
    if path.suffix == ".md":
        head = [tables.escape_markdown(line) for line in answer] + [
            f"Note: {tables.escape_markdown(n)}" for n in notes
        ]
        text = "\n\n".join(head) + "\n\n" + text
    write_text(path, text)
    return path


def _write_picture(study: Study, folder: Path, name: str, draw) -> list[Path]:
    files = [folder / f"{name}.{suffix}" for suffix in PICTURES]
    with matplotlib.rc_context(style.RC):
        figure = draw(study)
        for file in files:
            metadata = {"Date": None} if file.suffix == ".svg" else None  # the same runs give the same file
            figure.savefig(file, dpi=style.PNG_DPI, metadata=metadata)
    return files


def _say(console: Console, line: str, style: str = "") -> None:
    """A line as it is: no markup, no wrapping (a terminal wraps by itself, a file must not be wrapped)."""
    console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)
