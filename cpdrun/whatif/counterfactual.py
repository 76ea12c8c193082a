"""Simulate a run's configuration, and changes of it, on observed tensors.

`cpdrun.whatif.effects` computes the effects in a process that has torch. The error of the sum of gradients is split
into three parts by removing two causes, one after the other:

    range      The reduction of the error with 8 exponent bits and the same mantissa bits, so that practically no value
               underflows or overflows.
    additions  The further reduction if partial sums are not rounded either. Only sent values and the final sum are.
    mantissa   The remaining error.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cpdrun.record import RunDir, read_config
from cpdrun.study import formats
from cpdrun.study.metric import Metric
from cpdrun.study.run_comparison import RunComparison
from cpdrun.study.study import Study
from cpdrun.whatif.changes import Change, change
from cpdrun.whatif.damage import GRADIENT, UPDATE, number, strictness
from cpdrun.whatif.effects import is_observed
from cpdrun.whatif.forecast import Forecast, Subject, what_if

# The names of the simulated configurations: the run's own, and those with one and with both causes removed.
OWN, RANGE, ADDITIONS = "as it is", "without limits of range", "and without rounded additions"
USUAL_TOLERANCE = 0.5  # the default margin, in percentage points of accuracy
ROLES = ("gradient", "weight", "activation", "output_gradient", "update")
Figures = Mapping[str, Any]


@dataclass(frozen=True)
class Counterfactual:
    """The effects of a run's configuration and of its changes on observed tensors.

    Attributes:
        observed: The observed run.
        own: The forecast for the run's own configuration.
        changes: The changes that could be simulated, with their forecasts.
        parts: The parts of the error of the sum of gradients (see the module), keyed by name. Empty if unknown.
        uncovered: A phrase for each part of the configuration that the simulation does not cover.
    """

    observed: RunDir
    own: Forecast
    changes: list[tuple[Change, Forecast]]
    parts: dict[str, float]
    uncovered: list[str]

    @property
    def role(self) -> str:
        """The role whose tensors have the largest damage."""
        return max(ROLES, key=lambda role: role_damage(self.own, role))


def observed_run_for(
    study: Study | None, run: RunDir, comparison: RunComparison, config: Mapping[str, Any]
) -> RunDir | None:
    """Select the observed run on whose tensors a configuration is simulated.

    The baseline run of the comparison is preferred, then observed runs of earlier predictions, then other baseline
    runs. They must have the same model, data, and workers. The run itself comes last, because its own rounding changed
    its tensors. Returns None if no such run was observed.
    """
    first = [comparison.baseline] if comparison.baseline is not None else []
    others = (
        [] if study is None else [one for group in study.groups if group.is_baseline for one in group.runs]
    )
    predicted = list(run.sweep.prediction.runs())
    fitting = (one for one in (*first, *predicted, *others) if is_observed(one) and _is_like(one, config))
    return next(fitting, run if is_observed(run) else None)


def compute_counterfactual(
    observed: RunDir, config: Mapping[str, Any], changes: Sequence[Change], run: RunDir, strict: float
) -> Counterfactual | None:
    """Simulate a configuration and its changes on the tensors of an observed run.

    The sweep of `run`, which is diagnosed, caches the effects. Returns None if the configuration cannot be simulated.

    Raises:
        NoEffectsError: The effects cannot be computed.
    """
    configs = {OWN: config} | {str(i): one.config for i, one in enumerate(changes)} | _undone(config)
    subjects = [Subject(name, name, 0.0, dict(one)) for name, one in configs.items()]
    found = what_if([(observed, subjects)], strict, sweep=run.sweep)
    known = {name: forecast for name, forecast in found.items() if forecast.effects["role"]}
    if OWN not in known:
        return None
    changed = [(one, known[str(i)]) for i, one in enumerate(changes) if str(i) in known]
    uncovered = list(known[OWN].effects["uncovered"])
    return Counterfactual(observed, known[OWN], changed, _parts(known), uncovered)


def role_damage(forecast: Forecast, role: str) -> float:
    """Return the damage to the tensors of a role, in [0, 1].

    For updates, this is the share that leaves the weight unchanged. For other roles, it is 1 minus the cosine between
    the exact and the rounded tensor. Unknown damage is 0.
    """
    figures = forecast.figures(role)
    if role == UPDATE:
        return number(figures, "update_lost", 0.0)
    if role == GRADIENT:
        return 1 - number(figures, "cosine", 0.0) if "cosine" in figures else 0.0
    noise = 10 ** (-number(figures, "snr_db", 200.0) / 10)
    return 1 - 1 / math.sqrt(1 + noise)


def worst_layers(forecast: Forecast, role: str, most: int = 3) -> list[tuple[str, Figures]]:
    """Return the `most` layers with the largest errors, worst first, with their statistics.

    Layers are compared by `sum_error` for gradients, `update_lost` for updates, and `snr_db` for other roles. Layers
    without this statistic are left out.
    """
    key, sign = {GRADIENT: ("sum_error", -1), UPDATE: ("update_lost", -1)}.get(role, ("snr_db", 1))
    known = [each for each in forecast.layers(role).items() if math.isfinite(number(each[1], key))]
    return sorted(known, key=lambda one: sign * number(one[1], key))[:most]


def strictness_for(study: Study | None, comparison: RunComparison) -> float:
    """Return the strictness of the study's margin. The default margin is USUAL_TOLERANCE."""
    if study is None:
        return strictness(Metric("test_accuracy"), USUAL_TOLERANCE)
    classes = comparison.group.num_classes if comparison.group is not None else math.nan
    return strictness(study.metric, study.tolerance or USUAL_TOLERANCE, classes)


def _undone(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the configs that remove causes of error, keyed by RANGE and ADDITIONS.

    There are none if the format has scales or no exponent bits, or if there is only one worker.
    """
    fmt = formats.parse(config["format"])
    if fmt is None or fmt.exponent_bits is None or fmt.has_scales or config["world_size"] < 2:
        return {}
    wide = {"format": f"e8m{fmt.code_bits - fmt.is_signed - fmt.exponent_bits}", "aps": False}
    exact = wide | {"sync.requantise": "once", "sync.kahan": False}
    changes = {RANGE: change(config, "", wide), ADDITIONS: change(config, "", exact)}
    return {name: one.config for name, one in changes.items() if one is not None}


def _parts(forecasts: Mapping[str, Forecast]) -> dict[str, float]:
    """Split the error of the sum of gradients; empty if unknown.

    Errors may cancel, which makes a part negative. It then counts as 0.
    """
    errors = [
        number(forecasts[name].figures(GRADIENT), "sum_error")
        for name in (OWN, RANGE, ADDITIONS)
        if name in forecasts
    ]
    if len(errors) < 3 or not all(map(math.isfinite, errors)):
        return {}
    own, wide, exact = errors
    return {"range": max(0.0, own - wide), "additions": max(0.0, wide - exact), "mantissa": exact}


def _is_like(one: RunDir, config: Mapping[str, Any]) -> bool:
    """Return True if a run and a config have the same model, data, task, and number of workers."""
    try:
        other = read_config(one)
    except (OSError, ValueError):
        return False
    keys = ("world_size", "batch_size", "model", "data", "norm", "task", "script")
    return all(other.get(key) == config.get(key) for key in keys)
