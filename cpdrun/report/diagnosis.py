"""Why runs are worse than their baseline: the document of one run, and the table of all groups of a report.

The sentences are in templates/diagnosis.j2. This module computes what they quote.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from cpdrun.config.script import is_script
from cpdrun.record import Ending, State
from cpdrun.report.render import render_lines, share
from cpdrun.report.result_text import gap_text
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
from cpdrun.study.run_comparison import (
    RunComparison,
    compare_run,
    find_neighbors,
    is_improvement,
    row_of,
)
from cpdrun.study.study import Study
from cpdrun.whatif.changes import GRADIENT
from cpdrun.whatif.counterfactual import Counterfactual, damage, number, worst_layers
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

CONSTANT = 0.5  # a figure that never falls below this share of its maximum is present throughout
ROUNDED_KEYS = (
    "weights",
    "activations",
    "errors",
    "accumulator",
    "optimizer_state",
    "update",
)  # of precision
TO_FINITE = ("saturate", "propagate")  # values of sync.overflow that replace an overflow by the largest value
MAX_GROUPS = 12
HEADER = ["run", "against the baseline", "main reason", "where", "when", "measured in another run"]
_FIGURES = (
    *("underflow", "saturation", "snr_db", "bias", "cosine", "sum_error", "growth", "update_lost"),
    *("steps_cosine", "steps"),
)


@dataclass(frozen=True)
class ExplainedFix:
    """A change that loses less.

    Attributes:
        words: key=value, as they are typed.
        basis: "measured" in a run of the same seed, "observed" (computed on observed tensors) or "estimated".
        text: The fix in a sentence.
        figure: The name of the figure that improves, with its value `before` and `after`; NaN if unknown.
        run: The finished run that has this change; None if there is none.
        value: The metric that this run reached; NaN if there is none.
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
    """What one layer lost in one role. Unknown figures are NaN."""

    name: str
    role: str
    format: str
    figures: dict[str, float]


@dataclass(frozen=True)
class Explanation:
    """Why a run is worse than its baseline. Values and the margin are in the metric's unit as stored; NaN if unknown.

    Attributes:
        lost: By how much the run is worse than its baseline.
        sentences: The explanation, the main reason first.
        epochs: The error of the sum of gradients by epoch, a mean over layers.
        roles: Figures of each role, computed on observed tensors.
        parts: The parts of the error of the sum of gradients: range, additions and mantissa.
        observed: The run whose tensors were observed; None if there is none.
        not_seen: What no run has observed.
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
    """Return the document of a diagnosis."""
    comparison, reason, study = diagnosis.comparison, diagnosis.reason, diagnosis.study
    counterfactual, nonfinite = diagnosis.counterfactual, reason.statistics.nonfinite
    own = None if counterfactual is None else counterfactual.own
    values: dict[str, Any] = {"diagnosis": diagnosis, "study": study, "facts": _facts(diagnosis)}
    fixes = [_line("fix", **values | {"fix": fix, "facts": _fix_facts(own, fix)}) for fix in diagnosis.fixes]
    missing = _render("not observed", missing=_not_observed(diagnosis))
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
        sentences=_render("all", **values, fixes=fixes, not_observed=missing),
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
    """Return by how many test samples a run differs if that is within the error of the test set, else None.

    A share p of n samples has the variance p (1 - p) / n. In one case of twenty, chance alone makes a difference of
    more than twice the root of the sum of both variances.
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
    """Return what the paragraphs of a diagnosis quote, besides the diagnosis itself."""
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
    """Return which reason is given: that of observed tensors, that of sums, that nothing is rounded, or none."""
    cause, counterfactual = diagnosis.reason.cause, diagnosis.counterfactual
    if counterfactual is not None and (
        counterfactual.role != GRADIENT or cause in (Cause.UNSEEN, Cause.EXACT)
    ):
        return "observed" if damage(counterfactual.own, counterfactual.role) >= 1e-3 else ""
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
    """Return the settings of a sum that its cause quotes.

    `range` has the exponents that the format represents and those of the gradients, or is None if they are unknown.
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
    """Return how the figure behind the main reason changed over the epochs; None with fewer than two epochs."""
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
    """Return the parts of the sum's error as shares of it, largest first. A total below 1e-4 is float32's own error."""
    parts = {} if counterfactual is None else counterfactual.parts
    total = sum(parts.values())
    shares = ((name, value / total) for name, value in parts.items() if total > 1e-4)
    return sorted(shares, key=lambda one: -one[1])


def _seeds(diagnosis: Diagnosis) -> dict[str, Any] | None:
    """Return what all seeds of the run's group show together; None for one pair and for the baseline."""
    study, group = diagnosis.study, diagnosis.comparison.group
    if study is None or group is None or diagnosis.is_baseline:
        return None
    gap = study.against_baseline(group)
    if gap is None or gap.pairs < 2:
        return None
    verdict = str(study.judged[group].verdict)
    return {"count": len(group.values), "gap": gap_text(study.metric, gap), "verdict": verdict}


def _saturating_format(config: Mapping[str, Any]) -> str:
    """Return the format if it turns non-finite values into numbers, so that the loss stays finite; else ""."""
    fmt = formats.parse(config["format"])
    overflow = (config.get("sync") or {}).get("overflow")
    return "" if fmt is None or (fmt.has_inf and overflow not in TO_FINITE) else fmt.name


def _fix_facts(own: Forecast | None, fix: Fix) -> dict[str, Any]:
    """Return what the sentence of an observed fix quotes, besides the fix itself."""
    if own is None or fix.change is None or fix.forecast is None:
        return {}
    return {
        "is_error_feedback": is_error_feedback(fix.change),
        "is_unbiased": is_unbiased(fix.change),
        "lost_norm": 10 ** (-number(own.figures(GRADIENT), "snr_db", 0.0) / 20),
        "gains_over_steps": gain_over_steps(own, fix.forecast) > MIN_DAMAGE_GAIN,
    }


def _not_observed(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return what no run has observed, and the command that observes it."""
    config, counterfactual, reason = diagnosis.config, diagnosis.counterfactual, diagnosis.reason
    names = ("script", "layers", "uncovered", "problem", "rounded", "gradients", "command")
    missing: dict[str, Any] = dict.fromkeys(names, ())
    if diagnosis.state is State.FAILED and not rows_of(diagnosis.run):
        return missing  # the error is the whole explanation
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
    """Return what matrix products and optimizer steps round."""
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


def _render(part: str, **values: Any) -> list[str]:
    """Render a part of the template (see templates/diagnosis.j2)."""
    return render_lines("diagnosis.j2", part=part, **values)


def _line(part: str, **values: Any) -> str:
    return " ".join(_render(part, **values))


def worse_groups(study: Study) -> tuple[list[str], Shown] | None:
    """Return introductory sentences and a table with a row for each group that is worse, by one of its runs.

    Groups are in the order of the table of means. None if no group is worse, or no record says why.
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
    """Return whether a group is refuted, or had a run that failed, or has a mean outside of the margin."""
    gap = study.against_baseline(group)
    if gap is None:
        return group.diverged > 0 or group.gave_up > 0
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
    return ", ".join([f"{group.name} {plain(group.strategy)}", *varying])
