"""Run directories -> a DataFrame with one row a run.

Columns: every key of the run's config, nested ones joined by dots (`model.depth`), under its own name. What
the record adds carries a prefix that no config key has:
  run:sweep run:name run:state run:problem   where it lies, its State, what is wrong with its record (or None)
  run:judged_by run:measures                 the metric that its task is judged by; what each is (Measure or None)
  run:impossible                             {metric: value} of shares of samples beyond 0 to 1, which are left out
  run:edited                                 whether config.yaml is not what the folder's name has the hash of
  run:lost_seconds run:restarts              work that all its attempts had to do again; restarts within them (elastic)
  run:products                               done.json's products: what a step multiplies, or None
  run:failure run:length                     why it failed (a Failure or None); epochs, steps or rows of a script's run
  run:fingerprint                            equal only for runs that are equal bit for bit (or None)
  run:not_finite                             names of metrics that were not finite in a run that finished
  run:status run:wall_seconds ...            done.json (status: finished, diverged, did not learn)
  metric:NAME                                done.json's metrics, float, NaN where absent or not a number; also
  metric:best_NAME run:best_epoch            what its task is judged by, in the epoch that had the best of it
  wire:NAME memory:NAME                      done.json's wire and memory, float
  env:NAME                                   env.json, the packages' versions under their own names
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from cpdrun.config.identity import belongs_to_identity, identity_hash
from cpdrun.config.keys import INGREDIENTS
from cpdrun.config.moved import as_now
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
from cpdrun.study.axes import formats

UNREADABLE = "unreadable"  # in place of a State
_HASH = re.compile(r"-([0-9a-f]{10})$")
_RECORD = ("run:", "metric:", "wire:", "memory:", "env:")

_FIGURES = ("wall_seconds", "train_seconds", "test_samples", "num_classes", "parameters", "longest_chain")

SEED, SCALING, CASE, FORMAT = "seed", "scaling", "case", "format"
RECIPE = "recipe"
OF_RECIPES = (RECIPE, INGREDIENTS)  # what they say stands in precision too
CORE_AXES = (FORMAT, "aps", "world_size")


def collect(sweeps: Sequence[SweepDir]) -> pd.DataFrame:
    """One row for every run directory of `sweeps`, finished or not, readable or not."""
    names = sweep_names(sweeps)
    rows = [_row(name, run) for name, sweep in names.items() for run in sweep.runs()]
    frame = pd.DataFrame(rows, dtype=object)
    for column in frame.columns:
        if column.startswith(("metric:", "wire:", "memory:")) or column.removeprefix("run:") in _FIGURES:
            frame[column] = pd.to_numeric(frame[column], errors="coerce")
    return frame


def sweep_names(sweeps: Sequence[SweepDir]) -> dict[str, SweepDir]:
    """Each sweep once, by its name, or by its path where two have the same name."""
    once = {sweep.path.resolve(): sweep for sweep in sweeps}.values()
    names = [sweep.name for sweep in once]
    return {sweep.name if names.count(sweep.name) == 1 else str(sweep.path): sweep for sweep in once}


def finished(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs that ended, diverged ones too, and whose record can be read."""
    return runs[(runs["run:state"] == State.DONE) & runs["run:problem"].isna()]


def count_states(runs: pd.DataFrame) -> str:
    """`30 done, 2 running, 1 failed`."""
    counts = runs["run:state"].value_counts()
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def why_none(runs: pd.DataFrame) -> str:
    """Of runs none of which is finished and readable, in words."""
    odd = runs[runs["run:problem"].notna()]
    if odd.empty:
        return "nothing to report yet"
    return f"of {len(odd)} the record cannot be read, as of {odd['run:name'].iloc[0]}: {odd['run:problem'].iloc[0]}"


def config_keys(runs: pd.DataFrame) -> list[str]:
    return [column for column in runs.columns if not column.startswith(_RECORD)]


def other_axes(runs: pd.DataFrame) -> list[str]:
    """Config keys that differ between runs, beyond format, APS, world size, seed and display keys.

    Choosing another class brings other keys with it (`model._target_`, then `model.depth`): a key that is
    settled by one already listed of the same group adds nothing and is left out; so does one that follows the format
    (`model.errors: ${format}`). Where runs are named cases, the name comes first and stands for what it settles.
    """
    axes: list[str] = [CASE] if CASE in runs.columns and _varies(runs, CASE) else []
    varying = [
        key
        for key in config_keys(runs)
        if may_be_axis(key) and _varies(runs, key) and not (runs[key] == runs["format"]).all()
    ]
    for key in sorted(varying, key=_as_listed):
        groups = (key.split(".")[0], *(["data"] if key.startswith("task.") else []))  # data choose their task
        groups = (*groups, "compressor") if key.startswith("sync.compressor.") else groups
        groups = (*groups, RECIPE) if key.startswith(f"{INGREDIENTS}.") else groups
        same_group = [axis for axis in axes if axis == CASE or axis.split(".")[0] in groups]
        of_recipe = [axis for axis in axes if axis.split(".")[0] in OF_RECIPES]
        together = key.startswith("precision.") and of_recipe and settles(runs, of_recipe, key)
        if not together and not any(settles(runs, [axis], key) for axis in same_group):
            axes.append(key)
    return axes


def identity(value: Any) -> str:
    """A config value as text that tells 1, 1.0, True and "1" apart, which `==` and hashing do not."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "null"
    return json.dumps(value, default=str)


def may_be_axis(key: str) -> bool:
    return key not in (SEED, *CORE_AXES, INGREDIENTS) and (belongs_to_identity(key) or key == "compressor")


def _as_listed(key: str) -> tuple:
    """To sort by: in each section first the choice of a group, where it has a column (`choices.with_choices`), then its
    class, last what says least of it: the format of sums."""
    section, last = key.split(".")[0], key.rpartition(".")[2]
    section = "precision" if section in OF_RECIPES else section  # they say what is in there
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
    """Whether knowing `axes` is knowing `key`."""
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
        row |= as_now({key: value for key, value in _flat(config) if _is_used(key, config)})
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
    """{} where nothing was lost."""
    outcomes = [outcome for attempt in run.attempts() if (outcome := attempt.outcome()) is not None]
    lost = sum(outcome.lost_seconds or 0.0 for outcome in outcomes)
    restarts = sum(outcome.restarts or 0 for outcome in outcomes)
    return {"run:lost_seconds": lost, "run:restarts": restarts} if lost or restarts else {}


def _whole(seed: Any) -> Any:
    """A seed of digits is the number, as a csv's reader may have written it down: they pair."""
    return (
        int(seed) if isinstance(seed, str) and seed.isascii() and seed.isdigit() and len(seed) < 20 else seed
    )


def _results(run: RunDir) -> dict[str, Any]:
    """What done.json says."""
    result = run.result()
    if result is None:
        return {"run:problem": f"{run.done.name} {newer(read_json(run.done)) or 'holds no record'}"}
    row: dict[str, Any] = {"run:status": str(result.status), "run:judged_by": result.judge}
    row["run:measures"] = dict(result.measures)
    row |= {f"run:{key}": _number(getattr(result, key)) for key in _FIGURES}
    row["run:fingerprint"] = fingerprint_of(result)
    row["run:not_finite"] = tuple(name for name, value in result.metrics.items() if value is None)
    row["run:products"] = result.products
    row["run:neighbours"] = _number((result.topology or {}).get("neighbours"))
    for part, figures in (("metric", result.metrics), ("wire", result.wire), ("memory", result.memory)):
        row |= {f"{part}:{key}": _number(value) for key, value in figures.items()}
    if (best := result.best) is not None:
        name = BEST + best.metric
        row |= {f"metric:{name}": _number(best.value), "run:best_epoch": best.epoch}
        row["run:measures"][name] = result.measures.get(best.metric)
    row["run:impossible"] = _impossible(row)
    return row | {f"metric:{name}": math.nan for name in row["run:impossible"]}


def _impossible(row: dict[str, Any]) -> dict[str, float]:
    """Per cent, as a rule, in place of a share: in a mean it would be a hundred times too much."""
    found = {}
    for key, value in row.items():
        name = key.removeprefix("metric:")
        measure = row["run:measures"].get(name) or known_measure(name)
        if name != key and measure is not None and measure.of_samples and not measure.can_be(value):
            found[name] = value
    return found


def _is_edited(run: RunDir, config: dict[str, Any]) -> bool:
    """Whether the configuration is not the one that the folder's name has the hash of."""
    digest = _HASH.search(run.name)
    try:
        return digest is not None and digest[1] != identity_hash(config)
    except (KeyError, TypeError):  # not even the keys that every configuration has
        return digest is not None


def _is_used(key: str, config: dict[Any, Any]) -> bool:
    """How gradients would be scaled says nothing about a run that does not scale them."""
    return bool(config.get("aps")) or key.split(".")[0] != SCALING


def _flat(config: dict[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        name = f"{prefix}{key}"
        if name.startswith(_RECORD):  # a stranger's key in the place of what the record says
            continue
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{name}.")
        else:
            yield name, json.dumps(value, default=str) if isinstance(value, list | dict) else value


# what it spells out is told apart by digests, or need not be
_DETAILS = ("code_sha256", "data_path", "data_folders", "products", "attached")
CODE, DATA = (
    "env:code:",
    "env:data_sha256",
)  # columns: the digest of each module by its name; that of the data


def _environment(env: Any) -> Iterator[tuple[str, Any]]:
    for key, value in _items(env):
        if key in _DETAILS:
            continue
        if key == "code":
            yield from (
                (f"code:{name}", entry.get("sha256")) for name, entry in _items(value) if _items(entry)
            )
        elif isinstance(value, dict):  # the packages' versions
            yield from ((str(name), version) for name, version in value.items())
        else:
            yield key, value if isinstance(value, str | int | float | None) else json.dumps(value)


def _items(value: Any) -> Iterable[tuple[str, Any]]:
    return value.items() if isinstance(value, dict) else ()


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
