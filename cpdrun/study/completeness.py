"""Find missing runs of a study, and differences that make its runs hard to compare."""

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
from cpdrun.stats.evidence import ordered_seeds
from cpdrun.study.collect import CODE, DATA, SEED, UNREADABLE, finished, sweep_names
from cpdrun.study.formats import bits
from cpdrun.study.group import Group
from cpdrun.study.study import Study

# Runs may differ in these properties of the machine, because they do not change results.
_ANY_MACHINE = ("env:hostname", "env:platform")
# These properties are compared separately, by `cpdrun.record.processors`.
_PROCESSOR = ("env:device", "env:cpu", "env:cpu_vector")
_STATES = (State.RUNNING, State.FAILED, State.PREEMPTED, State.PENDING, UNREADABLE)


@dataclass(frozen=True)
class Progress:
    """The progress of a study's sweeps.

    Attributes:
        done: The number of finished runs.
        total: The number of all runs, including those that have not started.
        others: The numbers of other runs, keyed by state, such as "failed" or "not started".
    """

    done: int
    total: int
    others: dict[str, int]


@dataclass(frozen=True)
class LostWork:
    """Work that was lost when ranks or runs died, and then done again.

    Attributes:
        seconds: The lost time of all runs, in seconds.
        restarts: How often ranks were restarted within an attempt.
        most: The name of the run that lost the most time.
        most_seconds: The time that this run lost, in seconds.
    """

    seconds: float
    restarts: int
    most: str
    most_seconds: float


@dataclass(frozen=True)
class MissingSeeds:
    """A group without a finished run for some seeds of its facet."""

    group: Group
    facet: str
    seeds: list[Any]


@dataclass(frozen=True)
class Completeness:
    """Gaps in a study's results, and differences that make its runs hard to compare.

    Attributes:
        newer: The manifests that a newer version wrote, each with the error.
        progress: How many runs are finished.
        errors: The names of the failed runs, keyed by their error, or by "" if it is unknown.
        lost: The work that was lost and done again. None if there is none.
        unreadable: The names of the runs with unreadable records, each with the reason.
        edited: The names of the runs whose config.yaml does not match the folder's name.
        without_value: The number of finished runs without the metric.
        impossible: The shares below 0 or above 1, keyed by run.
        repeated: The names of runs that repeat a seed with another value.
        bits: The recorded bit widths of formats whose records disagree, keyed by format. None is an unknown width.
        units: The units of the metric if records disagree, otherwise empty.
        without_seed: The number of finished runs that record no seed.
        finished: The number of finished runs.
        missing_seeds: The groups that lack seeds.
        processors: The processors with their numbers of runs if there are several, otherwise empty.
        versions: For each software property that differs, the number of runs of each value.
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
    """Check a study for missing runs and for differences that make its runs hard to compare."""
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
    """Return the modules whose code differs between finished runs, and "data" if data differ.

    Data are compared between runs with the same data settings. Such a difference may explain results instead of the
    formats.
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
    """Read the manifests of the sweeps.

    Returns:
        The readable manifests keyed by sweep, and the path of each newer manifest with the error.
    """
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
    """Return the names of the failed runs keyed by their error, most frequent first."""
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
    """Return the groups that lack a seed of another group of their facet.

    Groups of which all runs failed are left out, because their failures are reported.
    """
    found = []
    for facet in study.facets:
        seeds = {seed for group in facet.groups for seed in group.by_seed}
        for group in facet.groups:
            missing = ordered_seeds(seeds - group.by_seed.keys())
            if missing and (group.n_finished or not group.failed):
                found.append(MissingSeeds(group, facet.label, missing))
    return found


def _processors(study: Study) -> list[tuple[str, int]]:
    """Return each processor with its number of runs, if there are several.

    Vector instructions determine the order of float32 sums in the libraries that torch calls, so results may differ.
    """
    kinds = processors(run for group in study.groups for run in group.runs)
    return [(described(kind), count) for kind, count in kinds.most_common()] if differ(kinds) else []


def _versions(done: pd.DataFrame) -> dict[str, dict[str, int]]:
    """Count the runs of each value of the software properties that differ."""
    found = {}
    for column in done.columns:
        if column.startswith("env:") and column not in (*_ANY_MACHINE, *_PROCESSOR):
            counts = done[column].dropna().map(str).value_counts()
            if len(counts) > 1:
                found[column.removeprefix("env:")] = {str(k): int(n) for k, n in counts.items()}
    return found
