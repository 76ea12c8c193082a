"""A table of the metric with rows and columns of the user's choice.

Example: `cpdrun report --rows format,aps --cols model`.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd
from custom_fp.suggestions import did_you_mean

from cpdrun.report.tables import Shown, column, show_means
from cpdrun.study import ReportUsageError, formats
from cpdrun.study.axes import axis_text, axis_title
from cpdrun.study.collect import CORE_AXES, FORMAT, config_keys, identity, may_be_axis
from cpdrun.study.group import Group
from cpdrun.study.study import Study
from cpdrun.study.verdicts import MARKS

Key = tuple[str, ...]
# The values of a group on the axes and on the keys that have one value in all runs, keyed by axis or key.
Values = Mapping[str, Any]


def layout_table(study: Study, rows: Sequence[str], cols: Sequence[str]) -> tuple[pd.DataFrame, Shown]:
    """Return the means with the chosen axes along the rows and columns.

    If several groups would share a cell, further axes are added to the rows until each group has its own cell.

    Args:
        study: The study.
        rows: The axes along the rows: columns of table.csv, titles such as `workers`, or config keys that are constant.
        cols: The axes along the columns, named in the same way.

    Returns:
        The means in the metric's own unit, and the table as text. In the text, a mean is followed by the mark of its
        verdict.

    Raises:
        ReportUsageError: An axis is unknown or named twice.
    """
    fixed = _fixed(study)
    values_of = {group: fixed | group.keys for group in study.groups}
    down, along = _chosen_axes(study, values_of.values(), rows, cols)
    top, side = (_sorted(values_of.values(), axes, study.bits_axis.key) for axes in (along, down))
    texts = dict(zip(study.groups, show_means(study), strict=True))
    cells = {(_key(values, down), _key(values, along)): group for group, values in values_of.items()}
    headings = [_heading(along, values) for values in top.values()]
    numbers, shown = [], []
    for here, values in side.items():
        found = [cells.get((here, there)) for there in top]
        labels = {column(axis): value for axis, value in zip(down, values, strict=True)}
        means = {
            heading or f"{study.metric.name}_mean": None if group is None else group.mean
            for heading, group in zip(headings, found, strict=True)
        }
        numbers.append(labels | means)
        marked = [
            "" if group is None else f"{texts[group]} {_mark(study, group)}".rstrip() for group in found
        ]
        shown.append([*map(axis_text, values), *marked])
    header = [*map(axis_title, down), *(heading or study.metric.title for heading in headings)]
    return pd.DataFrame(numbers), Shown(header, shown, len(down))


def _fixed(study: Study) -> dict[str, Any]:
    """Return the config keys and values that are the same in all runs."""
    keys = [key for key in config_keys(study.runs) if may_be_axis(key)]
    return {key: study.runs[key].iloc[0] for key in keys if len(set(map(identity, study.runs[key]))) == 1}


def _chosen_axes(
    study: Study, groups: Collection[Values], rows: Sequence[str], cols: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Resolve the names of the axes, and add row axes until each group has its own cell."""
    axes = [*CORE_AXES, *study.axes]
    columns = {column(axis): axis for axis in axes}
    every = [key for values in groups for key in values]
    known = (
        {axis_title(key): key for key in every}
        | {key: key for key in every}
        | columns
        | {"workers": "world_size"}
    )
    if not study.bits_axis.is_of_gradients:
        known[FORMAT] = study.bits_axis.key
    for name in (*rows, *cols):
        if name not in known:
            near, names = did_you_mean(name, known), ", ".join(dict.fromkeys([*columns, "workers"]))
            raise ReportUsageError(f"no axis {name!r} for --rows and --cols{near}; there are: {names}")
    down, along = [known[name] for name in rows], [known[name] for name in cols]
    if len({*down, *along}) < len(down) + len(along):
        raise ReportUsageError("--rows and --cols must not name an axis twice")
    for axis in axes:
        if _n_cells(groups, [*down, *along, axis]) > _n_cells(groups, [*down, *along]):
            down.append(axis)
    return down, along


def _n_cells(groups: Collection[Values], axes: list[str]) -> int:
    return len({_key(values, axes) for values in groups})


def _mark(study: Study, group: Group) -> str:
    return MARKS[study.judged[group].kind] if group in study.judged else ""


def _sorted(groups: Collection[Values], axes: list[str], bits_axis: str) -> dict[Key, list]:
    """Return the distinct values of `axes`, sorted axis by axis. Wide formats come first."""
    found = {_key(values, axes): [values[axis] for axis in axes] for values in groups}

    def order(item: tuple[Key, list]) -> list[tuple]:
        return [_order(axis, value, bits_axis) for axis, value in zip(axes, item[1], strict=True)]

    return dict(sorted(found.items(), key=order))


def _order(axis: str, value: object, bits_axis: str) -> tuple:
    if axis in (FORMAT, bits_axis):
        return (0, *formats.widest_first(value))
    return (0, value, 0, "") if isinstance(value, int | float) else (1, 0, 0, identity(value))


def _key(values: Values, axes: list[str]) -> Key:
    return tuple(identity(values[axis]) for axis in axes)


def _heading(axes: list[str], values: list) -> str:
    return ", ".join(
        f"{axis_title(axis)} {axis_text(value)}" for axis, value in zip(axes, values, strict=True)
    )
