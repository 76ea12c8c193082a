"""Find the cells that a claim compares.

A candidate is compared with the baseline that has the same values on all axes that the claim does not name.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from research.claims.claim import Comparison
from research.claims.values import Values

from cpdrun.study import ReportError, formats
from cpdrun.study.axes import BitsAxis, axis_text, axis_title, is_scaling
from cpdrun.study.collect import CASE, identity
from cpdrun.study.group import Group
from cpdrun.study.grouping import make_groups

Keys = Mapping[str, Any]
NAMED_BY_VALUE = ("format", CASE, "recipe")  # the axes whose values are displayed without a title


@dataclass(frozen=True)
class Pair:
    """A candidate and its baseline. Both are None if their runs are not stored."""

    comparison: Comparison
    cell: tuple[str, ...]  # the description of the candidate, with one text per axis
    candidate: Group | None = None
    baseline: Group | None = None
    source: str = ""


def find_pairs(comparison: Comparison, values: Values | None) -> list[Pair]:
    """Return the pairs of cells, most bits first, or one pair without runs if there is none."""
    found = list(_pairs(comparison, values)) if values is not None else []
    return found or [Pair(comparison, _describe(comparison.candidate))]


def _pairs(comparison: Comparison, values: Values) -> Iterator[Pair]:
    column = f"metric:{comparison.metric}"
    runs = values.as_runs()
    if comparison.metric and column not in runs:
        return
    runs = runs.assign(**{column: runs.get(column)}) if comparison.metric else runs.assign(**{column: 0.0})
    groups = make_groups(runs, values.axes, column, BitsAxis(of_cases=CASE in values.axes))
    candidates, baselines = (
        [group for group in groups if matches(group.keys, {**comparison.where, **cells})]
        for cells in (comparison.candidate, comparison.baseline)
    )
    shared = _shared_axes(comparison, values.axes, [group.keys for group in (*candidates, *baselines)])
    partners: dict[tuple[str, ...], Group] = {}
    for group in baselines:
        if partners.setdefault(_key(group.keys, shared), group) is not group:
            raise ReportError(
                f"{comparison.sweep}: several cells match the baseline {dict(comparison.baseline)}. "
                "Name the values that both sides have in `where`."
            )
    varying = [axis for axis in values.axes if len({identity(group.keys[axis]) for group in candidates}) > 1]
    shown = [
        a
        for a in values.axes
        if a in comparison.candidate or (a in varying and CASE not in comparison.candidate)
    ]
    shown += [axis for axis in shared if axis in varying and axis not in shown]
    for candidate in sorted(candidates, key=lambda group: formats.widest_first(group.format)):
        if baseline := partners.get(_key(candidate.keys, shared)):
            cell = _describe({axis: candidate.keys[axis] for axis in shown})
            yield Pair(comparison, cell, candidate, baseline, values.source)


def matches(keys: Keys, wanted: Keys) -> bool:
    """Return whether a cell has the wanted values. A list means any of its values. Classes are compared by name."""
    options = {axis: value if isinstance(value, list) else [value] for axis, value in wanted.items()}
    return all(axis in keys and any(_is(keys[axis], one) for one in options[axis]) for axis in wanted)


def _is(value: Any, wanted: Any) -> bool:
    return identity(value) == identity(wanted) or (isinstance(wanted, str) and axis_text(value) == wanted)


def _shared_axes(comparison: Comparison, axes: Sequence[str], cells: Sequence[Keys]) -> list[str]:
    """Return the axes that the claim does not name, on which candidate and baseline must have the same values.

    The rule of scaling is not compared, because one side may not scale gradients. A named case also determines other
    axes, such as its format, which are not compared either.
    """
    named = [axis for axis in axes if axis in {*comparison.candidate, *comparison.baseline}]

    def is_determined(axis: str) -> bool:
        pairs = {(_key(cell, named), identity(cell[axis])) for cell in cells}
        return len(pairs) == len({key for key, _ in pairs})

    rest = [axis for axis in axes if axis not in named and not is_scaling(axis)]
    return [axis for axis in rest if CASE not in named or not is_determined(axis)]


def _key(cell: Keys, axes: Sequence[str]) -> tuple[str, ...]:
    return tuple(identity(cell[axis]) for axis in axes)


def _describe(cell: Keys) -> tuple[str, ...]:
    """Return a description of a cell, such as ("e3m0", "with APS", "order tree"). Flags that are off are left out."""
    words = []
    for axis, value in cell.items():
        title = axis_title(axis).rpartition(".")[2]
        if axis in NAMED_BY_VALUE:
            words.append(", ".join(map(str, value)) if isinstance(value, list) else str(value))
        elif isinstance(value, bool):
            words.append(f"with {title}" if value else "without APS" if axis == "aps" else "")
        else:
            words.append(f"{title} {axis_text(value)}")
    return tuple(filter(None, words))
