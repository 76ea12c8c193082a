"""The table of means: one row for each combination of axes, its seeds averaged."""

import io

import pandas as pd
from rich import box
from rich.table import Table
from rich.text import Text

from cpdrun.report import formats
from cpdrun.report.study import SWEEP, Group, Study, axis_text, axis_title

_LONGEST_ON_A_TERMINAL = 80


def frame(study: Study) -> pd.DataFrame:
    """Columns format, bits, aps, world_size, the other axes, n, METRIC_mean, METRIC_ciNN, diverged.

    Means and half-widths are in the metric's own unit (a fraction 0..1 for an accuracy). `n` counts the seeds
    that the mean is over; `diverged`, the runs that ended so: their measured value is in the mean.
    """
    mean, half = f"{study.metric.name}_mean", f"{study.metric.name}_ci{study.ci:g}"
    rows = []
    for group in study.groups:
        row = {"format": group.format, "bits": formats.bits(group.format), "aps": group.keys["aps"]}
        row |= {"world_size": group.keys["world_size"]}
        row |= {_column(axis): group.keys[axis] for axis in study.axes}
        row |= {"n": len(group.values)}
        row[mean], row[half] = study.interval(group)
        rows.append(row | {"diverged": group.diverged})
    table = pd.DataFrame(rows)
    table["bits"] = table["bits"].astype("Int64")
    return table


def csv(study: Study) -> str:
    text = io.StringIO()
    frame(study).to_csv(text, index=False, lineterminator="\n")
    return text.getvalue()


def markdown(study: Study) -> str:
    """A GitHub table; accuracies in points."""
    header, *rows = _shown(study)
    lines = [
        _markdown_row(header),
        "|" + "|".join("---" if i == 0 else "--:" for i in range(len(header))) + "|",
    ]
    return "\n".join(lines + [_markdown_row(row) for row in rows]) + "\n"


def terminal(study: Study) -> Table:
    """The table for a rich console; a long one is cut, and says so."""
    header, *rows = _shown(study)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, name in enumerate(header):
        table.add_column(Text(name), justify="left" if i == 0 else "right", no_wrap=True)
    for row, group in zip(rows[:_LONGEST_ON_A_TERMINAL], study.groups, strict=False):
        table.add_row(*map(Text, row), style="bold" if group.is_baseline else "")
    if len(rows) > _LONGEST_ON_A_TERMINAL:
        table.caption = f"{len(rows) - _LONGEST_ON_A_TERMINAL} more rows: see table.csv"
    return table


def escape_markdown(text: str) -> str:
    """Text that GitHub shows as typed: no cell ends early, no markup, no HTML."""
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{c}" if c in "\\|`*_[]#~" else c for c in text)


def _shown(study: Study) -> list[list[str]]:
    """Header and rows as a reader wants them."""
    axes = ["world_size", *study.axes]
    header = ["format", "bits", "APS", *map(axis_title, axes), "n", study.metric.title, "diverged"]
    return [header, *(_shown_row(study, group, axes) for group in study.groups)]


def _shown_row(study: Study, group: Group, axes: list[str]) -> list[str]:
    bits = formats.bits(group.format)
    return [
        str(group.format),
        "-" if bits is None else str(bits),
        axis_text(group.keys["aps"]),
        *(axis_text(group.keys[axis]) for axis in axes),
        str(len(group.values)),
        study.metric.show(*study.interval(group)),
        str(group.diverged),
    ]


def _markdown_row(cells: list[str]) -> str:
    return "| " + " | ".join(escape_markdown(cell) for cell in cells) + " |"


def _column(axis: str) -> str:
    return "sweep" if axis == SWEEP else axis
