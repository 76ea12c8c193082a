"""Which cells a claim compares: each of its side beside the one that equals it in all axes that it does not name."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from cpdrun.report.claims.claim import Ask
from cpdrun.report.claims.values import Values, key_of
from cpdrun.study.axes import formats
from cpdrun.study.axes.titles import axis_text, axis_title, is_scaling
from cpdrun.study.collect import CASE, identity

# Where the values of a sweep may be, best first; sources that do not have the cells are passed over.
Sources = Callable[[str], Sequence[Values]]


@dataclass(frozen=True)
class Pair:
    """The rows of two cells, a seed each; empty where no source has them."""

    ask: Ask
    cell: str
    source: str
    ours: pd.DataFrame
    against: pd.DataFrame


def comparisons(ask: Ask, sources: Sources) -> list[Pair]:
    """Of the first source that has both sides; one without rows where none has."""
    for values in sources(ask.sweep):
        if ask.metric and f"metric:{ask.metric}" not in values.rows:
            continue
        if ask.count and ask.count not in values.rows:
            continue
        if pairs := list(_pairs(ask, values)):
            return sorted(pairs, key=_for_reading)
    nothing = pd.DataFrame()
    return [Pair(ask, _in_words(ask.ours), f"{ask.sweep}, no runs", nothing, nothing)]


def _for_reading(pair: Pair) -> tuple:
    """Most bits first, as in tables."""
    return (-formats.order(pair.ours.iloc[0]["format"])[0], pair.cell)


def _pairs(ask: Ask, values: Values) -> Iterator[Pair]:
    """Every cell of ours beside the one that equals it in all axes that the ask does not name."""
    ours, against = (_chosen(values.rows, {**ask.where, **cells}) for cells in (ask.ours, ask.against))
    shared = _shared_axes(ask, values, ours, against)
    varying = [axis for axis in values.axes if len({identity(value) for value in ours.get(axis, [])}) > 1]
    shown = [axis for axis in values.axes if axis in ask.ours or (axis in varying and CASE not in ask.ours)]
    shown += [axis for axis in shared if axis in varying and axis not in shown]
    partners = _by_cell(against, shared)
    for cell in _by_cell(ours, values.axes).values():
        first = cell.iloc[0].to_dict()
        partner = partners.get(key_of(first, shared))
        if partner is not None:
            words = _in_words({axis: first[axis] for axis in shown})
            yield Pair(ask, words, values.source, cell, partner)


def _shared_axes(ask: Ask, values: Values, ours: pd.DataFrame, against: pd.DataFrame) -> list[str]:
    """The axes in which both sides must be equal: those not named, and not settled by those named (a case settles its
    format). How gradients are scaled says nothing about a side that does not scale them."""
    named = [axis for axis in values.axes if axis in {*ask.ours, *ask.against}]
    both = [*ours.to_dict("records"), *against.to_dict("records")]

    def is_settled(axis: str) -> bool:
        pairs = {(key_of(row, named), identity(row.get(axis))) for row in both}
        return len(pairs) == len({cell for cell, _ in pairs})

    rest = [axis for axis in values.axes if axis not in named and not is_scaling(axis)]
    return [axis for axis in rest if CASE not in named or not is_settled(axis)]


def _chosen(rows: pd.DataFrame, cells: dict[str, Any]) -> pd.DataFrame:
    for axis, wanted in cells.items():
        if axis not in rows:
            return rows.iloc[:0]
        allowed = wanted if isinstance(wanted, list) else [wanted]
        rows = rows[[any(_is(value, one) for one in allowed) for value in rows[axis]]]
    return rows


def _is(value: Any, wanted: Any) -> bool:
    """A class is known by its name, `Skewed`, as tables show it."""
    return identity(value) == identity(wanted) or (isinstance(wanted, str) and axis_text(value) == wanted)


def _by_cell(rows: pd.DataFrame, axes: Sequence[str]) -> dict[tuple[str, ...], pd.DataFrame]:
    keys = [key_of(row, axes) for row in rows.to_dict("records")]
    return {key: rows[[other == key for other in keys]] for key in dict.fromkeys(keys)}


def _in_words(cells: dict[str, Any]) -> str:
    words = []
    for axis, value in cells.items():
        if axis in ("format", CASE):
            words.append(", ".join(map(str, value)) if isinstance(value, list) else str(value))
        elif axis == "aps":
            words.append("with APS" if value else "without APS")
        else:
            words.append(f"{axis_title(axis)} {axis_text(value)}")
    return ", ".join(words)
