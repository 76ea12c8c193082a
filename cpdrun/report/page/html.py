"""Make report.html: the whole report in one file that works offline.

The template page.html.j2 escapes all text, because names and configs come from users. The content security policy
allows the page's own script only. A page that follows a running sweep may also request updates from its own server.
"""

import base64
import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pandas as pd

from cpdrun.report import answers_text, plots, style, svg, tables
from cpdrun.report.content import Content
from cpdrun.report.diagnosis import worse_groups
from cpdrun.report.page.markup import without_controls
from cpdrun.report.render import capital
from cpdrun.report.result_text import describe_group
from cpdrun.study.axes import SWEEP, axis_text, axis_title
from cpdrun.study.collect import CORE_AXES, SEED, config_keys, identity
from cpdrun.study.group import Group
from cpdrun.study.search_record import USE
from cpdrun.study.study import Study

if TYPE_CHECKING:
    import jinja2

    from cpdrun.report.page.server import Progress

# These colors of a picture are replaced by CSS variables of page.css, so that they follow the page's theme.
_THEME = {
    "#ffffff": "--bg",
    "#000000": "--fg",
    "#e4e4e4": "--grid",
    "#666666": "--muted",
    "#333333": "--muted",
}
# These colors never change. Pictures use them for text on a colored background.
_AS_THEY_ARE = {"#fefefe", "#010101"}
# The value of --bg in the dark theme of page.css.
_DARK = "#15181b"
# This pattern finds the fill color of text, with or without a white halo.
_TEXT = re.compile(r'style="fill: (#[0-9a-f]{6})(?="|; stroke: #ffffff; stroke-width)')
_MARK = re.compile(r"fill: (#[0-9a-f]{6}); stroke: \1(?![0-9a-f])")
_STROKE = re.compile(r"stroke: (#[0-9a-f]{6})")
# A column with more values than this gets no list of values to filter by.
_MOST_VALUES = 60


@dataclass(frozen=True)
class Row:
    """A row of a table on the page.

    Attributes:
        cells: Pairs of a text and the number by which the page sorts and filters. With None, the text is used.
        style: The CSS class, or "".
        group: The number of the row's group in the table of means, if any.
    """

    cells: Iterable[tuple[str, Any]]
    style: str = ""
    group: int | None = None


@dataclass(frozen=True)
class Table:
    """A table on the page. `name` is its id, and `title` its label for screen readers."""

    name: str
    title: str
    header: Sequence[str]
    rows: Sequence[Row]


def page(content: Content, pictures: Mapping[str, str], progress: "Progress | None" = None) -> str:
    """Return the HTML of a report.

    `pictures` is the result of `pictures.svgs`. `progress` is given if the page follows a running sweep.
    """
    study = content.study
    means = tables.full(study)
    matrix, best = content.matrix, content.best
    first = [_plain_table("answers", "Answers", matrix)] if matrix is not None else []
    first += [_plain_table("best", best.title, best.shown)] if best is not None else []
    first += [_plain_table("layout", content.layout.title, content.layout.shown)] if content.layout else []
    return _render(
        study.sweeps,
        progress,
        colors=_colors(pictures),
        answer=content.answer,
        first_tables=first,
        notes=content.notes,
        axes=_axes(means),
        sections=list(_sections(content, pictures)),
        means=_means(study, means),
        runs=_runs(study),
        listings=_listings(study),
    )


def waiting_page(sweeps: Sequence[str], problem: str, progress: "Progress") -> str:
    """Return the HTML to show while there is nothing to report yet, and why."""
    return _render(sweeps, progress, colors="", answer=[f"{capital(problem)}."], means=None)


def _render(sweeps: Sequence[str], progress: "Progress | None", **values: Any) -> str:
    script = _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = [
        "default-src 'none'",
        "style-src 'unsafe-inline'",
        "img-src data:",
        f"script-src 'sha256-{digest}'",
        "base-uri 'none'",
        "form-action 'none'",
        *(["connect-src 'self'"] if progress is not None else []),
    ]
    return _template().render(
        title=f"cpdrun report: {', '.join(sweeps)}",
        policy="; ".join(policy),
        css=_asset("page.css"),
        script=script,
        progress=progress,
        **values,
    )


@cache
def _template() -> "jinja2.Template":
    import jinja2

    def clean(value: Any) -> Any:
        is_text = isinstance(value, str) and not hasattr(value, "__html__")
        return without_controls(value) if is_text else value

    environment = jinja2.Environment(
        autoescape=True,
        finalize=clean,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["is_verdict"] = re.compile(r"[A-Z ]{4}").match
    return environment.from_string(_asset("page.html.j2"))


@cache
def _asset(name: str) -> str:
    return (files("cpdrun.report.page") / name).read_text(encoding="utf-8")


def _axes(means: tables.Shown) -> list[tuple[int, str, list[str]]]:
    """Return the label columns to filter by, as (position, heading, values).

    These columns have 2 to `_MOST_VALUES` different values.
    """
    values = [list(dict.fromkeys(row[i] for row in means.rows)) for i in range(means.n_labels)]
    return [(i, means.header[i], found) for i, found in enumerate(values) if 1 < len(found) <= _MOST_VALUES]


def _sections(content: Content, pictures: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the template variables of each section that has any content.

    A section answers one of `plots.QUESTIONS` with sentences, a table and plots.
    """
    study, crossover = content.study, content.crossover
    why = worse_groups(study)
    sentences = {
        "sure": answers_text.counts(study),
        "workers": answers_text.order_sentences(study),
        "cost": content.costs,
        "time": crossover.sentences if crossover else [],
        "why": why[0] if why else [],
        "training": content.forks.sentences if content.forks else [],
    }
    found = {"time": _plain_table("time", crossover.title, crossover.shown)} if crossover else {}
    if content.forks is not None:
        found |= {"training": _plain_table("forks", content.forks.title, content.forks.shown)}
    found |= {"why": _plain_table("why", "What each lost", why[1])} if why else {}
    # Pictures identify a group by its description, but the page needs its number in the table of means.
    groups = {describe_group(study, group): i for i, group in reversed(list(enumerate(study.groups)))}
    drawn = [plot.for_metric(study.metric) for plot in plots.available() if plot.name in pictures]
    for question, title in plots.QUESTIONS.items():
        section = {
            "id": question or "others",
            "title": title,
            "sentences": sentences.get(question, []),
            "table": found.get(question),
            "plots": [
                {"title": plot.title, "alt": plot.alt, "svg": _picture(plot, pictures[plot.name], groups)}
                for plot in drawn
                if plot.question == question
            ],
        }
        if section["sentences"] or section["table"] or section["plots"]:
            yield section


def _picture(plot: plots.Plot, rendered: str, groups: Mapping[str, int]) -> str:
    """Convert an SVG to an element of the page, with CSS variables as colors."""
    text = svg.inline(rendered, prefix=plot.name, description=plot.alt, groups=groups)
    text = _TEXT.sub(lambda found: _variable("t", found, 'style="fill: '), text)
    text = _MARK.sub(lambda found: f"fill: var(--s-{found[1][1:]}); stroke: var(--s-{found[1][1:]})", text)
    text = _STROKE.sub(lambda found: _variable("s", found, "stroke: "), text)
    for color, variable in _THEME.items():
        text = text.replace(f": {color}", f": var({variable})")
    return text


def _variable(kind: str, found: re.Match[str], before: str) -> str:
    color = found[1]
    return found[0] if color in _THEME or color in _AS_THEY_ARE else f"{before}var(--{kind}-{color[1:]})"


def _colors(pictures: Mapping[str, str]) -> str:
    """Return the CSS with the colors of lines (`--s-RRGGBB`) and letters (`--t-RRGGBB`).

    On light pages and on paper, lines keep their colors and letters are darkened (`style.ink`). On dark pages, colors
    that are too dark are lightened until they are legible.
    """
    found = {color for text in pictures.values() for color in re.findall(r": (#[0-9a-f]{6})", text)}
    names = sorted(found - _AS_THEY_ARE)
    light = "".join(f"--s-{c[1:]}:{c};--t-{c[1:]}:{style.ink(c)};" for c in names)
    on_dark = {c: (style.readable(c, _DARK, 3), style.readable(c, _DARK, 4.5)) for c in names}
    dark = "".join(f"--s-{c[1:]}:{line};--t-{c[1:]}:{letter};" for c, (line, letter) in on_dark.items())
    return f":root{{{light}}}@media screen and (prefers-color-scheme: dark){{:root{{{dark}}}}}"


def _plain_table(name: str, title: str, shown: tables.Shown) -> Table:
    return Table(name, title, shown.header, [Row([(text, None) for text in row]) for row in shown.rows])


def _means(study: Study, shown: tables.Shown) -> Table:
    sizes = tables.size_counts(study).values()
    rows = []
    for i, group in enumerate(study.groups):
        values = _numbers(study, group, shown.n_labels, [counts[i] for counts in sizes])
        cells = zip(shown.rows[i], values, strict=True)
        rows.append(Row(cells, "baseline" if group.is_baseline else "", i))
    return Table("means", "Means", shown.header, rows)


def _numbers(study: Study, group: Group, n_labels: int, sizes: Sequence[float]) -> list[Any]:
    """Return the sort keys of a group's row: None for text, "" for unknown numbers.

    Means and gaps are in the unit in which the metric is shown.
    """
    gap, scale = study.against_baseline(group), study.metric.scale
    figures = [len(group.values), scale * group.mean, scale * gap.mean if gap else math.nan]
    figures += [scale * gap.own_low if gap else math.nan] if tables.has_own_spread(study) else []
    figures.append(tables.count_failed(study, group))

    def finite(values: Iterable[float]) -> list[Any]:
        return [value if math.isfinite(value) else "" for value in values]

    return [*[None] * n_labels, *finite(figures), None, *finite(sizes)]  # The verdict is text.


def _runs(study: Study) -> Table:
    runs = study.runs
    metrics = [column for column in runs.columns if column.startswith("metric:")]
    names = ["run:sweep"] if len(study.sweeps) > 1 else []
    names += ["run:name", "run:state", "run:status", USE, *_varying(runs), *metrics, "run:train_seconds"]
    names = [name for name in names if name in runs.columns]
    header = [axis_title(name) if name == SWEEP else name.split(":", 1)[-1] for name in names]
    rows = runs[names].itertuples(index=False, name=None)
    return Table(
        "runs",
        "Runs",
        header,
        [
            Row([(_cell(value), None) for value in row], group=group)
            for row, group in zip(rows, _groups_of_runs(study), strict=True)
        ],
    )


def _groups_of_runs(study: Study) -> list[int | None]:
    """Return each run's group number in the table of means, or None."""
    names = list(study.groups[0].keys) if study.groups else []
    known = {tuple(identity(g.keys[name]) for name in names): i for i, g in enumerate(study.groups)}
    rows = study.runs.reindex(columns=names).itertuples(index=False, name=None)
    return [known.get(tuple(map(identity, row))) for row in rows]


def _varying(runs: pd.DataFrame) -> list[str]:
    """Return the core axes, the seed, and the config and machine columns that vary."""
    always = [key for key in (*CORE_AXES, SEED) if key in runs.columns]
    keys = [key for key in config_keys(runs) if key not in always and _varies(runs, key)]
    environment = [column for column in runs.columns if column.startswith("env:")]
    return always + keys + [column for column in environment if _varies(runs[runs[column].notna()], column)]


def _varies(runs: pd.DataFrame, column: str) -> bool:
    return len(set(map(identity, runs[column]))) > 1


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) and value == value else axis_text(value)


def _listings(study: Study) -> list[tuple[str, str, str]]:
    """Return what all runs have in common, as (heading, name, lines)."""
    runs, varying = study.runs, _varying(study.runs)
    common = [key for key in config_keys(runs) if key not in varying]
    same = [column for column in runs.columns if column.startswith("env:") and column not in varying]
    return [
        ("Configuration of all runs", "Configuration", _listing(runs, common)),
        ("Versions and machine", "Versions", _listing(runs, same)),
    ]


def _listing(runs: pd.DataFrame, columns: Iterable[str]) -> str:
    """Return a line "column: value" for each column, with its first known value."""
    return "\n".join(f"{c.removeprefix('env:')}: {next(iter(runs[c].dropna()), None)}" for c in columns)
