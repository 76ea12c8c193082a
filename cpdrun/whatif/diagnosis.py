"""Diagnose why a run is worse than its baseline, and find fixes.

The effect of a change is measured in a finished run, simulated on observed tensors, or estimated from recorded
exponents. `cpdrun.report.diagnosis` renders the diagnosis.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cpdrun.config.script import is_script
from cpdrun.errors import UserError
from cpdrun.record import Result, RunDir, State, SweepDir, garbage, read_config, state_of
from cpdrun.study import ReportError
from cpdrun.study.gradient_sums import (
    Cause,
    Reason,
    find_reason,
    gradient_statistics,
    longest_chain,
    represented_binades,
    workers_per_scale,
)
from cpdrun.study.reader import read_study
from cpdrun.study.records import rows_of
from cpdrun.study.run_comparison import (
    Neighbor,
    RunComparison,
    RunVerdict,
    compare_run,
    find_neighbors,
    is_improvement,
)
from cpdrun.study.study import Study
from cpdrun.whatif.changes import Change, changes_of_products, changes_of_sums
from cpdrun.whatif.counterfactual import (
    Counterfactual,
    compute_counterfactual,
    observed_run_for,
    role_damage,
    strictness_for,
)
from cpdrun.whatif.damage import GRADIENT, UPDATE, number
from cpdrun.whatif.effects import NoEffectsError
from cpdrun.whatif.forecast import Forecast

MEASURED, OBSERVED, ESTIMATED = "measured", "observed", "estimated"
MAX_FIXES = 8
# A fix must reduce the damage or the logit of the chance of failing by more than this.
MIN_DAMAGE_GAIN = 0.02
MIN_LOGIT_GAIN = 0.1
SMALLEST_GAIN = 1e-6  # sorts a fix last
# With an estimated fix, the format must represent this many of the powers of two that a layer's gradients span. With 8
# workers, e3m0 with APS represents two of them and trains as well as fp32.
MIN_BINADES = 2
REPRESENTED = "powers of two represented of those that a layer's gradients span"
IN_SERIES = "rounded additions in series"
_ALONE = RunComparison(RunVerdict.OPEN, math.nan, None, math.nan, same_seed=False)


class CannotDiagnoseError(UserError):
    """The run has not begun, or its record cannot be read."""


@dataclass(frozen=True)
class Fix:
    """A change of the configuration that reduces the gap to the baseline.

    Attributes:
        words: The command-line overrides, such as "aps=true".
        basis: How the effect is known: `measured` in a finished run with the same seed, `observed` (simulated on
            observed tensors), or `estimated` from recorded exponents.
        figure: The statistic that improves: a share, a ratio, or a count.
        before: The statistic without the change; NaN if unknown.
        after: The statistic with the change; NaN if unknown.
        neighbor: The finished run with the change, for a measured fix.
        change: The change, for an observed or estimated fix.
        forecast: The forecast with the change, for an observed fix.
        span: The number of powers of two that a layer's gradients span, for an estimated fix of the format's range.
    """

    words: tuple[str, ...]
    basis: str
    figure: str
    before: float
    after: float
    neighbor: Neighbor | None = None
    change: Change | None = None
    forecast: Forecast | None = None
    span: float = math.nan


@dataclass(frozen=True)
class Diagnosis:
    """A run's comparison with its baseline, the causes of a gap, and fixes.

    Attributes:
        run: The run.
        config: The configuration of the run.
        state: The state of the run.
        result: The result of the run; None if there is none.
        study: The study of the sweep; None if no run has finished or the runs cannot be compared.
        comparison: The comparison of the run with its baseline.
        reason: The main cause of errors in the sums of gradients.
        counterfactual: The simulated effects of the configuration and of its changes; None if unknown.
        problem: Why the simulation failed, or "".
        fixes: The fixes, best first.
    """

    run: RunDir
    config: Mapping[str, Any]
    state: State
    result: Result | None
    study: Study | None
    comparison: RunComparison
    reason: Reason
    counterfactual: Counterfactual | None
    problem: str
    fixes: list[Fix]

    @property
    def is_baseline(self) -> bool:
        return self.comparison.verdict is RunVerdict.BASELINE


def diagnose(run: RunDir) -> Diagnosis:
    """Diagnose a run.

    Raises:
        CannotDiagnoseError: The run has not begun, or its record cannot be read.
    """
    config, state = _read(run)
    reason = find_reason(gradient_statistics(rows_of(run)))
    study = _read_study(run.sweep)
    comparison = compare_run(study, run) if study is not None else _ALONE
    counterfactual, problem = _counterfactual(study, run, comparison, config, reason)
    fixes = _measured_fixes(study, run, comparison, reason)
    fixes += _computed_fixes(config, reason, counterfactual, {fix.words for fix in fixes})
    is_worse = comparison.verdict is RunVerdict.WORSE
    if not is_worse and (comparison.verdict is not RunVerdict.OPEN or is_script(config)):
        fixes = [fix for fix in fixes if fix.basis == MEASURED]
    return Diagnosis(
        run=run,
        config=config,
        state=state,
        result=run.result(),
        study=study,
        comparison=comparison,
        reason=reason,
        counterfactual=counterfactual,
        problem=problem,
        fixes=fixes[:MAX_FIXES],
    )


def _read(run: RunDir) -> tuple[dict[str, Any], State]:
    try:
        config, state = read_config(run), state_of(run)
    except (OSError, ValueError) as error:
        raise CannotDiagnoseError(f"{run.name}: {run.config.name} cannot be read: {error}") from None
    if state is State.PENDING:
        raise CannotDiagnoseError(f"{run.name} has not begun: there is nothing to explain yet")
    if state is State.DONE and run.result() is None:
        raise CannotDiagnoseError(garbage(run))
    return config, state


def _read_study(sweep: SweepDir) -> Study | None:
    """Return the study of a sweep, if its runs can be compared."""
    try:
        return read_study([sweep])
    except ReportError:
        return None


def _measured_fixes(study: Study | None, run: RunDir, comparison: RunComparison, reason: Reason) -> list[Fix]:
    """Return a fix for each neighbor that is better than the run."""
    if study is None or comparison.verdict is RunVerdict.BASELINE:
        return []
    before = reason.statistics.sum_error
    return [
        Fix(tuple(one.words), MEASURED, "sum_error", before, one.statistics.sum_error, neighbor=one)
        for one in find_neighbors(study, run, comparison)
        if is_improvement(study, comparison, one)
    ]


def _computed_fixes(
    config: dict[str, Any],
    reason: Reason,
    counterfactual: Counterfactual | None,
    measured: set[tuple[str, ...]],
) -> list[Fix]:
    """Return fixes that no finished run has measured: simulated if possible, otherwise estimated."""
    if counterfactual is not None:
        return [fix for fix in _observed_fixes(counterfactual) if fix.words not in measured]
    if not reason.statistics.layers or is_script(config):
        return []
    changes = [change for change in changes_of_sums(config) if change.words not in measured]
    return _estimated_fixes(reason, config, changes)


def _counterfactual(
    study: Study | None, run: RunDir, comparison: RunComparison, config: dict[str, Any], reason: Reason
) -> tuple[Counterfactual | None, str]:
    """Simulate the run's configuration and changes of it on observed tensors.

    Returns:
        The effects, or None for a baseline and if no run was observed. Then the error message if the simulation failed,
        or "".
    """
    if comparison.verdict is RunVerdict.BASELINE:
        return None, ""
    observed = observed_run_for(study, run, comparison, config)
    if observed is None:
        return None, ""
    changes = [*changes_of_sums(config, _layers_to_spare(reason)), *changes_of_products(config)]
    strict = strictness_for(study, comparison)
    try:
        return compute_counterfactual(observed, config, changes, run, strict), ""
    except (NoEffectsError, OSError) as error:
        return None, str(error)


def _layers_to_spare(reason: Reason) -> list[str]:
    """Return the two layers with the largest errors, to try them in fp32.

    If all errors are equal, return the first and the last layer.
    """
    layers = reason.statistics.layers
    if len({(one.sum_error, one.underflow) for one in layers}) == 1:
        weights = [one.name for one in layers if one.name.endswith("weight")] or [one.name for one in layers]
        return list(dict.fromkeys([weights[0], weights[-1]]))
    return [one.name for one in reason.worst[:2]]


def _observed_fixes(counterfactual: Counterfactual) -> list[Fix]:
    """Return the simulated changes that are improvements, best first."""
    own = counterfactual.own
    gains = [(_gain(own, *changed), *changed) for changed in counterfactual.changes]
    better = sorted((each for each in gains if each[0] > 0), key=lambda each: -each[0])
    return [_observed_fix(own, change, forecast) for _, change, forecast in better]


def _estimated_fixes(reason: Reason, config: Mapping[str, Any], changes: Sequence[Change]) -> list[Fix]:
    """Return the changes that are improvements by the recorded exponents, best first."""
    fixes = [fix for change in changes for fix in _estimate(reason, config, change)]
    return sorted(fixes, key=_ratio, reverse=True)


def is_error_feedback(change: Change) -> bool:
    """Return True if the change turns on error feedback."""
    return any(word.startswith("sync.error_feedback") for word in change.words)


def is_unbiased(change: Change) -> bool:
    """Return True if the change turns on stochastic rounding of sums."""
    return "sync.rounding=stochastic" in change.words


def gain_over_steps(own: Forecast, forecast: Forecast) -> float:
    """Return how much `steps_cosine` grows from `own` to `forecast`.

    `steps_cosine` is the cosine between the computed and the exact gradients, each summed over the observed steps.
    """
    before, after = (number(each.figures(GRADIENT), "steps_cosine", 0.0) for each in (own, forecast))
    return after - before


def _gain(own: Forecast, change: Change, forecast: Forecast) -> float:
    """Return the gain of a change, or 0 if it is too small.

    The gain is the reduction of the damage. For changes of gradients, the reduction of the logit counts if it is
    larger.
    """
    if is_error_feedback(change):
        # Few steps were observed. Error feedback may improve others, so it stays as the last fix.
        gain = gain_over_steps(own, forecast)
        return max(gain, SMALLEST_GAIN) if role_damage(own, GRADIENT) > MIN_DAMAGE_GAIN else 0.0
    of_forecast = own.logit - forecast.logit if change.role == GRADIENT else 0.0
    gain = role_damage(own, change.role) - role_damage(forecast, change.role)
    if is_unbiased(change):
        gain = max(gain, gain_over_steps(own, forecast))
    return max(of_forecast, gain) if gain > MIN_DAMAGE_GAIN or of_forecast > MIN_LOGIT_GAIN else 0.0


def _observed_fix(own: Forecast, change: Change, forecast: Forecast) -> Fix:
    if is_error_feedback(change):
        figure, role = "steps_cosine", GRADIENT
    else:
        figure, role = {GRADIENT: "cosine", UPDATE: "update_lost"}.get(change.role, "snr_db"), change.role
    unknown = 0.0 if role == GRADIENT else math.nan
    before, after = (number(each.figures(role), figure, unknown) for each in (own, forecast))
    return Fix(change.words, OBSERVED, figure, before, after, change=change, forecast=forecast)


def _estimate(reason: Reason, config: Mapping[str, Any], change: Change) -> Iterator[Fix]:
    before, after = _represented(reason, config), _represented(reason, change.config)
    if before is not None and after is not None and after[0] >= max(MIN_BINADES, before[0] + 0.5):
        yield Fix(change.words, ESTIMATED, REPRESENTED, before[0], after[0], change=change, span=after[1])
        return
    was, now = (longest_chain(each["sync"], each["world_size"]) for each in (config, change.config))
    if reason.cause is Cause.ADDITIONS and was is not None and now is not None and now < was:
        yield Fix(change.words, ESTIMATED, IN_SERIES, was, now, change=change)


def _represented(reason: Reason, config: Mapping[str, Any]) -> tuple[float, float] | None:
    workers = workers_per_scale(config["sync"], config["world_size"])
    return represented_binades(reason.statistics, config["format"], workers, scaled=config["aps"])


def _ratio(fix: Fix) -> float:
    """Return the factor by which a fix improves its statistic; 0 if unknown."""
    if not (math.isfinite(fix.before) and math.isfinite(fix.after)):
        return 0.0
    low, high = sorted((fix.before, fix.after))
    return (high + 1) / (low + 1)
