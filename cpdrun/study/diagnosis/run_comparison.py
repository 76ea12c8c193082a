"""How one run compares with its baseline: the run of the same seed, or else the mean of the finished runs."""

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from cpdrun.record import RunDir, State
from cpdrun.study.collect import SEED, identity
from cpdrun.study.diagnosis.tunables import concerns_sums
from cpdrun.study.groups.group import Facet, Group
from cpdrun.study.runs.history import rows_of
from cpdrun.study.study import BaselineFlaw, BaselineProblem, Study


class RunVerdict(StrEnum):
    """What one pair of runs shows. Unlike a verdict about a format, it certifies nothing."""

    WORSE = "worse"
    WITHIN = "within the tolerance"
    BASELINE = "baseline"
    OPEN = "open"  # no value of its own, or none to compare it with


@dataclass(frozen=True)
class RunComparison:
    """A run next to its baseline. Values are in the metric's unit as stored (a share is in [0, 1]); NaN if unknown.

    Attributes:
        baseline: The baseline's run of the same seed, or else its first run.
        same_seed: Whether `baseline` has the run's seed.
        epoch: The epoch of both values if the run has not ended.
        problem: Why there is nothing to compare with; None if there is.
        lost: By how much the run is worse than the baseline, whichever way the metric points.
    """

    verdict: RunVerdict
    value: float
    baseline: RunDir | None
    baseline_value: float
    same_seed: bool
    epoch: int | None = None
    problem: BaselineProblem | None = None
    group: Group | None = None
    lost: float = math.nan


def compare_run(study: Study, run: RunDir) -> RunComparison:
    """Compare a run with its baseline.

    Args:
        study: The study of the run's sweep, possibly together with others.
        run: The run.
    """
    row = row_of(study, run)
    group = next((group for group in study.groups if _has(group, run)), None)
    facet = _facet(study, row, group)
    if group is not None and group.is_baseline:
        value = _value(row, study.metric.name)
        return RunComparison(RunVerdict.BASELINE, value, run, value, same_seed=True, group=group)
    fp32 = _baseline_of(study, facet)
    value, epoch = _own_value(study, run, row)
    own = RunComparison(RunVerdict.OPEN, value, None, math.nan, same_seed=False, epoch=epoch, group=group)
    if problem := _problem(study, facet, fp32):
        return replace(own, problem=problem)
    baseline, same_seed = _baseline(study, fp32, row.get(SEED))
    reference = _against(fp32, baseline, row.get(SEED) if same_seed else None, study, epoch)
    own = replace(own, baseline=baseline, baseline_value=reference, same_seed=same_seed)
    return _judged(study, own, row)


def compare_row(study: Study, row: dict[str, Any], other: RunComparison) -> RunComparison:
    """Compare the finished run of a row with the baseline of another run."""
    return _judged(study, replace(other, value=_value(row, study.metric.name), epoch=None, group=None), row)


def _judged(study: Study, comparison: RunComparison, row: dict[str, Any]) -> RunComparison:
    sign = 1 if study.metric.higher_is_better else -1
    lost = sign * (comparison.baseline_value - comparison.value)
    if row.get("run:status") in ("diverged", "did not learn"):
        verdict = RunVerdict.WORSE
    elif math.isnan(lost):
        verdict = RunVerdict.OPEN
    else:
        # the difference of two shares of 360 samples is exact only to the last bits
        worse = lost * study.metric.scale > study.tolerance * (1 + 1e-9)
        verdict = RunVerdict.WORSE if worse else RunVerdict.WITHIN
    return replace(comparison, verdict=verdict, lost=lost)


def _problem(study: Study, facet: Facet | None, fp32: Group | None) -> BaselineProblem | None:
    """Return why there is nothing to compare with; None if there is."""
    if facet is None or fp32 is None:
        return BaselineProblem(BaselineFlaw.NOT_FINISHED)
    return study.baseline_problem(facet) if fp32 is facet.baseline else None


def _baseline_of(study: Study, facet: Facet | None) -> Group | None:
    """Return the baseline of a facet, or else that of a facet that differs only in how gradients are summed."""
    if facet is None or facet.baseline is not None:
        return None if facet is None else facet.baseline
    for other in study.facets:
        differing = [
            key for key, value in facet.keys.items() if identity(value) != identity(other.keys.get(key))
        ]
        if (
            other.baseline is not None
            and all(map(concerns_sums, differing))
            and not study.baseline_problem(other)
        ):
            return other.baseline
    return None


def row_of(study: Study, run: RunDir) -> dict[str, Any]:
    """Return the run's row of the table of runs; empty if the study does not contain it."""
    here = run.path.resolve()
    rows = study.runs[study.runs["run:name"] == run.name].to_dict("records")
    return next((row for row in rows if Path(row["run:path"]).resolve() == here), {})


def _has(group: Group, run: RunDir) -> bool:
    return any(one.name == run.name and one.path.resolve() == run.path.resolve() for one in group.runs)


def _facet(study: Study, row: dict[str, Any], group: Group | None) -> Facet | None:
    """Return the facet in which the run is compared, or will be once it has ended."""
    if group is not None:
        return next((facet for facet in study.facets if group in facet.groups), None)
    fitting = (
        facet
        for facet in study.facets
        if all(identity(row.get(key)) == identity(value) for key, value in facet.keys.items())
    )
    return next(fitting, None)


def _own_value(study: Study, run: RunDir, row: dict[str, Any]) -> tuple[float, int | None]:
    """Return the metric of a finished run, or else its latest value and the epoch of that value."""
    if row.get("run:state") == State.DONE:
        return _value(row, study.metric.name), None
    return _latest(study, run)


def _latest(study: Study, run: RunDir) -> tuple[float, int | None]:
    for row in reversed(rows_of(run)):
        if (value := row.metrics.get(study.metric.name)) is not None:
            return value, row.epoch
    return math.nan, None


def _baseline(study: Study, fp32: Group, seed: Any) -> tuple[RunDir | None, bool]:
    """Return the baseline's run of a seed and True, or its first run and False if it has no value for the seed."""
    seeds = dict(zip(study.runs["run:name"], study.runs[SEED], strict=True))
    same = next((run for run in fp32.runs if seeds.get(run.name) == seed and seed in fp32.by_seed), None)
    return (same or next(iter(fp32.runs), None)), same is not None


def _against(fp32: Group, baseline: RunDir | None, seed: Any, study: Study, epoch: int | None) -> float:
    """Return the baseline's value at `epoch` if one is given, else its value for `seed`, else its mean."""
    if epoch is not None and baseline is not None:
        then = (row.metrics.get(study.metric.name) for row in rows_of(baseline) if row.epoch == epoch)
        value = next(then, None)
        return math.nan if value is None else value
    return fp32.by_seed[seed] if seed is not None else fp32.mean


def _value(row: dict[str, Any], metric: str) -> float:
    value = row.get(f"metric:{metric}")
    return float(value) if isinstance(value, int | float) else math.nan
