"""Which runs are missing from the numbers of a study, and why its runs may not be comparable."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from cpdrun.record import (
    NewerRecordError,
    RunDir,
    State,
    SweepDir,
    described,
    differ,
    processors,
    read_manifest,
)
from cpdrun.study.collect import CODE, DATA, SEED, UNREADABLE, finished, sweep_names
from cpdrun.study.formats import bits
from cpdrun.study.group import Group
from cpdrun.study.study import Study

# These properties of a machine do not change results.
_ANY_MACHINE = ("env:hostname", "env:platform")
# These properties are compared by `cpdrun.record.processors`.
_PROCESSOR = ("env:device", "env:cpu", "env:cpu_vector")
_STATES = (State.RUNNING, State.FAILED, State.PREEMPTED, State.PENDING, UNREADABLE)


@dataclass(frozen=True)
class Progress:
    """How many runs are finished.

    Attributes:
        done: The number of finished runs.
        total: The number of all runs, including those that have not started.
        others: The number of other runs by state, such as "failed" or "not started".
    """

    done: int
    total: int
    others: dict[str, int]


@dataclass(frozen=True)
class LostWork:
    """The work that was lost when ranks or runs died, and was done again.

    Attributes:
        seconds: The seconds of all runs together.
        restarts: How often ranks were started again at once.
        most: The name of the run that lost the most.
        most_seconds: The seconds that this run lost.
    """

    seconds: float
    restarts: int
    most: str
    most_seconds: float


@dataclass(frozen=True)
class MissingSeeds:
    """A group without a run of some seeds that another group of its facet has."""

    group: Group
    facet: str
    seeds: list[Any]


@dataclass(frozen=True)
class Completeness:
    """What is missing from the numbers of a study, or makes its runs hard to compare.

    Attributes:
        newer: The manifests that were written by a newer version, with the reason why they cannot be read.
        progress: How many runs are finished.
        errors: The names of the failed runs by the error with which they ended; "" if the error is not known.
        lost: The work that was lost and done again. None if there is none.
        unreadable: The runs whose record cannot be read, with the reason.
        edited: The runs whose config.yaml does not match the name of their folder.
        without_value: The number of finished runs that have no value of the metric.
        impossible: The values outside of 0 to 1 that a share has, by run.
        repeated: The runs with the same settings and seed as another run, but another value.
        bits: The bit widths of each format on which records do not agree. None for an unknown one.
        units: The units of the metric, if records do not agree.
        without_seed: The number of finished runs that record no seed.
        finished: The number of finished runs.
        missing_seeds: The groups that lack seeds.
        processors: The number of runs by processor, if runs used different ones.
        versions: The number of runs by value of each property of the software that differs.
    """

    newer: list[tuple[str, str]]
    progress: Progress
    errors: dict[str, list[str]]
    lost: LostWork | None
    unreadable: list[tuple[str, str]]
    edited: list[str]
    without_value: int
    impossible: dict[str, float]
    repeated: list[str]
    bits: dict[str, list[float | None]]
    units: list[str]
    without_seed: int
    finished: int
    missing_seeds: list[MissingSeeds] = field(default_factory=list)
    processors: list[tuple[str, int]] = field(default_factory=list)
    versions: dict[str, dict[str, int]] = field(default_factory=dict)


def completeness(study: Study, sweeps: Sequence[SweepDir]) -> Completeness:
    """Return what is missing from the numbers of a study, and why its runs may not be comparable."""
    runs, done, name = study.runs, finished(study.runs), study.metric.name
    manifests, newer = _manifests(sweeps)
    bad = runs[runs["run:problem"].notna()]
    rows = done.to_dict("records")
    units = {measures[name].shown for measures in done["run:measures"] if measures.get(name)}
    without_seed = int(done[SEED].isna().sum()) if SEED in done.columns else len(done)
    return Completeness(
        newer=newer,
        progress=_progress(runs, manifests),
        errors=_errors(runs),
        lost=_lost_work(done),
        unreadable=list(zip(bad["run:name"], bad["run:problem"], strict=True)),
        edited=runs.loc[runs["run:edited"] & runs["run:problem"].isna(), "run:name"].tolist(),
        without_value=sum(group.n_finished - len(group.values) for group in study.groups),
        impossible={r["run:name"]: r["run:impossible"][name] for r in rows if name in r["run:impossible"]},
        repeated=[run for group in study.groups for run in group.repeated],
        bits=_other_bits(done),
        units=sorted(units) if len(units) > 1 else [],
        without_seed=without_seed,
        finished=len(done),
        missing_seeds=[] if without_seed else _missing_seeds(study),
        processors=_processors(study),
        versions=_versions(done),
    )


def mixed_code(study: Study) -> list[str]:
    """Return the code that differs between the finished runs, and "data" if the same data settings gave other data.

    A difference between such runs need not come from their formats.
    """
    done = finished(study.runs)
    mixed = [c.removeprefix(CODE) for c in done.columns if c.startswith(CODE) and done[c].nunique() > 1]
    settings = [c for c in done.columns if c.startswith("data.") and not c.endswith("_dir")]
    if DATA not in done.columns:
        return mixed
    same_settings = done["run:state"]
    if settings:
        same_settings = done[settings].apply(lambda row: " ".join(map(str, row)), axis=1)
    is_mixed = (done.groupby(same_settings)[DATA].nunique() > 1).any()
    return [*mixed, "data"] if is_mixed else mixed


def _manifests(sweeps: Sequence[SweepDir]) -> tuple[dict[str, dict[str, Any]], list[tuple[str, str]]]:
    """Return the manifests that can be read, by the name of the sweep, and those of a newer version."""
    found, newer = {}, []
    for name, sweep in sweep_names(sweeps).items():
        try:
            manifest = read_manifest(sweep)
        except NewerRecordError as error:
            newer.append((str(sweep.manifest), str(error)))
        except (OSError, ValueError):
            continue
        else:
            found[name] = manifest if isinstance(manifest, dict) else {}
    return found, newer


def _progress(runs: pd.DataFrame, manifests: dict[str, dict[str, Any]]) -> Progress:
    counts, absent = runs["run:state"].value_counts(), 0
    for name, manifest in manifests.items():
        planned = manifest.get("runs")
        if isinstance(planned, list):
            here = set(runs.loc[runs["run:sweep"] == name, "run:name"])
            absent += len({str(each) for each in planned} - here)
    others = {str(state): int(counts[state]) for state in _STATES if counts.get(state, 0)}
    others |= {"not started": absent} if absent else {}
    return Progress(int(counts.get(State.DONE, 0)), len(runs) + absent, others)


def _errors(runs: pd.DataFrame) -> dict[str, list[str]]:
    """Return the names of the failed runs by the error with which they ended, the most frequent error first."""
    found: dict[str, list[str]] = {}
    failed = runs[runs["run:state"] == State.FAILED]
    for name, path in zip(failed["run:name"], failed["run:path"], strict=True):
        try:
            last = RunDir(Path(path)).last_attempt()
            outcome = None if last is None else last.outcome()
        except (OSError, ValueError):
            outcome = None
        found.setdefault("" if outcome is None else outcome.reason, []).append(name)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def _lost_work(done: pd.DataFrame) -> LostWork | None:
    if "run:lost_seconds" not in done.columns:
        return None
    lost = done[done["run:lost_seconds"].notna()]
    if lost.empty:
        return None
    most = max(lost.to_dict("records"), key=lambda row: row["run:lost_seconds"])
    seconds, restarts = float(lost["run:lost_seconds"].sum()), int(lost["run:restarts"].sum())
    return LostWork(seconds, restarts, most["run:name"], float(most["run:lost_seconds"]))


def _other_bits(done: pd.DataFrame) -> dict[str, list[float | None]]:
    found: dict[str, set[float | None]] = {}
    for name in done["format"]:
        found.setdefault(str(name), set()).add(bits(name))
    return {name: sorted(sizes, key=str) for name, sizes in found.items() if len(sizes) > 1}


def _missing_seeds(study: Study) -> list[MissingSeeds]:
    """Return the groups that lack a seed that another group of their facet has.

    A group all of whose runs failed is left out, because its runs are among the failed ones.
    """
    found = []
    for facet in study.facets:
        seeds = {seed for group in facet.groups for seed in group.by_seed}
        for group in facet.groups:
            missing = sorted(seeds - group.by_seed.keys(), key=_seed_order)
            if missing and (group.n_finished or not group.failed):
                found.append(MissingSeeds(group, facet.label, missing))
    return found


def _seed_order(seed: Any) -> tuple[bool, int, str]:
    """Return a sort key: whole numbers in their order, then all other seeds as text."""
    return (False, seed, "") if isinstance(seed, int) else (True, 0, str(seed))


def _processors(study: Study) -> list[tuple[str, int]]:
    """Return the number of runs by processor, if the processors differ.

    The vector instructions of a processor determine the order of float32 sums in the libraries that torch calls.
    """
    kinds = processors(run for group in study.groups for run in group.runs)
    return [(described(kind), count) for kind, count in kinds.most_common()] if differ(kinds) else []


def _versions(done: pd.DataFrame) -> dict[str, dict[str, int]]:
    """Return the properties of the software that differ between runs.

    Different software can give different results, and the configs of the runs do not show it.
    """
    found = {}
    for column in done.columns:
        if column.startswith("env:") and column not in (*_ANY_MACHINE, *_PROCESSOR):
            counts = done[column].dropna().map(str).value_counts()
            if len(counts) > 1:
                found[column.removeprefix("env:")] = {str(k): int(n) for k, n in counts.items()}
    return found
