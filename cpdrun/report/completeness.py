"""Describe which runs are missing from a report's numbers and why its runs may not be comparable."""

from collections.abc import Sequence

import pandas as pd
from custom_fp.formats.synonyms import naming_notes

from cpdrun.record import NewerRecordError, State, SweepDir, described, differ, processors, read_manifest
from cpdrun.report.render import join_first
from cpdrun.report.study_text import ignored_texts, question_notes
from cpdrun.study.collect import SEED, UNREADABLE, finished, ignored, sweep_names
from cpdrun.study.formats import bits
from cpdrun.study.study import Study

# The largest number of unreadable runs that get their own line.
_MOST_NAMED = 12
# These properties of a machine do not change results.
_ANY_MACHINE = ("env:hostname", "env:platform")
# These properties are described by `_mixed_processors`.
_PROCESSOR = ("env:device", "env:cpu", "env:cpu_vector")


def notes(study: Study, sweeps: Sequence[SweepDir]) -> list[str]:
    """Return what the reader must know about the question and the runs, one fact a line."""
    return [
        *question_notes(study),
        *naming_notes(study.runs.to_numpy().flat),
        *_newer(sweeps),
        *_unfinished(study.runs, _planned_absent(study.runs, sweeps)),
        *_lost_work(study.runs),
        *_unreadable(study.runs),
        *_edited(study.runs),
        *_without_value(study),
        *_repeated(study),
        *_other_bits(study),
        *_other_units(study),
        *_uneven_seeds(study),
        *ignored_texts(ignored(study.runs)),
        *_mixed_processors(study),
        *_mixed_versions(study),
    ]


def _newer(sweeps: Sequence[SweepDir]) -> list[str]:
    """Return a line for each sweep whose manifest was written by a newer version and cannot be read."""
    lines = []
    for sweep in sweep_names(sweeps).values():
        try:
            read_manifest(sweep)
        except NewerRecordError as error:
            lines.append(
                f"{sweep.manifest} {error}; what was asked there, and which runs were to come, is left out"
            )
        except (OSError, ValueError):
            continue
    return lines


def _unfinished(runs: pd.DataFrame, absent: int) -> list[str]:
    counts = runs["run:state"].value_counts()
    done = int(counts.get(State.DONE, 0))
    if done == len(runs) and not absent:
        return []
    states = {
        State.RUNNING: "running",
        State.FAILED: "failed",
        State.PREEMPTED: "preempted",
        State.PENDING: "pending",
        UNREADABLE: "unreadable",
    }
    parts = [f"{counts[state]} {word}" for state, word in states.items() if counts.get(state, 0)]
    parts += [f"{absent} not started"] if absent else []
    total = len(runs) + absent
    lines = [f"{done} of {total} runs are finished ({', '.join(parts)}); the rest is not in the numbers"]
    failed = runs.loc[runs["run:state"] == State.FAILED, "run:name"].tolist()
    if failed:
        lines.append(f"failed: {join_first(failed)}; `cpdrun logs RUN` says why")
    return lines


def _lost_work(runs: pd.DataFrame) -> list[str]:
    """Return how much work was lost and repeated, which costs time but changes no number."""
    if "run:lost_seconds" not in runs.columns:
        return []
    lost = finished(runs)
    lost = lost[lost["run:lost_seconds"].notna()]
    if lost.empty:
        return []
    most, restarts = lost.loc[lost["run:lost_seconds"].idxmax()], int(lost["run:restarts"].sum())
    within = f", {restarts} times by ranks that started again at once" if restarts else ""
    return [
        f"{lost['run:lost_seconds'].sum():.1f} s of work were lost with ranks and runs that died, and done again"
        f"{within}; the most by {most['run:name']}, {most['run:lost_seconds']:.1f} s. It changes no number"
    ]


def _planned_absent(runs: pd.DataFrame, sweeps: Sequence[SweepDir]) -> int:
    """Return how many runs the manifests list that have no directory yet."""
    absent = 0
    for name, sweep in sweep_names(sweeps).items():
        try:
            manifest = read_manifest(sweep)
        except (OSError, ValueError):
            continue
        planned = manifest.get("runs") if isinstance(manifest, dict) else None
        if isinstance(planned, list):
            here = set(runs.loc[runs["run:sweep"] == name, "run:name"])
            absent += len({str(name) for name in planned} - here)
    return absent


def _unreadable(runs: pd.DataFrame) -> list[str]:
    bad = runs[runs["run:problem"].notna()].to_dict("records")
    lines = [
        f"left out, its record cannot be read: {row['run:name']} ({row['run:problem']})"
        for row in bad[:_MOST_NAMED]
    ]
    return [*lines, f"left out likewise: {len(bad) - _MOST_NAMED} more"] if len(bad) > _MOST_NAMED else lines


def _edited(runs: pd.DataFrame) -> list[str]:
    """Return a line about runs whose config.yaml does not match the name of their folder."""
    names = runs.loc[runs["run:edited"] & runs["run:problem"].isna(), "run:name"].tolist()
    if not names:
        return []
    return [
        f"config.yaml is not the one that the folder's name was made of (edited since?): {join_first(names)}"
    ]


def _without_value(study: Study) -> list[str]:
    count = sum(group.n_finished - len(group.values) for group in study.groups)
    if not count:
        return []
    have = "runs have" if count > 1 else "run has"
    name, done = study.metric.name, finished(study.runs).to_dict("records")
    odd = {row["run:name"]: row["run:impossible"][name] for row in done if name in row["run:impossible"]}
    why = f" ({join_first([f'{v:g} in {run}' for run, v in odd.items()], most=3)}: a share from 0 to 1 is wanted)"
    return [f"{count} finished {have} no {name} and cannot be in a mean{why if odd else ''}"]


def _repeated(study: Study) -> list[str]:
    """Return a line about runs that have the same settings and seed as another run, but another value."""
    names = [name for group in study.groups for name in group.repeated]
    if not names:
        return []
    are = "runs are" if len(names) > 1 else "run is"
    what = "another of the same settings and seed has another value, and the last by name counts"
    return [f"{len(names)} finished {are} in no mean, for {what}: {join_first(names)}"]


def _other_bits(study: Study) -> list[str]:
    """Return a line about formats whose bit widths differ between records."""
    said: dict[str, set] = {}
    for name in finished(study.runs)["format"]:
        said.setdefault(str(name), set()).add(bits(name))
    odd = {name: sizes for name, sizes in said.items() if len(sizes) > 1}
    shown = [
        f"{name} {', '.join(sorted('unknown' if size is None else f'{size:g}' for size in sizes))}"
        for name, sizes in odd.items()
    ]
    return [f"the records do not agree on the bits of a format: {join_first(shown, '; ')}"] if odd else []


def _other_units(study: Study) -> list[str]:
    name = study.metric.name
    units = {one[name].shown for one in finished(study.runs)["run:measures"] if one.get(name)}
    if len(units) < 2:
        return []
    return [
        f"the records do not agree on the unit of {name} ({', '.join(sorted(units))}): "
        f"shown as {study.metric.measure.shown}"
    ]


def _uneven_seeds(study: Study) -> list[str]:
    """Return which groups lack a seed that another group has, or how many runs record no seed."""
    done, lines = finished(study.runs), []
    if unnamed := int(done[SEED].isna().sum()) if SEED in done.columns else len(done):
        return [
            f"{unnamed} of {len(done)} finished runs record no seed: each counts as one of its own, in no pair"
        ]
    seeds = {seed for group in study.groups for seed in group.by_seed}
    for group in study.groups:
        if group.failed and not group.n_finished:  # `_unfinished` lists these runs.
            continue
        missing = sorted(seeds - group.by_seed.keys(), key=str)
        if missing:
            where = f"{group.name} {group.strategy}"
            lines.append(
                f"{where} lacks seed{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
            )
    return [] if not lines else [f"not every mean is over the same seeds: {join_first(lines, '; ')}"]


def _mixed_processors(study: Study) -> list[str]:
    """Return a line if runs used different processors.

    The vector instructions of a processor determine the order of float32 sums in the libraries that torch calls.
    """
    kinds = processors(run for group in study.groups for run in group.runs)
    if not differ(kinds):
        return []
    shares = join_first(
        [f"{count} on {described(kind)}" for kind, count in kinds.most_common()], "; ", most=3
    )
    return [f"runs are of more than one processor ({shares}): equal settings need not give equal bits there"]


def _mixed_versions(study: Study) -> list[str]:
    """Return a line if runs used different software.

    Different software can give different results, and the configs of the runs do not show it.
    """
    done = finished(study.runs)
    mixed = []
    for column in (c for c in done.columns if c.startswith("env:") and c not in (*_ANY_MACHINE, *_PROCESSOR)):
        counts = done[column].dropna().map(str).value_counts()
        if len(counts) > 1:
            values = join_first([f"{value} ({count} runs)" for value, count in counts.items()], most=3)
            mixed.append(f"{column.removeprefix('env:')} {values}")
    return [f"the finished runs were made with different versions: {'; '.join(mixed)}"] if mixed else []
