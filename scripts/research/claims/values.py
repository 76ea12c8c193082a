"""The stored values of single runs: results/reference/NAME/values.csv, written by scripts/references.py.

values.csv has one row per finished run. Its columns are the axes (config keys), seed, metric:NAME, wire:NAME,
memory:NAME, diverged (true or false), test_samples and num_classes if known, weights_sha256, and commit (from env.json;
a + at the end means that the code differed from that commit). If some run failed or belongs to a script, there are two
more columns: failure (error or unknown, for a run without a result) and length (epochs, steps or rows of a script's
run). See cpdrun.stats.failures.
"""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from cpdrun.record import RunDir, State, SweepDir, write_text
from cpdrun.stats.failures import Failure
from cpdrun.study import ReportError
from cpdrun.study.collect import CORE_AXES, SEED, collect, finished, other_axes
from cpdrun.study.grouping import failed_runs

VALUES = "values.csv"
MEASURED = ("metric:", "wire:", "memory:")
FAILED = ("failure", "length")  # the columns that may be absent
PROVENANCE = ("diverged", "test_samples", "num_classes", "weights_sha256", "commit")
_SAMPLES = ("run:test_samples", "sync.worker_test_samples", "data.test_samples", "data.test_images")


@dataclass(frozen=True)
class Values:
    """The values of a sweep, with one row per run, and the name of the file from which they were read.

    The columns of `rows` are the axes, seed, those with the prefixes metric:, wire: and memory:, FAILED and PROVENANCE.
    `axes` contains format, aps, world_size, and all other settings that vary, except seed.
    """

    rows: pd.DataFrame
    axes: list[str]
    source: str

    def as_runs(self) -> pd.DataFrame:
        """Return the rows with the columns of `cpdrun.study.collect`, for `make_groups`."""
        failures = [
            Failure(failure) if isinstance(failure, str) else None for failure in self.rows["failure"]
        ]
        diverged, weights = list(self.rows["diverged"]), list(self.rows["weights_sha256"])
        columns: dict[str, Any] = {
            "run:name": [f"row {i + 2}" for i in range(len(self.rows))],
            "run:path": "",
            "run:state": [State.DONE if failure is None else State.FAILED for failure in failures],
            "run:status": ["diverged" if each else "finished" for each in diverged],
            "run:failure": pd.Series(failures, index=self.rows.index, dtype=object),
            "run:length": list(self.rows["length"]),
            "run:not_finite": [()] * len(self.rows),
            "run:fingerprint": [None if d else w for d, w in zip(diverged, weights, strict=True)],
            "run:test_samples": pd.to_numeric(self.rows["test_samples"]),
            "run:num_classes": pd.to_numeric(self.rows["num_classes"]),
        }
        return self.rows.assign(**columns)


def read_runs(sweep: SweepDir) -> Values | None:
    """Return the values of the finished and failed runs of a sweep, or None if no run has finished."""
    runs = collect([sweep])
    done = finished(runs) if not runs.empty else runs
    if done.empty:
        return None
    done = pd.concat([done, failed_runs(runs)]) if len(done) < len(runs) else done
    done = done.assign(**{key: done.get(key) for key in (*CORE_AXES, SEED)})
    axes = [*CORE_AXES, *other_axes(done)]
    columns = [*axes, SEED, *(column for column in done.columns if column.startswith(MEASURED))]
    records = done.to_dict("records")
    found: dict[str, Any] = {
        "failure": [None if failure is None else str(failure) for failure in done["run:failure"]],
        "length": list(done["run:length"]),
        "diverged": [status == "diverged" for status in done["run:status"]],
        "test_samples": [_first(row, _SAMPLES) for row in records],
        "num_classes": [_first(row, ["run:num_classes"]) for row in records],
        "weights_sha256": [_weights(RunDir(Path(path))) for path in done["run:path"]],
        "commit": [_commit(row) for row in records],
    }
    rows = done[columns].assign(**found)
    return Values(rows, axes, str(sweep.path))


def read_values(folder: Path) -> Values | None:
    """Return the values stored in a reference's folder, or None if there are none.

    Raises:
        ReportError: The file is damaged.
    """
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


def read_table(path: Path) -> pd.DataFrame | None:
    """Return a committed table, whose comments begin with #, or None if there is none."""
    return pd.read_csv(path, comment="#") if path.is_file() else None


def write_values(sweeps: Sequence[SweepDir], path: Path) -> None:
    """Write the runs of `sweeps` to `path`, sorted by their axes. Raises ReportError if no run has finished."""
    found = [values for sweep in sweeps if (values := read_runs(sweep)) is not None]
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
    """Return most strings unchanged, and other values as JSON. Strings that look like JSON become JSON, too."""
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


def _first(row: Mapping[Any, Any], names: Sequence[str]) -> int | None:
    """Return the value of the first of these names that the record contains."""
    for name in names:
        value = row.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return int(value)
    return None


def _weights(run: RunDir) -> str | None:
    result = run.result()
    return None if result is None else result.weights_sha256


def _commit(row: Mapping[Any, Any]) -> str | None:
    commit, diff = row.get("env:git_commit"), row.get("env:git_diff")
    if not isinstance(commit, str):
        return None
    return commit if diff in ("none", None) else f"{commit}+"
