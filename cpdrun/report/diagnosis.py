"""Explain why runs are worse than their baseline.

`explain` explains one run. `worse_groups` makes a report's table of all groups that are worse. This module computes the
values, and templates/diagnosis.j2 holds the sentences.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from cpdrun.config.script import is_script
from cpdrun.record import Ending, State
from cpdrun.report.render import render, render_lines, share
from cpdrun.report.result_text import gap_text, verdict_text
from cpdrun.report.study_text import baseline_problem_text
from cpdrun.report.tables import Shown
from cpdrun.study import formats
from cpdrun.study.axes import axis_text, axis_title, plain
from cpdrun.study.gradient_sums import (
    Cause,
    Reason,
    exponent_range,
    find_reason,
    gradient_statistics,
    longest_chain,
    workers_per_scale,
)
from cpdrun.study.group import Group
from cpdrun.study.records import rows_of
from cpdrun.study.run_comparison import RunComparison, compare_run, find_neighbors, is_improvement, row_of
from cpdrun.study.study import Study
from cpdrun.whatif.counterfactual import Counterfactual, role_damage, worst_layers
from cpdrun.whatif.damage import GRADIENT, number
from cpdrun.whatif.diagnosis import (
    MIN_DAMAGE_GAIN,
    Diagnosis,
    Fix,
    gain_over_steps,
    is_error_feedback,
    is_unbiased,
)
from cpdrun.whatif.effects import is_observed
from cpdrun.whatif.forecast import Forecast

CONSTANT = 0.5  # an error that never falls below this share of its maximum counts as present in all epochs
# The keys of `precision` that name formats.
ROUNDED_KEYS = ("weights", "activations", "errors", "accumulator", "optimizer_state", "update")
TO_FINITE = ("saturate", "propagate")  # values of sync.overflow that replace overflows by the largest value
MAX_GROUPS = 12
HEADER = ["run", "against the baseline", "main reason", "where", "when", "measured in another run"]
_FIGURES = (
    *("underflow", "saturation", "snr_db", "bias", "cosine", "sum_error", "growth", "update_lost"),
    *("steps_cosine", "steps"),
)


@dataclass(frozen=True)
class ExplainedFix:
    """A change of the configuration that would make the run better.

    Attributes:
        words: The overrides for the command line, as key=value.
        basis: "measured" in a run with the same seed, "observed" (computed on observed tensors), or "estimated" from
            recorded exponents.
        text: A sentence that describes the change.
        figure: The name of the statistic that improves.
        before: The value of the statistic without the change; NaN if unknown.
        after: The value of the statistic with the change; NaN if unknown.
        run: The finished run with this change; None if there is none.
        value: The metric of the finished run; NaN if there is none.
    """

    words: tuple[str, ...]
    basis: str
    text: str
    figure: str
    before: float
    after: float
    run: str | None
    value: float


@dataclass(frozen=True)
class LayerLoss:
    """The rounding errors of one tensor of a layer.

    Attributes:
        name: The name of the layer.
        role: The role of the tensor, such as "gradient" or "weight, observed".
        format: The format to which the tensor is rounded.
        figures: The statistics of the error, keyed by name; NaN if unknown.
    """

    name: str
    role: str
    format: str
    figures: dict[str, float]


@dataclass(frozen=True)
class Explanation:
    """Why a run is worse than its baseline.

    Metric values and the margin are in the unit in which the metric is stored. Unknown values are NaN.

    Attributes:
        run: The name of the run.
        state: The state of the run.
        status: The status with which the run ended; None if it has no result.
        verdict: The verdict of the comparison with the baseline.
        metric: The name of the metric; None if no runs can be compared.
        value: The metric of the run.
        baseline: The name of the baseline run; None if there is none.
        baseline_value: The metric of the baseline run.
        lost: The amount by which the run is worse than its baseline; negative if it is better.
        tolerance: The margin.
        cause: The main cause of errors in the sums of gradients.
        role: The role whose tensors have the largest errors.
        sentences: The explanation, main reason first.
        layers: The errors of the layers' tensors.
        epochs: The relative error of the sum of gradients, keyed by epoch. Each value is a mean over layers.
        first_nonfinite_epoch: The first epoch with inf or NaN in the sum of gradients; None if there is none.
        fixes: The changes that would make the run better, best first.
        roles: The statistics of the error in each role, computed on observed tensors.
        parts: The error of the sum of gradients, divided into the parts range, additions, and mantissa.
        observed: The name of the run whose tensors were observed; None if there is none.
        not_seen: Sentences about possible causes that no run has observed.
    """

    run: str
    state: str
    status: str | None
    verdict: str
    metric: str | None
    value: float
    baseline: str | None
    baseline_value: float
    lost: float
    tolerance: float
    cause: str
    role: str
    sentences: list[str]
    layers: list[LayerLoss]
    epochs: dict[int, float]
    first_nonfinite_epoch: int | None
    fixes: list[ExplainedFix]
    roles: dict[str, dict[str, float]]
    parts: dict[str, float]
    observed: str | None
    not_seen: list[str]

    VERSION: ClassVar[int] = 2


def explain(diagnosis: Diagnosis) -> Explanation:
    """Convert a diagnosis to a document that explains it in sentences."""
    comparison, reason, study = diagnosis.comparison, diagnosis.reason, diagnosis.study
    counterfactual, nonfinite = diagnosis.counterfactual, reason.statistics.nonfinite
    own = None if counterfactual is None else counterfactual.own
    values: dict[str, Any] = {"diagnosis": diagnosis, "study": study, "facts": _facts(diagnosis)}
    fixes = [_line("fix", **values | {"fix": fix, "facts": _fix_facts(own, fix)}) for fix in diagnosis.fixes]
    missing = render_lines("diagnosis.j2", part="not observed", missing=_not_observed(diagnosis))
    return Explanation(
        run=diagnosis.run.name,
        state=str(diagnosis.state),
        status=None if diagnosis.result is None else str(diagnosis.result.status),
        verdict=str(comparison.verdict),
        metric=None if study is None else study.metric.name,
        value=comparison.value,
        baseline=None if comparison.baseline is None else comparison.baseline.name,
        baseline_value=comparison.baseline_value,
        lost=comparison.lost,
        tolerance=math.nan if study is None else study.tolerance / study.metric.scale,
        cause=str(reason.cause),
        role="gradient" if counterfactual is None else counterfactual.role,
        sentences=render_lines("diagnosis.j2", part="all", **values, fixes=fixes, not_observed=missing),
        layers=[
            *_recorded_layers(reason),
            *([] if counterfactual is None else _observed_layers(counterfactual)),
        ],
        epochs=reason.statistics.by_epoch(lambda epoch: epoch.sum_error),
        first_nonfinite_epoch=None if nonfinite is None else nonfinite.epoch,
        fixes=[_fix(fix, text) for fix, text in zip(diagnosis.fixes, fixes, strict=True)],
        roles={} if own is None else {role: _figures(own.figures(role)) for role in own.effects["role"]},
        parts={} if counterfactual is None else counterfactual.parts,
        observed=None if counterfactual is None else counterfactual.observed.name,
        not_seen=missing,
    )


def _fix(fix: Fix, text: str) -> ExplainedFix:
    neighbor = fix.neighbor
    run, value = (None, math.nan) if neighbor is None else (neighbor.run.name, neighbor.comparison.value)
    return ExplainedFix(fix.words, fix.basis, text, fix.figure, fix.before, fix.after, run, value)


def _recorded_layers(reason: Reason) -> Iterator[LayerLoss]:
    for one in reason.statistics.layers:
        figures = {name: getattr(one, name) for name in ("underflow", "overflow", "sum_error")}
        ends = {"exponent_min": one.low, "exponent_max": one.high}
        figures |= {name: math.nan if value is None else value for name, value in ends.items()}
        yield LayerLoss(one.name, "gradient", one.format, figures)


def _observed_layers(counterfactual: Counterfactual) -> Iterator[LayerLoss]:
    for role in counterfactual.own.effects["role"]:
        for name, figures in counterfactual.own.layers(role).items():
            yield LayerLoss(name, f"{role}, observed", str(figures.get("format", "")), _figures(figures))


def _figures(figures: Mapping[str, Any]) -> dict[str, float]:
    return {name: number(figures, name) for name in _FIGURES if name in figures}


def by_chance(study: Study, comparison: RunComparison) -> dict[str, int] | None:
    """Return the number of test samples that differ, if chance may explain it.

    A share p of n samples has the variance p (1 - p) / n, and a difference of two shares has the sum of both variances.
    Chance may explain a difference of up to two standard deviations (about 95% confidence).

    Returns:
        {"count": differing samples, "samples": size of the test set}, or None if the difference is 0, unknown or too
        large.
    """
    samples = study.samples(comparison.group) if comparison.group is not None else math.nan
    if not (samples > 0 and math.isfinite(comparison.lost)):
        return None
    shares = [
        min(max(value, 0.5 / samples), 1 - 0.5 / samples)
        for value in (comparison.value, comparison.baseline_value)
    ]
    error = math.sqrt(sum(p * (1 - p) / samples for p in shares))
    if not 0 < abs(comparison.lost) <= 2 * error:
        return None
    return {"count": round(abs(comparison.lost) * samples), "samples": round(samples)}


def _facts(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the template variables that are not in the diagnosis itself."""
    study, comparison, reason = diagnosis.study, diagnosis.comparison, diagnosis.reason
    counterfactual, result, run = diagnosis.counterfactual, diagnosis.result, diagnosis.run
    progress = run.progress() if diagnosis.state is State.RUNNING else None
    attempt = run.last_attempt() if diagnosis.state is State.FAILED else None
    ended_well = result is None or result.status is not Ending.DIVERGED
    has_layers = reason.cause not in (Cause.UNSEEN, Cause.EXACT) and not diagnosis.is_baseline
    return {
        "progress": progress if progress and progress.epochs else None,
        "outcome": attempt.outcome() if attempt is not None else None,
        "has_curve": bool(rows_of(run)),
        "no_comparison": _no_comparison(study, comparison),
        "chance": None if study is None else by_chance(study, comparison),
        "reason": _reason(diagnosis),
        "setting": _diagnosed_setting(diagnosis),
        "has_layers": has_layers,
        "course": _course(reason) if has_layers else None,
        "worst_layers": _worst_layers(counterfactual),
        "parts": _parts(counterfactual),
        "hidden_nonfinite": reason.statistics.nonfinite is not None and ended_well,
        "saturating_format": _saturating_format(diagnosis.config),
        "seeds": _seeds(diagnosis),
    }


def _no_comparison(study: Study | None, comparison: RunComparison) -> str:
    if study is None:
        return "no run of its sweep has finished"
    return baseline_problem_text(study, comparison.problem) if comparison.problem is not None else ""


def _reason(diagnosis: Diagnosis) -> str:
    """Return the kind of explanation to give.

    Returns:
        "observed" for errors on observed tensors, "sums" for errors in the sums of gradients, "exact" if nothing is
        rounded, or "" for none.
    """
    cause, counterfactual = diagnosis.reason.cause, diagnosis.counterfactual
    if counterfactual is not None and (
        counterfactual.role != GRADIENT or cause in (Cause.UNSEEN, Cause.EXACT)
    ):
        return "observed" if role_damage(counterfactual.own, counterfactual.role) >= 1e-3 else ""
    if diagnosis.is_baseline or cause is Cause.UNSEEN:
        return ""
    return "exact" if cause is Cause.EXACT and not _rounded_within(diagnosis.config) else "sums"


def _diagnosed_setting(diagnosis: Diagnosis) -> dict[str, Any]:
    config, result = diagnosis.config, diagnosis.result
    recorded = result.longest_chain if result is not None else None
    workers, sync = config.get("world_size", 1), config.get("sync") or {}
    return _setting(diagnosis.reason, bool(config.get("aps")), workers, sync, recorded)


def _setting(
    reason: Reason, aps: bool, workers: int, sync: Mapping[str, Any], chain: int | None = None
) -> dict[str, Any]:
    """Return the settings that the explanation of wrong gradient sums quotes.

    `chain` is the recorded number of rounded additions in series. In the result, `range` holds the exponents of the
    format and of the gradients, or None if they are unknown.
    """
    found, per_scale = reason.statistics, workers_per_scale(sync, workers)
    limits = exponent_range(reason.worst[0].format) if reason.worst else None
    range_ = None
    if limits is not None and found.low is not None and found.high is not None:
        width = limits[1] - limits[0] + 1
        range_ = {
            "format": plain(reason.worst[0].format),
            "smallest": limits[0],
            "largest": limits[1],
            "low": found.low,
            "high": found.high,
            "width": width,
            "room": min(width, math.ceil(math.log2(per_scale))),
            "span": max(epoch.span for one in found.layers for epoch in one.epochs),
        }
    chain = chain or longest_chain(sync, workers)
    return {"aps": aps, "workers": workers, "chain": chain, "workers_per_scale": per_scale, "range": range_}


def _course(reason: Reason) -> dict[str, Any] | None:
    """Describe how the main error changed over the epochs; None with fewer than two.

    The error is the share of overflows if overflow is the cause, and the relative error of the sum otherwise.
    """
    is_overflow = reason.cause is Cause.OVERFLOW
    values = reason.statistics.by_epoch(lambda epoch: epoch.overflow if is_overflow else epoch.sum_error)
    if len(values) < 2:
        return None
    first, last = min(values), max(values)
    peak = max(values, key=lambda epoch: values[epoch])
    kind = "grows" if peak == last else "falls" if peak == first else "peak"
    if len({share(value) for value in values.values()}) == 1:
        kind = "equal"
    elif min(values.values()) >= CONSTANT * values[peak]:
        kind = "throughout"
    ends = {"first_epoch": first, "first": values[first], "last_epoch": last, "last": values[last]}
    return {"is_overflow": is_overflow, "kind": kind, "peak_epoch": peak, "peak": values[peak], **ends}


def _worst_layers(counterfactual: Counterfactual | None) -> list[tuple[str, Mapping[str, Any]]]:
    if counterfactual is None or counterfactual.role == GRADIENT:
        return []
    return worst_layers(counterfactual.own, counterfactual.role)


def _parts(counterfactual: Counterfactual | None) -> list[tuple[str, float]]:
    """Return each part's share of the error of the gradient sum, largest first.

    Return [] if the parts add up to at most 1e-4, because float32 sums also have errors of this size.
    """
    parts = {} if counterfactual is None else counterfactual.parts
    total = sum(parts.values())
    shares = ((name, value / total) for name, value in parts.items() if total > 1e-4)
    return sorted(shares, key=lambda one: -one[1])


def _seeds(diagnosis: Diagnosis) -> dict[str, Any] | None:
    """Return the result over all seeds; None for the baseline or below two pairs."""
    study, group = diagnosis.study, diagnosis.comparison.group
    if study is None or group is None or diagnosis.is_baseline:
        return None
    gap = study.against_baseline(group)
    if gap is None or gap.pairs < 2:
        return None
    verdict = verdict_text(study.judged[group])
    return {"count": len(group.values), "gap": gap_text(study.metric, gap), "verdict": verdict}


def _saturating_format(config: Mapping[str, Any]) -> str:
    """Return the run's format if it replaces overflows by finite numbers, else "".

    With such a format, the loss may stay finite although gradients overflow.
    """
    fmt = formats.parse(config["format"])
    overflow = (config.get("sync") or {}).get("overflow")
    return "" if fmt is None or (fmt.has_inf and overflow not in TO_FINITE) else fmt.name


def _fix_facts(own: Forecast | None, fix: Fix) -> dict[str, Any]:
    if own is None or fix.change is None or fix.forecast is None:
        return {}
    return {
        "is_error_feedback": is_error_feedback(fix.change),
        "is_unbiased": is_unbiased(fix.change),
        "lost_norm": 10 ** (-number(own.figures(GRADIENT), "snr_db", 0.0) / 20),
        "gains_over_steps": gain_over_steps(own, fix.forecast) > MIN_DAMAGE_GAIN,
    }


def _not_observed(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the possible causes that no run has observed, and the command that observes them."""
    config, counterfactual, reason = diagnosis.config, diagnosis.counterfactual, diagnosis.reason
    names = ("script", "layers", "uncovered", "problem", "rounded", "gradients", "command")
    missing: dict[str, Any] = dict.fromkeys(names, ())
    if diagnosis.state is State.FAILED and not rows_of(diagnosis.run):
        return missing  # the run's error message explains everything
    if is_script(config) and counterfactual is None:
        return missing | {"script": not is_observed(diagnosis.run)}
    missing["layers"] = reason.cause is Cause.UNSEEN
    if counterfactual is not None:
        return missing | {"uncovered": counterfactual.uncovered}
    experiment = config.get("exp")
    command = f"cpdrun predict exp={experiment}" if experiment else f"cpdrun predict {diagnosis.run.path}"
    return missing | {
        "problem": diagnosis.problem,
        "rounded": _rounded_within(config),
        "gradients": not diagnosis.is_baseline and bool(reason.statistics.layers),
        "command": command,
    }


def _rounded_within(config: Mapping[str, Any]) -> list[str]:
    """Return phrases for what the config rounds in GEMMs and optimizer steps."""
    precision = config.get("precision")
    if not isinstance(precision, Mapping):
        return []
    found = [
        f"{key.replace('_', ' ')} in {precision[key]}"
        for key in ROUNDED_KEYS
        if isinstance(precision.get(key), str) and not formats.is_baseline(precision[key])
    ]
    recipe = config.get("recipe")
    return [f"recipe {recipe}" if recipe else "precision.rules", *found] if precision.get("rules") else found


def _line(part: str, **values: Any) -> str:
    return render("diagnosis.j2", part=part, **values)


def worse_groups(study: Study) -> tuple[list[str], Shown] | None:
    """Return sentences and a table of the groups that are worse than the baseline.

    Each row describes the first run of a group. Return None if no group is worse or no run recorded why.
    """
    worse = [
        group for group in study.groups if not group.is_baseline and group.runs and _is_worse(study, group)
    ]
    rows = [row for group in worse[:MAX_GROUPS] if (row := _row(study, group)) is not None]
    if not rows:
        return None
    sentences = [
        "What the sums of gradients lost, in one run of each group that is worse. For more: cpdrun report RUN."
    ]
    if len(worse) > MAX_GROUPS:
        sentences.append(f"{len(worse) - MAX_GROUPS} more groups are worse and not shown here.")
    return sentences, Shown(HEADER, rows, 1)


def _is_worse(study: Study, group: Group) -> bool:
    """Return True if a group is worse than the baseline by more than the margin.

    A group with failed runs, or one that did not learn, counts as worse. If the group has no pairs with a
    baseline, it counts as worse only if runs diverged or were stopped early.
    """
    gap = study.against_baseline(group)
    if gap is None:
        return group.diverged > 0 or bool(group.gave_up_seeds)
    return not study.may_be_within(group) or -gap.mean * study.metric.scale > study.tolerance


def _row(study: Study, group: Group) -> list[str] | None:
    run = group.runs[0]
    reason = find_reason(gradient_statistics(rows_of(run)))
    if reason.cause is Cause.UNSEEN:
        return None
    row, comparison = row_of(study, run), compare_run(study, run)
    workers = row.get("world_size")
    if not isinstance(workers, int):
        return None
    sync = {key: row.get(f"sync.{key}") for key in ("order", "group_size")}
    setting = _setting(reason, bool(row.get("aps")), workers, sync)
    found = find_neighbors(study, run, comparison)
    better = next((one for one in found if is_improvement(study, comparison, one)), None)
    measured = "-" if better is None else _line("measured", study=study, neighbor=better, reason=reason)
    return [
        _name(study, group),
        "diverged" if group.diverged else _line("gap", study=study, comparison=comparison).split(" (")[0],
        _line("cause", reason=reason, setting=setting),
        "-" if reason.cause is Cause.EXACT else _line("layers", reason=reason),
        _line("when", course=_course(reason)) or "-",
        measured.removesuffix(" (measured)"),
    ]


def _name(study: Study, group: Group) -> str:
    varying = [f"{axis_title(key)} {axis_text(group.keys[key])}" for key in study.facet_axes]
    return ", ".join([plain(group.full_name), *varying])
