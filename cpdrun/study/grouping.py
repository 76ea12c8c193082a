"""Sort the table of runs into groups, and sort the groups into facets.

The runs of a group differ only in their seed. The groups of a facet are compared with each other.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from cpdrun.config.overrides import INGREDIENTS
from cpdrun.record import RunDir, State
from cpdrun.stats.failures import Failure
from cpdrun.stats.means import mean
from cpdrun.study import choices, formats
from cpdrun.study.axes import APS, BitsAxis, hybrid, is_strategy
from cpdrun.study.collect import CASE, CORE_AXES, FORMAT, SEED, as_rows, identity, other_axes
from cpdrun.study.group import Facet, Group, method_of

# `Group.figures` contains the means of these columns of `collect` over a group's runs, under these keys.
_FIGURES = {
    "wire_bytes": "wire:bytes_per_step_real_worker",
    "train_seconds": "run:train_seconds",
    "model_bytes": "memory:model_bytes",
    "optimizer_bytes": "memory:optimizer_bytes",
    "activation_bytes": "memory:activation_bytes",
    "test_samples": "run:test_samples",
    "num_classes": "run:num_classes",
    "parameters": "run:parameters",
    "neighbours": "run:neighbours",
    "longest_chain": "run:longest_chain",
}


def facet_axes(groups: list[Group], axes: list[str], of: BitsAxis) -> list[str]:
    """Return the config keys that distinguish facets. Groups that differ on them are not compared.

    `format` and `aps` are such keys only in three cases:

    - Both, if another axis of bits than `format` is compared.
    - One of them, if groups of the same named case differ in it.
    - `format`, if the baseline has the same format as its candidates.

    Args:
        groups: The groups of the study.
        axes: The keys that the runs differ in, except format, aps, and world size.
        of: The axis of bits.
    """
    held = [FORMAT, APS] if not of.is_of_gradients else [] if of.has_value else [FORMAT]
    held += [key for key in (FORMAT, APS) if key not in held and not _is_of_cases(groups, key)]
    others = [name for name in axes if not is_strategy(name) or (name == CASE and not of.of_cases)]
    names = ["world_size", *held, *(name for name in others if name != of.key)]
    return [name for name in names if len({identity(group.keys[name]) for group in groups}) > 1]


def _is_of_cases(groups: list[Group], key: str) -> bool:
    """Return True if all groups of the same named case have the same value of `key`."""
    pairs = {(identity(g.case), identity(g.keys[key])) for g in groups if g.case is not None}
    return len(pairs) == len({case for case, _ in pairs})


def make_facets(groups: list[Group], axes: list[str], of: BitsAxis) -> list[Facet]:
    """Sort groups into facets by their values on `axes`, which `facet_axes` returns.

    Facets with different values on an axis share a baseline if the user fixed the baseline's value on it, or if the
    axis is a setting of a recipe's ingredient that the baseline lacks.
    """
    found: dict[tuple[str, ...], Facet] = {}
    of_all = [name for name in axes if name not in (FORMAT, APS)]
    for group in groups:
        is_inside = group.case is None and of.is_of_gradients and of.has_value
        keys = {name: group.keys[name] for name in (of_all if is_inside else axes)}
        found.setdefault(tuple(map(identity, keys.values())), Facet(keys, [])).groups.append(group)
    without = {
        name
        for group in groups
        if group.is_baseline
        for name in axes
        if name.split(".")[0] == INGREDIENTS and pd.isna(group.keys[name])
    }
    crossed = [name for name in axes if name in of.elsewhere or name in without]
    return _lend(list(found.values()), crossed) if crossed else list(found.values())


def _lend(facets: list[Facet], crossed: list[str]) -> list[Facet]:
    """Give each facet without a baseline the baseline of a similar facet.

    The facets may differ only in the axes `crossed`. Facets that contain only a lent baseline are dropped.
    """

    def rest(facet: Facet) -> tuple[str, ...]:
        return tuple(f"{key}={identity(value)}" for key, value in facet.keys.items() if key not in crossed)

    lent = {rest(facet): facet.fp32 for facet in facets if facet.fp32 is not None}
    served = {rest(facet) for facet in facets if facet.has_candidates}
    kept = [facet for facet in facets if facet.has_candidates or rest(facet) not in served]
    kept = [facet if facet.fp32 else replace(facet, lent=lent.get(rest(facet))) for facet in kept]
    same = [key for key in crossed if len({identity(facet.keys.get(key)) for facet in kept}) == 1]
    return [replace(f, keys={key: value for key, value in f.keys.items() if key not in same}) for f in kept]


def make_groups(runs: pd.DataFrame, axes: list[str], metric: str, of: BitsAxis) -> list[Group]:
    """Sort runs into groups. The runs of a group differ only in their seed.

    Args:
        runs: The runs to compare, as `collect` returns them.
        axes: The keys that the runs differ in, except format, aps, and world size.
        metric: The column of the metric.
        of: The axis of bits.

    Returns:
        The groups in the order of the table of results: by the other axes and the world size, then most bits first. Of
        two groups with the same format, the one with APS comes last.
    """
    names = list(dict.fromkeys([*CORE_AXES, *axes, *of.elsewhere]))
    members: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in as_rows(runs):
        members.setdefault(tuple(identity(row[name]) for name in names), []).append(row)
    groups = [_group(rows, names, metric, of) for rows in members.values()]

    def for_reading(group: Group) -> tuple:
        rest = tuple(sortable(group.keys[name]) for name in (*axes, "world_size") if name != of.key)
        return (*rest, *formats.widest_first(group.format), group.aps)

    return sorted(groups, key=for_reading)


def _group(rows: list[dict[str, Any]], names: list[str], metric: str, of: BitsAxis) -> Group:
    # Runs of the same seed count once. They have the same result, unless another program wrote them.
    finished = [row for row in rows if row["run:state"] == State.DONE]
    done = {_seed(row): row for row in finished}
    ended = list(done.values())
    diverged = {
        seed
        for seed, row in done.items()
        if row["run:status"] == "diverged" or metric.removeprefix("metric:") in row["run:not_finite"]
    }
    by_seed = {seed: row[metric] for seed, row in done.items() if math.isfinite(row[metric])}
    failures = {_seed(row): row["run:failure"] for row in rows if row["run:failure"] is not None}
    failures |= dict.fromkeys(done.keys() - by_seed.keys() - diverged, Failure.UNKNOWN)
    case = rows[0].get(CASE)
    return Group(
        keys={name: rows[0][name] for name in names},
        by_seed=by_seed,
        n_finished=len(ended),
        diverged=sum(row["run:status"] == "diverged" for row in ended),
        failed=sum(row["run:state"] == State.FAILED for row in rows),
        hybrid="" if formats.is_baseline(rows[0][FORMAT]) or not of.is_of_gradients else hybrid(rows[0]),
        figures={name: _mean(ended, column) for name, column in _FIGURES.items()},
        run_by_seed={seed: RunDir(Path(row["run:path"])) for seed, row in done.items()},
        diverged_seeds=frozenset(diverged),
        failures={seed: failure for seed, failure in failures.items() if seed not in by_seed},
        lengths={seed: int(row["run:length"]) for seed, row in done.items() if pd.notna(row["run:length"])},
        fingerprints={
            s: row["run:fingerprint"] for s, row in done.items() if isinstance(row["run:fingerprint"], str)
        },
        gave_up_seeds=frozenset(seed for seed, row in done.items() if row["run:status"] == "did not learn"),
        repeated=tuple(
            row["run:name"] for row in finished if _value(row, metric) != _value(done[_seed(row)], metric)
        ),
        axis=of,
        method=method_of(rows[0]),
        rounds=None if not of.of_cases or pd.isna(case) else choices.of_case(str(case), rows[0]),
        products=next((found for row in ended if isinstance(found := row.get("run:products"), dict)), None),
    )


def failed_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the failed runs that count in a comparison.

    A failed run counts if its cell has a finished run. If all runs of a cell failed, those with the state `failed`
    count, so the cell gets a row without a value. Failed runs of a script do not count if their metric patterns differ
    from those of all finished runs, because they were first attempts.
    """
    readable = runs[runs["run:problem"].isna()]
    readable = readable.assign(**{key: readable.get(key) for key in CORE_AXES})
    keys = ["run:sweep", *CORE_AXES, *other_axes(readable)]

    def of(row: dict[str, Any]) -> tuple[str, ...]:
        return tuple(identity(row.get(key)) for key in keys)

    failed = readable[readable["run:failure"].notna()]
    others = {of(row) for row in as_rows(readable[readable["run:failure"].isna()])}
    finished_cells = {of(row) for row in as_rows(readable[readable["run:state"] == State.DONE])}
    patterns = [key for key in readable.columns if key.startswith("script.metric")]

    def read_by(row: dict[str, Any]) -> tuple[str, ...]:
        return tuple(identity(row[key]) for key in patterns)

    done = {read_by(row) for row in as_rows(readable[readable["run:state"] == State.DONE])}
    rows = as_rows(failed)
    counts = [
        of(row) in finished_cells or (row["run:state"] == State.FAILED and of(row) not in others)
        for row in rows
    ]
    is_read_alike = [not done or read_by(row) in done for row in rows]
    return failed[[a and b for a, b in zip(counts, is_read_alike, strict=True)]]


def _value(row: dict[str, Any], metric: str) -> tuple[Any, float | None]:
    """Return a run's status and metric. A metric that is not finite becomes None, because NaN never equals NaN."""
    return row["run:status"], row[metric] if math.isfinite(row[metric]) else None


def _mean(rows: list[dict[str, Any]], name: str) -> float:
    values = [row.get(name, math.nan) for row in rows]
    return mean([value for value in values if math.isfinite(value)])


def _seed(row: dict[str, Any]) -> Any:
    return row["run:name"] if row[SEED] is None else row[SEED]


def sortable(value: Any) -> tuple:
    """Return a sort key of config values: numbers by size, then other values by their text."""
    if isinstance(value, int | float):
        return (0, value, "")
    return (1, 0, identity(value))
