"""From the runs of a sweep, as rows, to groups: the runs that differ in nothing but their seed."""

import math
from pathlib import Path
from typing import Any

import pandas as pd

from cpdrun.record import RunDir, State
from cpdrun.report.read import formats
from cpdrun.report.read.bits_axis import BitsAxis
from cpdrun.report.read.collect import CORE_AXES, FORMAT, SEED, identity, other_axes
from cpdrun.report.read.group import Group
from cpdrun.report.read.words import hybrid, is_strategy
from cpdrun.stats.intervals import mean_interval

# What the records say of a group's runs beside the metric, by the column of `collect`.
_FIGURES = {
    "wire_bytes": "wire:bytes_per_step_real_worker",
    "train_seconds": "run:train_seconds",
    "model_bytes": "memory:model_bytes",
    "optimizer_bytes": "memory:optimizer_bytes",
    "activation_bytes": "memory:activation_bytes",
    "test_samples": "run:test_samples",
    "num_classes": "run:num_classes",
    "longest_chain": "run:longest_chain",
}


def facet_axes(groups: list[Group], axes: list[str], of: BitsAxis) -> list[str]:
    held = [] if of.is_of_gradients else ["aps"]
    names = [name for name in ("world_size", *held, *axes) if not is_strategy(name) and name != of.key]
    return [name for name in names if len({identity(group.keys[name]) for group in groups}) > 1]


def make_groups(runs: pd.DataFrame, axes: list[str], metric: str, of: BitsAxis) -> list[Group]:
    """Sorted for reading: by the other axes and world size, then most bits first, plain before APS."""
    names = [*CORE_AXES, *axes]
    members: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in runs.to_dict("records"):
        members.setdefault(tuple(identity(row[name]) for name in names), []).append(row)
    groups = [_group(rows, names, metric, of) for rows in members.values()]

    def for_reading(group: Group) -> tuple:
        rest = tuple(_sortable(group.keys[name]) for name in (*axes, "world_size") if name != of.key)
        bits, exponent, name = formats.order(group.format)
        return (*rest, -bits, exponent, name, group.aps)

    return sorted(groups, key=for_reading)


def _group(rows: list[dict[str, Any]], names: list[str], metric: str, of: BitsAxis) -> Group:
    # Two runs of one seed differ in nothing that changes the result, unless somebody else wrote them: they count once.
    finished = [row for row in rows if row["run:state"] == State.DONE]
    done = {_seed(row): row for row in finished}
    ended = list(done.values())
    return Group(
        keys={name: rows[0][name] for name in names},
        by_seed={seed: row[metric] for seed, row in done.items() if math.isfinite(row[metric])},
        n_finished=len(ended),
        diverged=sum(row["run:status"] == "diverged" for row in ended),
        failed=sum(row["run:state"] == State.FAILED for row in rows),
        hybrid="" if formats.is_baseline(rows[0][FORMAT]) or not of.is_of_gradients else hybrid(rows[0]),
        figures={name: _mean(ended, column) for name, column in _FIGURES.items()},
        runs=[RunDir(Path(row["run:path"])) for row in ended],
        diverged_seeds=frozenset(seed for seed, row in done.items() if row["run:status"] == "diverged"),
        repeated=tuple(
            row["run:name"] for row in finished if _value(row, metric) != _value(done[_seed(row)], metric)
        ),
        axis=of,
        gave_up=sum(row["run:status"] == "did not learn" for row in ended),
    )


def hopeless(runs: pd.DataFrame) -> pd.DataFrame:
    """Failed runs of which no other seed is done, running or still to come: they get a row without a value."""
    readable = runs[runs["run:problem"].isna()]
    readable = readable.assign(**{key: readable.get(key) for key in CORE_AXES})
    keys = ["run:sweep", *CORE_AXES, *other_axes(readable)]

    def of(row: dict[str, Any]) -> tuple[str, ...]:
        return tuple(identity(row.get(key)) for key in keys)

    failed = readable[readable["run:state"] == State.FAILED]
    others = {of(row) for row in readable[readable["run:state"] != State.FAILED].to_dict("records")}
    return failed[[of(row) not in others for row in failed.to_dict("records")]]


def _value(row: dict[str, Any], metric: str) -> tuple[Any, float | None]:
    """What it measured and how it ended, to be compared."""
    return row["run:status"], row[metric] if math.isfinite(row[metric]) else None


def _mean(rows: list[dict[str, Any]], name: str) -> float:
    values = [row.get(name, math.nan) for row in rows]
    return mean_interval([value for value in values if math.isfinite(value)], 95)[0]


def _seed(row: dict[str, Any]) -> Any:
    return row["run:name"] if row[SEED] is None else row[SEED]


def _sortable(value: Any) -> tuple:
    if isinstance(value, int | float):
        return (0, value, "")
    return (1, 0, identity(value))
