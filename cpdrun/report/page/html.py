"""Write report.html, which holds the whole report in one file and needs no network.

All text that comes from a config or a name is escaped. A content security policy allows only the page's own script and
forbids loading anything.
"""

import base64
import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from typing import Any

import pandas as pd

from cpdrun.report import plots, style, svg, tables
from cpdrun.report.page import filters
from cpdrun.report.page.markup import escape_html as escape
from cpdrun.study.axes import SWEEP, axis_text, axis_title
from cpdrun.study.collect import CORE_AXES, SEED, config_keys, identity
from cpdrun.study.group import Group
from cpdrun.study.search_record import USE
from cpdrun.study.study import Study

# The CSS variable of page.css that replaces each color of a picture, so that the color follows the page's theme.
_THEME = {
    "#ffffff": "--bg",
    "#000000": "--fg",
    "#e4e4e4": "--grid",
    "#666666": "--muted",
    "#333333": "--muted",
}
# These colors are for text on a colored background within a picture, so they never change.
_AS_THEY_ARE = {"#fefefe", "#010101"}
# The dark value of --bg in page.css.
_DARK = "#15181b"
# The fill color of text, with or without a white halo.
_TEXT = re.compile(r'style="fill: (#[0-9a-f]{6})(?="|; stroke: #ffffff; stroke-width)')
_MARK = re.compile(r"fill: (#[0-9a-f]{6}); stroke: \1(?![0-9a-f])")
_STROKE = re.compile(r"stroke: (#[0-9a-f]{6})")


def page(
    study: Study,
    answer: list[str],
    matrix: tables.Shown | None,
    notes: list[str],
    reasons: list[str],
    pictures: dict[str, str],
    best: tables.Shown | None = None,
    said: Mapping[str, list[str]] | None = None,
    tables_of: Mapping[str, tuple[str, tables.Shown]] | None = None,
) -> str:
    """Return the text of the page.

    Args:
        study: The study to report on.
        answer: The sentences at the top of the page.
        matrix: The table of the answers of many facets, or None.
        notes: Sentences about what is missing or mixed.
        reasons: Sentences that say why plots are missing.
        pictures: The SVGs that `pictures.render` returned, by the name of the plot.
        best: The table of each format at its best tuned value, or None.
        said: The sentences that answer a question, by key of `plots.QUESTIONS`.
        tables_of: The heading and the table that answer a question, by key of `plots.QUESTIONS`.
    """
    said, tables_of = said or {}, tables_of or {}
    means = tables.full(study)
    css, script = _asset("page.css"), _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    policy += "; base-uri 'none'; form-action 'none'"
    title = f"cpdrun report: {', '.join(study.sweeps)}"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{css}{_colors(pictures)}</style></head><body>",
        '<a class="skip" href="#table">To the table</a><main tabindex="-1">',
        f"<h1>{escape(title)}</h1>",
        *(f'<p class="answer">{escape(line)}</p>' for line in answer),
        *([_table("answers", "Answers", matrix.header, matrix.rows)] if matrix is not None else []),
        *([_table("best", "Each at its best", best.header, best.rows)] if best is not None else []),
        *(f'<p class="note">{escape(line)}</p>' for line in notes),
        filters.form(means, len(study.groups)),
        *_questions(study, pictures, said, tables_of),
        *(f'<p class="reason">{escape(line)}</p>' for line in reasons),
        '<h2 id="table" tabindex="-1">Table</h2>',
        _means(study, means),
        "<h2>Runs</h2>",
        _runs(study),
        f'</main><div id="tip" role="status"></div><script>{script}</script></body></html>',
    ]
    return "\n".join(parts) + "\n"


def _questions(
    study: Study,
    pictures: dict[str, str],
    said: Mapping[str, list[str]],
    tables_of: Mapping[str, tuple[str, tables.Shown]],
) -> Iterator[str]:
    """Yield a section with sentences, a table and pictures for each question that has any of them."""
    drawn = [plot.for_metric(study.metric) for plot in plots.available() if plot.name in pictures]
    groups = filters.groups(study)
    for question, asked in plots.QUESTIONS.items():
        parts = [f'<p class="said">{escape(line)}</p>' for line in said.get(question, [])]
        if question in tables_of:
            title, table = tables_of[question]
            parts += [f"<h3>{escape(title)}</h3>", _table(question, title, table.header, table.rows)]
        parts += [_picture(plot, pictures[plot.name], groups) for plot in drawn if plot.question == question]
        if parts:
            yield f'<section><h2 id="{question or "others"}">{escape(asked)}</h2>'
            yield from parts
            yield "</section>"


def _asset(name: str) -> str:
    return (files("cpdrun.report.page") / name).read_text(encoding="utf-8")


def _picture(plot: plots.Plot, rendered: str, groups: Mapping[str, int]) -> str:
    """Return the HTML of a picture with its heading and caption, in which CSS variables replace colors."""
    text = svg.inline(rendered, prefix=plot.name, description=plot.alt, groups=groups)
    text = _TEXT.sub(lambda found: _variable("t", found, 'style="fill: '), text)
    text = _MARK.sub(lambda found: f"fill: var(--s-{found[1][1:]}); stroke: var(--s-{found[1][1:]})", text)
    text = _STROKE.sub(lambda found: _variable("s", found, "stroke: "), text)
    for color, variable in _THEME.items():
        text = text.replace(f": {color}", f": var({variable})")
    caption = (
        # The caption is hidden from screen readers, which already read the same text as the name of the picture.
        f'<figcaption aria-hidden="true">{escape(plot.alt)}</figcaption>'
    )
    return f'<h3>{escape(plot.title)}</h3><figure><div class="picture">{text}</div>{caption}</figure>'


def _variable(kind: str, found: re.Match[str], before: str) -> str:
    color = found[1]
    return found[0] if color in _THEME or color in _AS_THEY_ARE else f"{before}var(--{kind}-{color[1:]})"


def _colors(pictures: dict[str, str]) -> str:
    """Return the CSS variables for the colors of lines (`--s-`) and letters (`--t-`) in the pictures.

    On a light page and on paper, lines keep their colors and letters have the ink colors of `style.ink`. On a dark
    page, the colors are changed until they are legible.
    """
    found = {
        color for text in pictures.values() for color in re.findall(r": (#[0-9a-f]{6})", text)
    } - _AS_THEY_ARE
    light = "".join(f"--s-{c[1:]}:{c};--t-{c[1:]}:{style.ink(c)};" for c in sorted(found))
    on_dark = {c: (style.readable(c, _DARK, 3), style.readable(c, _DARK, 4.5)) for c in sorted(found)}
    dark = "".join(f"--s-{c[1:]}:{line};--t-{c[1:]}:{letter};" for c, (line, letter) in on_dark.items())
    return f":root{{{light}}}@media screen and (prefers-color-scheme: dark){{:root{{{dark}}}}}"


def _means(study: Study, shown: tables.Shown) -> str:
    sizes = tables.size_counts(study).values()
    values = [
        _sort_values(study, group, shown.n_labels, [counts[i] for counts in sizes])
        for i, group in enumerate(study.groups)
    ]
    classes = ["fp32" if group.is_baseline else "" for group in study.groups]
    return _table("means", "Means", shown.header, shown.rows, values, classes, list(range(len(classes))))


def _sort_values(study: Study, group: Group, n_labels: int, sizes: list[float]) -> list[Any]:
    """Return the values by which a row is sorted, or None for cells that are sorted by their text.

    The values are the numbers of the cells without intervals and units.
    """
    gap, nan = study.against_baseline(group), math.nan
    figures = [len(group.values), group.mean, gap.mean if gap else nan]
    figures += [gap.own_low if gap else nan] if tables.has_own_spread(study) else []
    figures.append(tables.count_failed(study, group))

    def keys(values: list[float]) -> list[Any]:
        return [value if math.isfinite(value) else "" for value in values]

    return [*[None] * n_labels, *keys(figures), None, *keys(sizes)]  # A verdict is sorted by its text.


def _runs(study: Study) -> str:
    """Return the table of runs with the keys that vary, followed by lists of the keys that all runs share."""
    runs = study.runs
    environment = [column for column in runs.columns if column.startswith("env:")]
    always = [*CORE_AXES, SEED]
    varying = [k for k in config_keys(runs) if k not in always and _varies(runs, k)]
    columns = [key for key in always if key in runs.columns] + varying
    columns += [column for column in environment if _varies(runs[runs[column].notna()], column)]
    metrics = [column for column in runs.columns if column.startswith("metric:")]
    seconds = [column for column in ("run:train_seconds",) if column in runs.columns]
    names = (["run:sweep"] if len(study.sweeps) > 1 else []) + ["run:name", "run:state", "run:status", USE]
    names = [name for name in names if name in runs.columns] + columns + metrics + seconds
    header = [axis_title(name) if name == SWEEP else name.split(":", 1)[-1] for name in names]
    rows = [[_cell(value) for value in row] for row in runs[names].itertuples(index=False, name=None)]
    common = [key for key in config_keys(runs) if key not in columns]
    same = [column for column in environment if column not in columns]
    table = _table("runs", "Runs", header, rows, groups=filters.groups_of(study, runs))
    return "\n".join(
        [
            f"<details><summary>{len(runs)} runs</summary>{table}</details>",
            f"<details><summary>Configuration of all runs</summary>{_listing('Configuration', runs, common)}</details>",
            f"<details><summary>Versions and machine</summary>{_listing('Versions', runs, same)}</details>",
        ]
    )


def _varies(runs: pd.DataFrame, column: str) -> bool:
    return len(set(map(identity, runs[column]))) > 1


def _cell(value: Any) -> str:
    if isinstance(value, float) and value == value:
        return f"{value:.6g}"
    return axis_text(value)


def _listing(name: str, runs: pd.DataFrame, columns: Iterable[str]) -> str:
    """Return the HTML of a list of columns with the first known value of each column."""
    lines = [f"{c.removeprefix('env:')}: {next(iter(runs[c].dropna()), None)}" for c in columns]
    return f'<pre tabindex="0" role="region" aria-label="{name}">{escape(chr(10).join(lines))}</pre>'


def _table(
    name: str,
    title: str,
    header: list[str],
    rows: list[list[str]],
    values: list[list[Any]] | None = None,
    classes: list[str] | None = None,
    groups: list[int | None] | None = None,
) -> str:
    """Return the HTML of a sortable table.

    Args:
        name: The id of the table.
        title: The name of the table for screen readers.
        header: The headings.
        rows: The cells of each row as text.
        values: The value by which each cell is sorted, or None for a cell that is sorted by its text.
        classes: The CSS class of each row, or "".
        groups: The number of each row's group, or None.
    """
    head = "".join(f'<th scope="col"><button type="button">{escape(text)}</button></th>' for text in header)
    body = []
    for i, row in enumerate(rows):
        keys = values[i] if values else [None] * len(row)
        cells = [
            f"<td>{escape(text)}</td>"
            if key is None
            else f'<td data-value="{escape(str(key))}">{escape(text)}</td>'
            for text, key in zip(row, keys, strict=True)
        ]
        mark = f' class="{classes[i]}"' if classes and classes[i] else ""
        mark += f' data-group="{groups[i]}"' if groups and groups[i] is not None else ""
        body.append(f"<tr{mark}>{''.join(cells)}</tr>")
    table = f'<table id="{name}"><thead><tr>{head}</tr></thead>'
    scrolled = f'<div class="wide" tabindex="0" role="region" aria-label="{title}">'
    return "\n".join([f"{scrolled}{table}<tbody>", *body, "</tbody></table></div>"])
