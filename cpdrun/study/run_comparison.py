"""Compare one run with its baseline, and find runs that differ from it in one setting and lost less.

The baseline of a run is the run of the same seed, or else the mean of the finished runs.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from cpdrun.record import RunDir, State
from cpdrun.study import formats
from cpdrun.study.collect import CASE, CORE_AXES, SEED, as_rows, config_keys, identity, may_be_axis
from cpdrun.study.gradient_sums import GradientStatistics, gradient_statistics
from cpdrun.study.group import Facet, Group
from cpdrun.study.records import rows_of
from cpdrun.study.study import BaselineFlaw, BaselineProblem, Study

FORMAT, APS, ORDER, RECIPE = "format", "APS", "order", "recipe"
# by key or by section of the configuration
TUNABLES = {
    "format": FORMAT,
    "aps": APS,
    "scaling": APS,
    "sync.order": ORDER,
    "sync.group_size": ORDER,
    "sync.kahan": "Kahan",
    "sync.rounding": "rounding",
    "sync.error_feedback": "error feedback",
    "sync.requantise": "requantise",
    "full_precision": "layers in fp32",
    "recipe": RECIPE,
    "ingredients": RECIPE,
    "precision": RECIPE,
}


def tunable(key: str) -> str | None:
    """Return the setting that a dotted key belongs to; None for a key that makes it another training."""
    return TUNABLES.get(key) or TUNABLES.get(key.split(".")[0])


def concerns_sums(key: str) -> bool:
    """Return whether a key says how gradients are summed. Such keys hardly change a run in fp32."""
    return tunable(key) not in (None, FORMAT, RECIPE)


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
    if facet is None or fp32 is None:
        return replace(own, problem=BaselineProblem(BaselineFlaw.NOT_FINISHED))
    if fp32 is facet.baseline and (problem := study.baseline_problem(facet)):
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
    rows = as_rows(study.runs[study.runs["run:name"] == run.name])
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


LEAST_GAIN = 0.2  # of the loss in quality; a smaller gain does not count as an improvement
IGNORED = ("observe",)  # settings that change no result
_SUFFICIENT = (
    "format",
    "aps",
    "recipe",
)  # if one of these changed, the keys that follow from it are not listed


@dataclass(frozen=True)
class Neighbor:
    """A run that differs in one tunable setting.

    Attributes:
        tunable: The setting, such as "order".
        words: key=value as one types them to get this run.
    """

    tunable: str
    words: list[str]
    run: RunDir
    comparison: RunComparison
    statistics: GradientStatistics


def find_neighbors(study: Study, run: RunDir, comparison: RunComparison) -> list[Neighbor]:
    """Return the finished neighbors of a run that lost less than it, compared with the same baseline.

    Neighbors within the margin come first, then those with no more bits, then those that lost least. Formats of fewer
    bits are left out, and of the wider formats only the narrowest is kept.
    """
    keys = [*CORE_AXES, *study.axes]
    runs = study.runs
    own = row_of(study, run)
    done = (runs["run:state"] == State.DONE) & runs["run:problem"].isna()
    seed = identity(own.get(SEED))
    baselines = {one.name for group in study.groups if group.is_baseline for one in group.runs}
    found = []
    for row in as_rows(runs[done & (runs[SEED].map(identity) == seed)]):
        changed = _changed(row, own, keys)
        if CASE in changed:  # the name of a case stands for the settings of its own
            every = [key for key in config_keys(runs) if may_be_axis(key) or key in CORE_AXES]
            changed = [key for key in _changed(row, own, every) if key not in (CASE, *IGNORED)]
        tunables = {tunable(key) for key in changed}
        changed_one = tunables.pop() if len(tunables) == 1 else None
        if changed_one is not None and row["run:name"] not in baselines:
            other = RunDir(Path(row["run:path"]))
            theirs = compare_row(study, row, comparison)
            if math.isfinite(theirs.lost) and not theirs.lost >= comparison.lost:
                statistics = gradient_statistics(rows_of(other))
                found.append(Neighbor(changed_one, _words(changed, row), other, theirs, statistics))
    own_bits = formats.bits(own.get("format")) or 0

    def cost(one: Neighbor) -> tuple:
        is_wider = (_format_bits(one) or 0) > own_bits
        return one.comparison.verdict is not RunVerdict.WITHIN, is_wider, one.comparison.lost

    return sorted(_fewest_bits(found, own_bits), key=cost)


def is_improvement(study: Study, comparison: RunComparison, neighbor: Neighbor) -> bool:
    """Return whether a neighbor loses so much less than the run that its setting is worth changing."""
    if neighbor.comparison.verdict is RunVerdict.WITHIN or not math.isfinite(comparison.lost):
        return True
    gain = comparison.lost - neighbor.comparison.lost
    return gain > max(study.tolerance / study.metric.scale, LEAST_GAIN * comparison.lost)


def _changed(row: Mapping[str, Any], own: Mapping[str, Any], keys: Iterable[str]) -> list[str]:
    return [key for key in keys if identity(row.get(key)) != identity(own.get(key))]


def _format_bits(neighbor: Neighbor) -> float | None:
    """Return the bits of a neighbor's format; None if it differs in another setting."""
    return formats.bits(neighbor.words[0].partition("=")[2]) if neighbor.tunable == FORMAT else None


def _fewest_bits(found: list[Neighbor], own_bits: float) -> list[Neighbor]:
    """Return the neighbors without formats of fewer bits, and with only the narrowest of the wider formats."""
    wider = [(bits, i) for i, one in enumerate(found) if (bits := _format_bits(one) or 0) > own_bits]
    narrowest = found[min(wider)[1]] if wider else None
    return [
        one
        for one in found
        if one.tunable != FORMAT or one is narrowest or (_format_bits(one) or math.nan) == own_bits
    ]


def _words(changed: list[str], row: Mapping[str, Any]) -> list[str]:
    from cpdrun.config.overrides import (
        typed_form,  # it imports Hydra, which takes longer than reading a sweep
    )

    keys = [key for key in changed if key in _SUFFICIENT]
    keys = keys or [key for key in changed if not key.endswith("_target_")]
    return [f"{key}={typed_form(_decoded(row.get(key)))}" for key in keys]


def _decoded(value: Any) -> Any:
    """Decode a list, which a table holds as JSON."""
    return json.loads(value) if isinstance(value, str) and value.startswith("[") else value
