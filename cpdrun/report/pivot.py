"""Make a table with the chosen axes down the side and along the top: `--rows format --cols aps`."""

from collections.abc import Sequence

import pandas as pd
from custom_fp.words import did_you_mean

from cpdrun.report.tables import Shown, column
from cpdrun.study import ReportUsageError, formats
from cpdrun.study.axes import axis_text, axis_title
from cpdrun.study.collect import CORE_AXES, FORMAT, identity
from cpdrun.study.group import Group
from cpdrun.study.study import Study
from cpdrun.study.verdicts import MARKS


def complete(study: Study, rows: Sequence[str], cols: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the axes down the side and along the top.

    An axis that varies and was not named is added to the side, so that a cell never mixes configs.

    Raises:
        ReportUsageError: The study has no such axis, or an axis is named twice.
    """
    known = {column(axis): axis for axis in (*CORE_AXES, *study.axes)} | {"workers": "world_size"}
    for name in (*rows, *cols):
        if name not in known:
            near = did_you_mean(name, known)
            raise ReportUsageError(
                f"no axis {name!r} for --rows and --cols{near}; there are: {', '.join(known)}"
            )
    down, along = [known[name] for name in rows], [known[name] for name in cols]
    if len({*down, *along}) < len(down) + len(along):
        raise ReportUsageError("--rows and --cols must not name an axis twice")
    for axis in known.values():
        if axis not in (*down, *along) and _varies(study, axis):
            down.append(axis)
    return down, along


def shown(study: Study, down: list[str], along: list[str]) -> Shown:
    """Return the table as text, with the mean and the mark of the verdict in each cell."""
    cells = {key: _cell(study, group) for key, group in _cells(study, down, along).items()}
    top, side = _values(study, along), _values(study, down)
    header = [
        *map(axis_title, down),
        *(_heading(along, values) or study.metric.title for values in top.values()),
    ]
    rows = [
        [*map(axis_text, values), *(cells.get((here, there), "") for there in top)]
        for here, values in side.items()
    ]
    return Shown(header, rows, len(down))


def _cell(study: Study, group: Group) -> str:
    """Return the mean with the mark of its verdict, such as `98.9 ✓`."""
    mark = f" {MARKS[study.judged[group].verdict]}" if group in study.judged else ""
    return f"{study.metric.show(group.mean)}{mark}"


def numbers(study: Study, down: list[str], along: list[str]) -> pd.DataFrame:
    """Return the table of means without verdicts, in the metric's own unit."""
    cells = {key: group.mean for key, group in _cells(study, down, along).items()}
    top, side = _values(study, along), _values(study, down)
    rows = []
    for here, values in side.items():
        row = {column(axis): value for axis, value in zip(down, values, strict=True)}
        for there, heading in top.items():
            row[_heading(along, heading) or f"{study.metric.name}_mean"] = cells.get((here, there))
        rows.append(row)
    return pd.DataFrame(rows)


Key = tuple[str, ...]


def _cells(study: Study, down: list[str], along: list[str]) -> dict[tuple[Key, Key], Group]:
    return {(_key(group, down), _key(group, along)): group for group in study.groups}


def _values(study: Study, axes: list[str]) -> dict[Key, list]:
    """Return the combinations of values of `axes`, sorted by the first axis first and with most bits first."""
    found = {_key(group, axes): [group.keys[axis] for axis in axes] for group in study.groups}
    return dict(
        sorted(
            found.items(),
            key=lambda item: [_order(a, v, study.bits_axis.key) for a, v in zip(axes, item[1], strict=True)],
        )
    )


def _order(axis: str, value: object, bits_axis: str) -> tuple:
    if axis in (FORMAT, bits_axis):
        return (0, *formats.widest_first(value))
    return (0, value, 0, "") if isinstance(value, int | float) else (1, 0, 0, identity(value))


def _key(group: Group, axes: list[str]) -> Key:
    return tuple(identity(group.keys[axis]) for axis in axes)


def _varies(study: Study, axis: str) -> bool:
    return len({identity(group.keys[axis]) for group in study.groups}) > 1


def _heading(axes: list[str], values: list) -> str:
    return ", ".join(
        f"{axis_title(axis)} {axis_text(value)}" for axis, value in zip(axes, values, strict=True)
    )
