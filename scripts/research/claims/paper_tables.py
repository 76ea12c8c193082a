"""Write one table for each paper from the stored values: formats or cases in rows, and networks in columns."""

import statistics
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from research.claims.cells import matches
from research.claims.values import Values

from cpdrun.study import formats
from cpdrun.study.axes import BitsAxis, axis_text, axis_title
from cpdrun.study.collect import CASE, FORMAT, identity
from cpdrun.study.group import Group
from cpdrun.study.grouping import make_groups

TABLES = Path(__file__).with_suffix(".yaml")
INTRODUCTION = """\
# The papers' experiments, with small networks

`make claims` writes this page from the stored values of single runs. The tables are laid out as in the papers. Each
cell contains the mean over seeds in percent, the standard deviation over seeds, and the number of seeds in parentheses.
A run that diverged counts as failed, and its last accuracy is part of the mean. The networks and data are small, so
compare the rows of a column, not the numbers with those of the paper. [The page of claims](claims.md) says which
differences are more than noise.
"""


def paper_tables(stored: Callable[[str], Values | None]) -> str:
    """Return the page with all tables.

    Args:
        stored: A function that returns the stored values of a reference, or None if there are none.
    """
    tables = yaml.safe_load(TABLES.read_text(encoding="utf-8"))
    return INTRODUCTION + "".join(f"\n## {table['title']}\n\n" + _table(table, stored) for table in tables)


def _table(table: Mapping[str, Any], stored: Callable[[str], Values | None]) -> str:
    axes = table["rows"]
    labels: dict[tuple[str, ...], list[Any]] = {}
    columns: list[dict[tuple[str, ...], str]] = []
    sources: list[str] = []
    for column in table["columns"]:
        values = stored(column["values"])
        cells = {}
        for group in _groups(values, column) if values is not None else ():
            key = tuple(identity(group.keys[axis]) for axis in axes)
            labels.setdefault(key, [group.keys[axis] for axis in axes])
            cells[key] = _cell(group)
        columns.append(cells)
        sources.append(column["values"] if values is None else values.source)
    rows = sorted(labels, key=lambda key: _order(axes[0], labels[key][0]))
    heads = [*(axis_title(axis) for axis in axes), *(column["title"] for column in table["columns"])]
    lines = [heads, ["---"] * len(axes) + ["--:"] * len(columns)]
    lines += [[*map(axis_text, labels[key]), *(cells.get(key, "") for cells in columns)] for key in rows]
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"{text}\nStored values: {'; '.join(dict.fromkeys(sources))}.\n"


def _order(axis: str, value: Any) -> tuple:
    """Return the key that sorts rows: formats from the widest to the narrowest, and the case fp32 first."""
    return formats.widest_first(value) if axis == FORMAT else (value != "fp32",)


def _groups(values: Values, column: Mapping[str, Any]) -> Iterator[Group]:
    """Yield the groups of runs for one column of a table."""
    metric = f"metric:{column.get('metric', 'test_accuracy')}"
    for group in make_groups(values.as_runs(), values.axes, metric, BitsAxis(of_cases=CASE in values.axes)):
        if matches(group.keys, column.get("where", {})):
            yield group


def _cell(group: Group) -> str:
    """Return the mean, standard deviation and number of runs of a group, such as `79.3 ± 0.5 (10, 2 failed)`."""
    values = [100 * value for value in group.values]
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    mean = f"{statistics.fmean(values):.1f}{spread}" if values else "-"
    failed = len(group.diverged_seeds) + len(group.failures)
    return f"{mean} ({len(values)}{f', {failed} failed' if failed else ''})"
