"""Compare one run with its baseline, and find similar runs with better results.

A run is compared with the baseline's run of the same seed, or else with the mean of the baseline's finished runs. A
neighbor is a run that differs from the given run in a single setting.
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
# The names of the settings, keyed by config key or config section. Keys with the same name count as one setting.
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
    """Return the setting to which a dotted key belongs. None for keys that define the training."""
    return TUNABLES.get(key) or TUNABLES.get(key.split(".")[0])


def concerns_sums(key: str) -> bool:
    """Return True if a key defines how gradients are summed. Such keys hardly affect runs in fp32."""
    return tunable(key) not in (None, FORMAT, RECIPE)


class RunVerdict(StrEnum):
    """The verdict on a single run. Unlike the verdict on a format, it certifies nothing."""

    WORSE = "worse"
    WITHIN = "within the tolerance"
    BASELINE = "baseline"
    OPEN = "open"  # The run has no value, or there is no value to compare it with.


@dataclass(frozen=True)
class RunComparison:
    """A comparison of a run with its baseline, in the stored unit. Unknown values are NaN.

    Attributes:
        verdict: The verdict on the run.
        value: The run's value, or its latest value while it runs.
        baseline: The baseline's run of the same seed, or else its first run. None without a baseline.
        baseline_value: The value that the run is compared with.
        same_seed: Whether `baseline` has the run's seed.
        epoch: The epoch of both values if the run has not ended, otherwise None.
        problem: Why the baseline cannot be used. None if it can.
        group: The group that contains the run, if any.
        lost: How much worse the run is than the baseline. Positive is worse for every metric.
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
    """Compare a run with its baseline."""
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
    baseline, same_seed = _baseline(fp32, row.get(SEED))
    reference = _against(fp32, baseline, row.get(SEED) if same_seed else None, study, epoch)
    own = replace(own, baseline=baseline, baseline_value=reference, same_seed=same_seed)
    return _judged(study, own, row)


def compare_row(study: Study, row: dict[str, Any], other: RunComparison) -> RunComparison:
    """Compare a finished run, given by its row, with the baseline value of another run."""
    return _judged(study, replace(other, value=_value(row, study.metric.name), epoch=None, group=None), row)


def _judged(study: Study, comparison: RunComparison, row: dict[str, Any]) -> RunComparison:
    sign = 1 if study.metric.higher_is_better else -1
    lost = sign * (comparison.baseline_value - comparison.value)
    if row.get("run:status") in ("diverged", "did not learn"):
        verdict = RunVerdict.WORSE
    elif math.isnan(lost):
        verdict = RunVerdict.OPEN
    else:
        # Because of rounding errors, a difference of exactly the margin may come out slightly larger.
        worse = lost * study.metric.scale > study.tolerance * (1 + 1e-9)
        verdict = RunVerdict.WORSE if worse else RunVerdict.WITHIN
    return replace(comparison, verdict=verdict, lost=lost)


def _baseline_of(study: Study, facet: Facet | None) -> Group | None:
    """Return a facet's baseline, or that of a facet that differs only in how gradients are summed."""
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
    """Return the row of `study.runs` for this run as a dictionary, or {} if the study does not contain the run."""
    here = run.path.resolve()
    rows = as_rows(study.runs[study.runs["run:name"] == run.name])
    return next((row for row in rows if Path(row["run:path"]).resolve() == here), {})


def _has(group: Group, run: RunDir) -> bool:
    return any(one.name == run.name and one.path.resolve() == run.path.resolve() for one in group.runs)


def _facet(study: Study, row: dict[str, Any], group: Group | None) -> Facet | None:
    """Return the facet in which the run is compared, or will be when it has ended."""
    if group is not None:
        return next((facet for facet in study.facets if group in facet.groups), None)
    fitting = (
        facet
        for facet in study.facets
        if all(identity(row.get(key)) == identity(value) for key, value in facet.keys.items())
    )
    return next(fitting, None)


def _own_value(study: Study, run: RunDir, row: dict[str, Any]) -> tuple[float, int | None]:
    """Return a run's value. If the run has not ended, return its latest value and the epoch."""
    if row.get("run:state") == State.DONE:
        return _value(row, study.metric.name), None
    for epoch in reversed(rows_of(run)):
        if (value := epoch.metrics.get(study.metric.name)) is not None:
            return value, epoch.epoch
    return math.nan, None


def _baseline(fp32: Group, seed: Any) -> tuple[RunDir | None, bool]:
    """Return the baseline's run to compare with, and whether it has the given seed. If not, it is the first run."""
    same = fp32.run_by_seed.get(seed) if seed in fp32.by_seed else None
    return (same or next(iter(fp32.runs), None)), same is not None


def _against(fp32: Group, baseline: RunDir | None, seed: Any, study: Study, epoch: int | None) -> float:
    """Return the baseline's value in this epoch, or of this seed, or the mean of all runs."""
    if epoch is not None and baseline is not None:
        then = (row.metrics.get(study.metric.name) for row in rows_of(baseline) if row.epoch == epoch)
        value = next(then, None)
        return math.nan if value is None else value
    return fp32.by_seed[seed] if seed is not None else fp32.mean


def _value(row: dict[str, Any], metric: str) -> float:
    value = row.get(f"metric:{metric}")
    return float(value) if isinstance(value, int | float) else math.nan


LEAST_GAIN = 0.2  # An improvement must regain this share of the quality that the run lost.
IGNORED = ("observe",)  # These settings change no result.
# If one of these keys changed, other changed keys are not listed, because they follow from it.
_SUFFICIENT = ("format", "aps", "recipe")


@dataclass(frozen=True)
class Neighbor:
    """A run that differs from the given run in one setting.

    Attributes:
        tunable: The name of the setting that differs, such as "order".
        words: The overrides that give this run, as key=value.
        run: The neighbor's run directory.
        comparison: The comparison of the neighbor with the given run's baseline.
        statistics: The neighbor's gradient statistics.
    """

    tunable: str
    words: list[str]
    run: RunDir
    comparison: RunComparison
    statistics: GradientStatistics


def find_neighbors(study: Study, run: RunDir, comparison: RunComparison) -> list[Neighbor]:
    """Return the finished neighbors that lost less quality than the run did, best first.

    Neighbors with narrower formats are left out. Of those with wider formats, only the narrowest is returned. Neighbors
    within the margin come first, then those without a wider format, then those that lost least.
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
        if CASE in changed:  # Replace the name of the case with the settings that the case changes.
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
    """Return True if the user should change the setting in which a neighbor differs.

    The neighbor must be within the margin, or regain more than the margin and LEAST_GAIN of what the run lost. If that
    loss is unknown, every neighbor is an improvement.
    """
    if neighbor.comparison.verdict is RunVerdict.WITHIN or not math.isfinite(comparison.lost):
        return True
    gain = comparison.lost - neighbor.comparison.lost
    return gain > max(study.tolerance / study.metric.scale, LEAST_GAIN * comparison.lost)


def _changed(row: Mapping[str, Any], own: Mapping[str, Any], keys: Iterable[str]) -> list[str]:
    return [key for key in keys if identity(row.get(key)) != identity(own.get(key))]


def _format_bits(neighbor: Neighbor) -> float | None:
    """Return the bit width of a neighbor's format, or None if the neighbor has the same format as the run."""
    return formats.bits(neighbor.words[0].partition("=")[2]) if neighbor.tunable == FORMAT else None


def _fewest_bits(found: list[Neighbor], own_bits: float) -> list[Neighbor]:
    """Remove neighbors with narrower formats, and keep only the narrowest with a wider format."""
    wider = [(bits, i) for i, one in enumerate(found) if (bits := _format_bits(one) or 0) > own_bits]
    narrowest = found[min(wider)[1]] if wider else None
    return [
        one
        for one in found
        if one.tunable != FORMAT or one is narrowest or (_format_bits(one) or math.nan) == own_bits
    ]


def _words(changed: list[str], row: Mapping[str, Any]) -> list[str]:
    # This module imports Hydra, which takes longer than reading a sweep.
    from cpdrun.config.overrides import typed_form

    keys = [key for key in changed if key in _SUFFICIENT]
    keys = keys or [key for key in changed if not key.endswith("_target_")]
    return [f"{key}={typed_form(_decoded(row.get(key)))}" for key in keys]


def _decoded(value: Any) -> Any:
    """Decode a list, which the table of runs contains as JSON text."""
    return json.loads(value) if isinstance(value, str) and value.startswith("[") else value
