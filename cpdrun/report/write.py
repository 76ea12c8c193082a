"""`cpdrun report`: read the runs of a sweep, say the answer, write tables, pictures and the page."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from cpdrun.config.margin import Typed
from cpdrun.costmodel import CalibrationError, Network, NotCalibratedError, network
from cpdrun.record import SweepDir, check_inside, read_manifest, write_text
from cpdrun.report import best_of, completeness, export, headline, pareto, pivot, tables
from cpdrun.report.cost.axes import COSTS
from cpdrun.report.diagnosis.worse_groups import worse_groups
from cpdrun.report.methods import comparison, crossover, crossover_text
from cpdrun.report.page import html, markup, pictures
from cpdrun.report.page.table_files import TABLES
from cpdrun.stats.evidence import Verdict
from cpdrun.study.axes.titles import plain
from cpdrun.study.collect import sweep_names
from cpdrun.study.errors import ReportError, ReportUsageError
from cpdrun.study.reader import read_study
from cpdrun.study.study import Study

DEFAULT_PICTURES = ("png", "svg")
MAIN_PLOT = "accuracy_vs_bits"
FORMATS = (*TABLES, "html", *pictures.KINDS)


@dataclass(frozen=True)
class Report:
    """What was found and what was written."""

    verdicts: list[dict[str, Any]]  # of each chain: what is certified, open or refuted
    next_command: str  # that settles more; "" if nothing is open or it is not known
    sentences: list[str]
    notes: list[str]  # what is missing, failed, mixed, or was left out
    table: pd.DataFrame
    files: list[Path]
    details: pd.DataFrame
    crossover: pd.DataFrame | None  # predicted step times, where they can be
    fronts: list[dict[str, Any]] = field(default_factory=list)  # of each cost that differs, and their knees

    def as_json(self) -> dict[str, Any]:
        """Plain data; a number that is not known is None."""
        return {
            "verdicts": self.verdicts,
            "next_command": self.next_command or None,
            "sentences": self.sentences,
            "notes": self.notes,
            "table": _records(self.details),
            "fronts": self.fronts,
            "crossover": [] if self.crossover is None else _records(self.crossover),
            "files": [str(file) for file in self.files],
        }


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

    One sweep's report goes into its report folder; that of several into the folder `A+B` beside the first. `metric` is
    by default the one that a search asked for, or that the data is judged by; a report of another goes into a folder
    of its name within.
    `formats` are kinds of table, `html` for the page, and kinds of picture (png and svg where none is named).
    `ci` is the interval's width in per cent. `tolerance` is the margin: how much worse than fp32 is still good enough,
    in the unit in which the metric is shown, or a percentage such as "2%" of fp32's value or improvement, whichever is
    smaller. By default both are what a search of these runs asked, or else 95, and 0.5 points of a share or 2 % of any
    other metric. `rows` and `cols`
    name axes for one more table, pivot.*; `networks` are those of the predicted speed-up and of the
    predicted step times, by name or as yaml files (default: all that have names, and the one that was calibrated).
    `costs` are those whose Pareto front is put into words (bytes, kept, bitops, area; default: all that differ).
    `export_to` names tools whose files are written too (tensorboard, mlflow, wandb). `baseline` holds the values that
    name what the rest is compared with, by their keys: {"format": "bf16"}; by default those that a search of these runs
    asked for, or else fp32.
    Raises ReportError where there is nothing to report or the question cannot be put.
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
    (first, matrix), notes = headline.headline(study), completeness.notes(study, sweeps)
    verdicts = headline.verdicts(study)
    next_command = _next_command(sweeps, verdicts)
    first += [f"For more pairs: {next_command}"] if next_command else []
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


def _next_command(sweeps: Sequence[SweepDir], verdicts: Sequence[Mapping[str, Any]]) -> str:
    """Return the search that adds pairs to an open question of one sweep, as its sweep.yaml was typed."""
    if len(sweep_names(sweeps)) != 1 or all(each["verdict"] != Verdict.OPEN for each in verdicts):
        return ""
    try:
        typed = read_manifest(sweeps[0])["overrides"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    words = [shlex.quote(word) for word in typed if isinstance(word, str) and not word.startswith("seed=")]
    return " ".join(["cpdrun search", *words]) if isinstance(typed, list) and words else ""


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
    """Return the sweep's folder and the report's folder within it.

    The report on a metric other than the usual one has a folder of its own, so that neither overwrites the other.
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
    """What the page says, and the table it has, beside the pictures of a question (plots.QUESTIONS)."""
    why = worse_groups(study)
    said = {
        "sure": headline.counts(study),
        "workers": headline.compare_orders(study),
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
    if not console.is_terminal:  # a file takes a table of any width; a terminal's is folded into its own
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
    """table.csv has the columns that others rely on; the other kinds, and details.csv, have all there is; runs.csv the
    single runs."""
    shown, details, files = tables.full(study), tables.details(study), []
    for kind in kinds:
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
    """Which method is fastest on which network, as sentences, shown and numbers; or why that is not known. Who has not
    calibrated has not asked."""
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
    """crossover.*, whose text opens with who wins where; those of an earlier report go where this one has none."""
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
    """What to open first by its path, the rest by name."""
    first = [file for file in files if file.suffix == ".html"] or [f for f in files if f.stem == MAIN_PLOT][
        :1
    ]
    rest = ", ".join(file.name for file in files if file not in first)
    return [f"open {file}" for file in first] + [f"in {folder}: {rest}"]


def _say(console: Console, *lines: str, style: str = "") -> None:
    """Lines as they are: no markup, no wrapping (a terminal wraps by itself, a file must not be wrapped)."""
    for line in lines:
        console.print(
            markup.encodable(plain(line), console.encoding),
            style=style,
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
