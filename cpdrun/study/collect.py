"""Read run directories into a DataFrame with one row per run.

Every key of a run's config is a column. Nested keys are joined by dots (`model.depth`). Further columns contain the
rest of the run's record. Their names start with a prefix that no config key has:

    run:sweep, run:name, run:path    The names of the sweep and of the run, and the path of the run directory.
    run:state                        The State of the run, or UNREADABLE.
    run:problem                      A description of why the record cannot be read, or None.
    run:status                       The status from done.json: finished, diverged, or did not learn.
    run:wall_seconds, ...            Further numbers from done.json, float.
    run:judged_by                    The metric by which the task is judged.
    run:measures                     The Measure (direction and unit) of each metric, or None, keyed by metric (a dict).
    run:impossible                   The impossible values of shares of samples, which are below 0 or above 1, keyed by
                                     metric (a dict). The columns of these metrics contain NaN instead.
    run:not_finite                   The names of the metrics that were not finite when the run finished.
    run:edited                       Whether the hash of config.yaml differs from the hash in the folder's name.
    run:lost_seconds, run:restarts   The time of the work that was lost in all attempts and done again, and the number
                                     of restarts within attempts (elastic).
    run:products                     The matrix products of a training step, from done.json, or None.
    run:failure                      The Failure of the run, or None.
    run:length                       The number of epochs, steps, or rows of a script's run, or None.
    run:fingerprint                  A text, or None. Two texts are equal only if the runs are equal bit for bit.
    metric:NAME                      A metric from done.json, float. NaN if it is absent or not a number.
    metric:best_NAME                 The value of the metric by which the task is judged, in the best epoch.
    run:best_epoch                   That epoch.
    wire:NAME, memory:NAME           The numbers in the sections `wire` and `memory` of done.json, float.
    env:NAME                         The entries of env.json. Versions of packages have the package's name.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from cpdrun.config.class_names import as_now
from cpdrun.config.identity import NOT_IDENTITY_OF_SCRIPTS, belongs_to_identity, identity_hash
from cpdrun.config.overrides import INGREDIENTS
from cpdrun.record import (
    RunDir,
    State,
    SweepDir,
    newer,
    read_config,
    read_json,
    read_object,
    state_of,
)
from cpdrun.record.measure import BEST, known_measure
from cpdrun.record.run_end import failure_of, fingerprint_of, length_of
from cpdrun.stats.means import as_float
from cpdrun.study import formats

UNREADABLE = "unreadable"  # run:state has this value if the State cannot be read.
_HASH = re.compile(r"-([0-9a-f]{10})$")
_RECORD = ("run:", "metric:", "wire:", "memory:", "env:")

_FIGURES = ("wall_seconds", "train_seconds", "test_samples", "num_classes", "parameters", "longest_chain")

SEED, SCALING, CASE, FORMAT = "seed", "scaling", "case", "format"
RECIPE = "recipe"
OF_RECIPES = (RECIPE, INGREDIENTS)  # The section `precision` repeats the settings of these.
CORE_AXES = (FORMAT, "aps", "world_size")
AS_FORMAT = "as format"  # This placeholder replaces the value of a key that always equals the format.


def collect(sweeps: Sequence[SweepDir]) -> pd.DataFrame:
    """Return the table of runs, with a row for every run directory.

    Unfinished and unreadable runs have rows, too.
    """
    names = sweep_names(sweeps)
    rows = [_row(name, run) for name, sweep in names.items() for run in sweep.runs()]
    frame = pd.DataFrame(rows, dtype=object)
    for column in frame.columns:
        if column.startswith(("metric:", "wire:", "memory:")) or column.removeprefix("run:") in _FIGURES:
            frame[column] = pd.to_numeric(frame[column], errors="coerce")
    return frame


def sweep_names(sweeps: Sequence[SweepDir]) -> dict[str, SweepDir]:
    """Return the sweeps without duplicates, keyed by name. If several share a name, their paths are the keys."""
    once = {sweep.path.resolve(): sweep for sweep in sweeps}.values()
    names = [sweep.name for sweep in once]
    return {sweep.name if names.count(sweep.name) == 1 else str(sweep.path): sweep for sweep in once}


def as_rows(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows as dicts keyed by column, ten times as fast as pandas' `to_dict`."""
    columns = list(runs.columns)
    return [dict(zip(columns, row, strict=True)) for row in runs.to_numpy(dtype=object).tolist()]


def finished(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the finished runs whose record can be read. Diverged runs are included."""
    return runs[(runs["run:state"] == State.DONE) & runs["run:problem"].isna()]


def count_states(runs: pd.DataFrame) -> str:
    """Return how many runs are in each state, such as `30 done, 2 running, 1 failed`."""
    counts = runs["run:state"].value_counts()
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def why_none(runs: pd.DataFrame) -> str:
    """Return a text that explains why no run is finished and readable."""
    odd = runs[runs["run:problem"].notna()]
    if odd.empty:
        return "nothing to report yet"
    return f"of {len(odd)} the record cannot be read, as of {odd['run:name'].iloc[0]}: {odd['run:problem'].iloc[0]}"


def config_keys(runs: pd.DataFrame) -> list[str]:
    """Return the columns that are config keys."""
    return [column for column in runs.columns if not column.startswith(_RECORD)]


def other_axes(runs: pd.DataFrame) -> list[str]:
    """Return the config keys that differ between runs, without core axes and seed.

    A key is left out if another listed key determines it, such as `model.depth` if only `model._target_` changes it, or
    if it always equals the format, as in `model.errors: ${format}`. A key called seed is also left out if it equals the
    run's seed wherever it is set, as in `topology.seed: ${seed}`. For named cases, the key of the case comes first,
    and all keys that the case determines are left out.
    """
    axes: list[str] = [CASE] if CASE in runs.columns and _varies(runs, CASE) else []
    varying = [
        key
        for key in config_keys(runs)
        if may_be_axis(key)
        and _varies(runs, key)
        and not (runs[key] == runs["format"]).all()
        and not (key.endswith(f".{SEED}") and (runs[key].isna() | (runs[key] == runs[SEED])).all())
    ]
    for key in sorted(varying, key=_as_listed):
        # Settings of the task are also left out if they follow from the data set.
        groups = (key.split(".")[0], *(["data"] if key.startswith("task.") else []))
        groups = (*groups, "compressor") if key.startswith("sync.compressor.") else groups
        groups = (*groups, RECIPE) if key.startswith(f"{INGREDIENTS}.") else groups
        same_group = [axis for axis in axes if axis == CASE or axis.split(".")[0] in groups]
        of_recipe = [axis for axis in axes if axis.split(".")[0] in OF_RECIPES]
        together = key.startswith("precision.") and of_recipe and settles(runs, of_recipe, key)
        if not together and not any(settles(runs, [axis], key) for axis in same_group):
            axes.append(key)
    return axes


def mask_followers(runs: pd.DataFrame) -> pd.DataFrame:
    """Mask keys that follow the format in some sweeps but not in others.

    A key follows the format if it always equals it, as in `model.errors: ${format}`. When sweeps are compared together,
    such a key would become an axis that separates the candidates from their baseline. The placeholder AS_FORMAT
    therefore replaces its values in the sweeps where it follows the format. If the key has a single value in each other
    sweep, all its values are replaced, so that it is no axis.
    """
    by_sweep = dict(list(runs.groupby("run:sweep")))
    masked = {}
    for key in filter(may_be_axis, config_keys(runs)) if len(by_sweep) > 1 else ():
        follow = [
            name
            for name, rows in by_sweep.items()
            if rows[FORMAT].nunique() > 1 and (rows[key] == rows[FORMAT]).all()
        ]
        others = [rows for name, rows in by_sweep.items() if name not in follow]
        if follow and others:
            is_axis = any(_varies(rows, key) for rows in others)
            masked[key] = runs[key].mask(runs["run:sweep"].isin(follow) | (not is_axis), AS_FORMAT)
    return runs.assign(**masked)


def identity(value: Any) -> str:
    """Return a config value as text. Unlike `==`, the text distinguishes 1, 1.0, True, and "1"."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "null"
    return json.dumps(value, default=str)


def may_be_axis(key: str) -> bool:
    """Return True if `other_axes` may list a config key.

    The key must be part of a run's identity, but no core axis or seed.
    """
    return key not in (SEED, *CORE_AXES, INGREDIENTS) and (belongs_to_identity(key) or key == "compressor")


def _as_listed(key: str) -> tuple:
    """Return the sort key of a config key in `other_axes`.

    In each section, the key that selects the config group comes first, then a recipe's ingredients, then `_target_`.
    The accumulator comes last, because it says the least about a run.
    """
    section, last = key.split(".")[0], key.rpartition(".")[2]
    section = "precision" if section in OF_RECIPES else section  # Recipes set the section `precision`.
    return (
        section,
        key not in (section, RECIPE),
        not key.startswith(INGREDIENTS),
        last != "_target_",
        last == "accumulator",
        key,
    )


def _varies(runs: pd.DataFrame, key: str) -> bool:
    if key.split(".")[0] == SCALING:
        runs = runs[runs["aps"].map(bool)]
    return len({identity(value) for value in runs[key]}) > 1


def settles(runs: pd.DataFrame, axes: Sequence[str], key: str) -> bool:
    """Return True if the values of `axes` determine the value of `key` in these runs."""
    known = [tuple(map(identity, values)) for values in zip(*(runs[axis] for axis in axes), strict=True)]
    pairs = {(a, identity(b)) for a, b in zip(known, runs[key], strict=True)}
    return len(pairs) == len({a for a, _ in pairs})


def _row(sweep: str, run: RunDir) -> dict[str, Any]:
    row: dict[str, Any] = {"run:sweep": sweep, "run:name": run.name, "run:path": str(run.path)}
    row["run:state"], row["run:problem"], row["run:edited"] = UNREADABLE, None, False
    row["run:failure"], row["run:length"], row["run:not_finite"] = None, None, ()
    row["run:fingerprint"] = None
    try:
        row["run:state"] = state_of(run)
        config = read_config(run)
        # Without APS, the settings of the scaling rule have no effect.
        row |= as_now(
            {key: value for key, value in _flat(config) if config.get("aps") or key.split(".")[0] != SCALING}
        )
        row[SEED] = _whole(row.get(SEED))
        row["run:edited"] = _is_edited(run, config)
        if isinstance(row.get("format"), str):
            row["format"] = formats.Recorded.of(row["format"], read_object(run.format_facts))
        if row["run:state"] is State.DONE:
            row |= _results(run) | {"run:length": length_of(run, config)}
        else:
            row["run:failure"] = failure_of(run)
        row |= _lost_work(run)
        row |= {f"env:{key}": value for key, value in _environment(read_json(run.env))}
    except (OSError, ValueError, RecursionError) as error:
        what = Path(error.filename).name if isinstance(error, OSError) and error.filename else run.config.name
        row["run:problem"] = f"{what}: {_one_line(error)}"
    return row


def _lost_work(run: RunDir) -> dict[str, float]:
    """Return the columns for lost work and restarts over all attempts, or {} without either."""
    outcomes = [outcome for attempt in run.attempts() if (outcome := attempt.outcome()) is not None]
    lost = sum(outcome.lost_seconds or 0.0 for outcome in outcomes)
    restarts = sum(outcome.restarts or 0 for outcome in outcomes)
    return {"run:lost_seconds": lost, "run:restarts": restarts} if lost or restarts else {}


def _whole(seed: Any) -> Any:
    """Convert a seed of digits to an int. A CSV reader, for example, may have stored seeds as text."""
    return (
        int(seed) if isinstance(seed, str) and seed.isascii() and seed.isdigit() and len(seed) < 20 else seed
    )


def _results(run: RunDir) -> dict[str, Any]:
    """Return the columns that come from done.json."""
    result = run.result()
    if result is None:
        return {"run:problem": f"{run.done.name} {newer(read_json(run.done)) or 'holds no record'}"}
    row: dict[str, Any] = {"run:status": str(result.status), "run:judged_by": result.judge}
    row["run:measures"] = dict(result.measures)
    row |= {f"run:{key}": as_float(getattr(result, key)) for key in _FIGURES}
    row["run:fingerprint"] = fingerprint_of(result)
    row["run:not_finite"] = tuple(name for name, value in result.metrics.items() if value is None)
    row["run:products"] = result.products
    row["run:neighbours"] = as_float((result.topology or {}).get("neighbours"))
    for part, figures in (("metric", result.metrics), ("wire", result.wire), ("memory", result.memory)):
        row |= {f"{part}:{key}": as_float(value) for key, value in figures.items()}
    if (best := result.best) is not None:
        name = BEST + best.metric
        row |= {f"metric:{name}": as_float(best.value), "run:best_epoch": best.epoch}
        row["run:measures"][name] = result.measures.get(best.metric)
    row["run:impossible"] = _impossible(row)
    return row | {f"metric:{name}": math.nan for name in row["run:impossible"]}


def _impossible(row: dict[str, Any]) -> dict[str, float]:
    """Return the shares of samples that are below 0 or above 1, keyed by metric.

    Most of them were recorded as percentages, so they would count a hundred times too much in a mean.
    """
    found = {}
    for key, value in row.items():
        name = key.removeprefix("metric:")
        measure = row["run:measures"].get(name) or known_measure(name)
        if name != key and measure is not None and measure.of_samples and not measure.can_be(value):
            found[name] = value
    return found


def _is_edited(run: RunDir, config: dict[str, Any]) -> bool:
    """Return True if a run's config does not match the hash in the folder's name."""
    digest = _HASH.search(run.name)
    try:
        return digest is not None and digest[1] != identity_hash(config)
    except (KeyError, TypeError):  # The config lacks keys that every config has.
        return digest is not None


def _flat(config: dict[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        name = f"{prefix}{key}"
        if name.startswith(_RECORD):  # Only a config that cpdrun did not write has such a key.
            continue
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{name}.")
        else:
            yield name, json.dumps(value, default=str) if isinstance(value, list | dict) else value


# These entries of env.json get no column: other columns contain digests of what they describe, or nobody compares them.
_DETAILS = ("code_sha256", "data_path", "data_folders", "products", "attached")
# CODE and a module's name give the column with the module's digest. DATA is the column with the digest of the data.
CODE, DATA = ("env:code:", "env:data_sha256")


def _environment(env: Any) -> Iterator[tuple[str, Any]]:
    for key, value in _items(env):
        if key in _DETAILS:
            continue
        if key == "code":
            yield from (
                (f"code:{name}", entry.get("sha256")) for name, entry in _items(value) if _items(entry)
            )
        elif isinstance(value, dict):  # This entry contains the versions of packages.
            yield from ((str(name), version) for name, version in value.items())
        else:
            yield key, value if isinstance(value, str | int | float | None) else json.dumps(value)


def _items(value: Any) -> Iterable[tuple[str, Any]]:
    return value.items() if isinstance(value, dict) else ()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


SCRIPT_PATH, SCRIPT_ARGS = "script.path", "script.args."


@dataclass(frozen=True)
class IgnoredSetting:
    """An argument of a script, or the seed, whose values all gave the same metrics.

    Attributes:
        key: The config key of the setting.
        values: The values that gave the same metrics, as text.
    """

    key: str
    values: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.key.removeprefix(SCRIPT_ARGS)


def ignored(runs: pd.DataFrame) -> list[IgnoredSetting]:
    """Return the arguments of scripts that have no effect on any metric, and the seed if it has none.

    A setting has no effect if runs that differ only in it always log the same metrics.
    """
    done = finished(runs)
    if SCRIPT_PATH not in done.columns:
        return []
    done = done[done[SCRIPT_PATH].notna()]
    keys = [
        key
        for key in config_keys(done)
        if not key.startswith("_") and key.split(".")[0] not in NOT_IDENTITY_OF_SCRIPTS
    ]
    metrics = [column for column in done.columns if column.startswith("metric:")]
    if done.empty or not metrics:
        return []
    rows = [
        ({key: identity(row[key]) for key in keys}, tuple(identity(row[name]) for name in metrics))
        for row in as_rows(done)
    ]
    asked = [key for key in keys if key == SEED or key.startswith(SCRIPT_ARGS)]
    return [setting for key in asked if (setting := _ignored_setting(key, rows)) is not None]


def _ignored_setting(
    key: str, rows: Sequence[tuple[dict[str, str], tuple[str, ...]]]
) -> IgnoredSetting | None:
    """Return the setting `key` if it had no effect on any metric, otherwise None.

    Only runs that differ in nothing but `key` are compared. If there are none, return None.
    """
    cells: dict[tuple[str, ...], dict[str, tuple[str, ...]]] = {}
    for config, measured in rows:
        rest = tuple(value for other, value in config.items() if other != key)
        cells.setdefault(rest, {})[config[key]] = measured
    compared = [found for found in cells.values() if len(found) > 1]
    if not compared or any(len(set(found.values())) > 1 for found in compared):
        return None
    return IgnoredSetting(key, tuple(sorted({value for found in compared for value in found})))
