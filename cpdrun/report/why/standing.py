"""How one run stands against its baseline: that of the same seed in its sweep, or else the mean of those there are."""

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from cpdrun.record import RunDir, State
from cpdrun.report.why.knobs import is_of_sums
from cpdrun.study.collect import SEED, identity
from cpdrun.study.groups.group import Facet, Group
from cpdrun.study.runs.history import rows_of
from cpdrun.study.study import Study


class RunVerdict(StrEnum):
    WORSE = "worse"
    WITHIN = "within the tolerance"
    BASELINE = "baseline"
    OPEN = "open"  # no value of its own, or none to compare it with


@dataclass(frozen=True)
class RunStanding:
    """A figure that is not known is NaN; values are as they are stored, a share 0..1."""

    verdict: RunVerdict
    value: float
    baseline: RunDir | None  # of the same seed, or else the first there is
    baseline_value: float
    same_seed: bool
    epoch: int | None = None  # where a run has not ended: that both values are of
    problem: str = ""  # why there is nothing to compare with
    group: Group | None = None
    lost: float = math.nan  # how much less good than the baseline, whichever way the metric points


def standing(study: Study, run: RunDir) -> RunStanding:
    """`study`: of the run's sweep, and perhaps of others."""
    row = row_of(study, run)
    group = next((group for group in study.groups if _has(group, run)), None)
    facet = _facet(study, row, group)
    if group is not None and group.is_baseline:
        value = _value(row, study.metric.name)
        return RunStanding(RunVerdict.BASELINE, value, run, value, same_seed=True, group=group)
    fp32 = _baseline_of(study, facet)
    value, epoch = _own_value(study, run, row)
    own = RunStanding(RunVerdict.OPEN, value, None, math.nan, same_seed=False, epoch=epoch, group=group)
    if problem := _problem(study, facet, fp32):
        return replace(own, problem=problem)
    baseline, same_seed = _baseline(study, fp32, row.get(SEED))
    reference = _against(fp32, baseline, row.get(SEED) if same_seed else None, study, epoch)
    own = replace(own, baseline=baseline, baseline_value=reference, same_seed=same_seed)
    return _judged(study, own, row)


def against(study: Study, row: dict[str, Any], other: RunStanding) -> RunStanding:
    """How the ended run of a row stands against the baseline of another run."""
    return _judged(study, replace(other, value=_value(row, study.metric.name), epoch=None, group=None), row)


def _judged(study: Study, stands: RunStanding, row: dict[str, Any]) -> RunStanding:
    sign = 1 if study.metric.higher_is_better else -1
    lost = sign * (stands.baseline_value - stands.value)
    if row.get("run:status") in ("diverged", "did not learn"):
        verdict = RunVerdict.WORSE
    elif math.isnan(lost):
        verdict = RunVerdict.OPEN
    else:
        # a share of 360 samples differs from itself in the last bits of a difference
        worse = lost * study.metric.scale > study.tolerance * (1 + 1e-9)
        verdict = RunVerdict.WORSE if worse else RunVerdict.WITHIN
    return replace(stands, verdict=verdict, lost=lost)


def _problem(study: Study, facet: Facet | None, fp32: Group | None) -> str:
    """Why there is nothing to compare with; empty where there is."""
    if facet is None or fp32 is None:
        return f"no finished {study.baseline_name} run beside it"
    return (study.baseline_problem(facet) or "") if fp32 is facet.baseline else ""


def _baseline_of(study: Study, facet: Facet | None) -> Group | None:
    """The facet's own; where it has none, that of one that differs in how gradients are summed alone."""
    if facet is None or facet.baseline is not None:
        return None if facet is None else facet.baseline
    for other in study.facets:
        differing = [
            key for key, value in facet.keys.items() if identity(value) != identity(other.keys.get(key))
        ]
        if (
            other.baseline is not None
            and all(map(is_of_sums, differing))
            and not study.baseline_problem(other)
        ):
            return other.baseline
    return None


def row_of(study: Study, run: RunDir) -> dict[str, Any]:
    """The run's row of `collect`; empty where the study does not have it."""
    here = run.path.resolve()
    rows = study.runs[study.runs["run:name"] == run.name].to_dict("records")
    return next((row for row in rows if Path(row["run:path"]).resolve() == here), {})


def _has(group: Group, run: RunDir) -> bool:
    return any(one.name == run.name and one.path.resolve() == run.path.resolve() for one in group.runs)


def _facet(study: Study, row: dict[str, Any], group: Group | None) -> Facet | None:
    """Where the run is compared; of one that has not ended, where it will be."""
    if group is not None:
        return next((facet for facet in study.facets if group in facet.groups), None)
    fitting = (
        facet
        for facet in study.facets
        if all(identity(row.get(key)) == identity(value) for key, value in facet.keys.items())
    )
    return next(fitting, None)


def _own_value(study: Study, run: RunDir, row: dict[str, Any]) -> tuple[float, int | None]:
    """The metric of a run that has ended, or its latest with the epoch that it is of."""
    if row.get("run:state") == State.DONE:
        return _value(row, study.metric.name), None
    return _latest(study, run)


def _latest(study: Study, run: RunDir) -> tuple[float, int | None]:
    for row in reversed(rows_of(run)):
        if (value := row.metrics.get(study.metric.name)) is not None:
            return value, row.epoch
    return math.nan, None


def _baseline(study: Study, fp32: Group, seed: Any) -> tuple[RunDir | None, bool]:
    """The baseline's run of that seed, if it has a value; else one of another."""
    seeds = dict(zip(study.runs["run:name"], study.runs[SEED], strict=True))
    same = next((run for run in fp32.runs if seeds.get(run.name) == seed and seed in fp32.by_seed), None)
    return (same or next(iter(fp32.runs), None)), same is not None


def _against(fp32: Group, baseline: RunDir | None, seed: Any, study: Study, epoch: int | None) -> float:
    """The baseline's value: at `epoch` where one is given, else that of `seed`, else the mean."""
    if epoch is not None and baseline is not None:
        then = (row.metrics.get(study.metric.name) for row in rows_of(baseline) if row.epoch == epoch)
        value = next(then, None)
        return math.nan if value is None else value
    return fp32.by_seed[seed] if seed is not None else fp32.mean


def _value(row: dict[str, Any], metric: str) -> float:
    value = row.get(f"metric:{metric}")
    return float(value) if isinstance(value, int | float) else math.nan
