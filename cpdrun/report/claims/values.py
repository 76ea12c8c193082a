"""The values of single runs that claims rest on: from run directories, or from a committed values.csv.

values.csv has one row a finished run: the axes by their config keys, seed, metric:NAME, wire:NAME, memory:NAME,
diverged (true or false), test_samples and num_classes where known, weights_sha256, commit (of env.json; a + where the
code was not as committed). Only if a run failed, or is of a script, there are also: failure (error or unknown, of a run
without a result) and length (epochs, steps or rows of a script's run), see cpdrun.stats.failures.
"""

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

import cpdrun
from cpdrun.record import RunDir, SweepDir, read_manifest, write_text
from cpdrun.study.collect import CORE_AXES, SEED, collect, finished, identity, other_axes
from cpdrun.study.errors import ReportError
from cpdrun.study.groups.grouping import failed_runs

VALUES = "values.csv"
MEASURED = ("metric:", "wire:", "memory:")
FAILED = ("failure", "length")  # columns that may be absent
PROVENANCE = ("diverged", "test_samples", "num_classes", "weights_sha256", "commit")
_SAMPLES = ("run:test_samples", "sync.worker_test_samples", "data.test_samples", "data.test_images")


@dataclass(frozen=True)
class Values:
    """One row a finished run, and where they come from."""

    rows: pd.DataFrame  # axes, seed, metric: wire: memory: columns, and PROVENANCE
    axes: list[str]  # format, aps, world_size and whatever else varies, without seed
    source: str  # in words


def references() -> Path | None:
    """The committed references of the checkout that cpdrun runs from; None where it was installed without one."""
    folder = Path(cpdrun.__file__).resolve().parents[1] / "results" / "reference"
    return folder if folder.is_dir() else None


def of_runs(sweep: SweepDir) -> Values | None:
    """Return the finished runs of `sweep`, and those that failed beside them; None if no run is finished."""
    runs = collect([sweep])
    done = finished(runs) if not runs.empty else runs
    if done.empty:
        return None
    done = pd.concat([done, failed_runs(runs)]) if len(done) < len(runs) else done
    done = done.assign(**{key: done.get(key) for key in (*CORE_AXES, SEED)})
    axes = [*CORE_AXES, *other_axes(done)]
    columns = [*axes, SEED, *(column for column in done.columns if column.startswith(MEASURED))]
    rows = done[columns].assign(
        failure=[None if failure is None else str(failure) for failure in done["run:failure"]],
        length=list(done["run:length"]),
        diverged=[status == "diverged" for status in done["run:status"]],
        test_samples=[_first(row, _SAMPLES) for row in done.to_dict("records")],
        num_classes=[_first(row, ["run:num_classes"]) for row in done.to_dict("records")],
        weights_sha256=[_weights(RunDir(Path(path))) for path in done["run:path"]],
        commit=[_commit(row) for row in done.to_dict("records")],
    )
    typed = _typed(sweep)
    return Values(rows, axes, f"{sweep.path}{f' ({typed})' if typed else ''}")


def of_reference(folder: Path) -> Values | None:
    """The committed values of a reference's folder; None where it keeps none. Raises ReportError for a damaged file."""
    path = folder / VALUES
    if not path.is_file():
        return None
    try:
        records = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
        rows = pd.DataFrame(
            [{key: _read(value) for key, value in row.items()} for row in records], dtype=object
        )
        missing = {*CORE_AXES, SEED, *PROVENANCE} - set(rows.columns)
        if missing:
            raise ValueError(f"lacks the columns {', '.join(sorted(missing))}")
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise ReportError(f"{path}: {error}") from None
    for column in rows.columns:
        if column.startswith(MEASURED):
            rows[column] = pd.to_numeric(rows[column], errors="coerce")
    rows = rows.assign(**{column: None for column in FAILED if column not in rows})
    apart = (SEED, *FAILED, *PROVENANCE)
    axes = [c for c in rows.columns if not c.startswith(MEASURED) and c not in apart]
    commits = sorted({str(commit)[:10] for commit in rows["commit"]})
    made = f"commit {commits[0]}" if len(commits) == 1 else f"{len(commits)} commits"
    return Values(rows, axes, f"{folder.name}/{VALUES}, {made}")


def write_values(sweeps: Sequence[SweepDir], path: Path) -> None:
    """Write the finished runs of `sweeps` as `path`, sorted by their axes. Raises ReportError where there is none."""
    found = [values for sweep in sweeps if (values := of_runs(sweep)) is not None]
    if not found:
        raise ReportError(f"no finished run in {', '.join(str(sweep.path) for sweep in sweeps)}")
    rows = pd.concat([values.rows for values in found], ignore_index=True)
    axes = list(dict.fromkeys(axis for values in found for axis in values.axes))
    measured = sorted(column for column in rows.columns if column.startswith(MEASURED))
    header = [*axes, SEED, *measured, *(name for name in FAILED if rows[name].notna().any()), *PROVENANCE]
    lines = sorted([_write(row[column]) for column in header] for row in rows.to_dict("records"))
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *lines])
    write_text(path, text.getvalue())


def _write(value: Any) -> str:
    """A string as it is; anything else, and a string that would be read as something else, as JSON."""
    if isinstance(value, str):
        return value if _read(value) == value else json.dumps(value)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    value = value.item() if hasattr(value, "item") else value
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)


def _read(text: str) -> Any:
    if text == "":
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text


def _typed(sweep: SweepDir) -> str:
    """What was typed beside the experiment's name: it may have changed what its runs are."""
    try:
        words = read_manifest(sweep)["overrides"]
        kept = [word for word in words if not word.startswith(("exp=", "results_dir=", "name="))]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return ""
    return " ".join(kept)


def _first(row: dict[str, Any], names: Sequence[str]) -> int | None:
    """The first of these figures that the record has."""
    for name in names:
        value = row.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return int(value)
    return None


def _weights(run: RunDir) -> str | None:
    result = run.result()
    return result and result.weights_sha256


def _commit(row: dict[str, Any]) -> str | None:
    commit, diff = row.get("env:git_commit"), row.get("env:git_diff")
    if not isinstance(commit, str):
        return None
    return commit if diff in ("none", None) else f"{commit}+"


def key_of(row: dict[str, Any], axes: Sequence[str]) -> tuple[str, ...]:
    """The row's cell, as something to group by."""
    return tuple(identity(row.get(axis)) for axis in axes)
