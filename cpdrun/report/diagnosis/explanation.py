"""The document of `cpdrun report`: a diagnosis as plain data, with its sentences."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from cpdrun.report.diagnosis.sentences import fix_text, not_observed, sentences
from cpdrun.study.gradient_sums import Reason
from cpdrun.whatif.counterfactual import Counterfactual, number
from cpdrun.whatif.diagnosis import Diagnosis, Fix

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
        sentences=sentences(diagnosis),
        layers=[
            *_recorded_layers(reason),
            *([] if counterfactual is None else _observed_layers(counterfactual)),
        ],
        epochs=reason.statistics.by_epoch(lambda epoch: epoch.sum_error),
        first_nonfinite_epoch=None if nonfinite is None else nonfinite.epoch,
        fixes=[_fix(diagnosis, fix) for fix in diagnosis.fixes],
        roles={} if own is None else {role: _figures(own.figures(role)) for role in own.effects["role"]},
        parts={} if counterfactual is None else counterfactual.parts,
        observed=None if counterfactual is None else counterfactual.observed.name,
        not_seen=not_observed(diagnosis),
    )


def _fix(diagnosis: Diagnosis, fix: Fix) -> ExplainedFix:
    neighbor = fix.neighbor
    run, value = (None, math.nan) if neighbor is None else (neighbor.run.name, neighbor.comparison.value)
    text = fix_text(diagnosis, fix)
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
