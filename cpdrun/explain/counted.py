"""What a run's config, and each mend of it, would do to the tensors that a run observed: the figures that reasons and
mends rest on. A process that has torch computes them (cpdrun.predict.effects).

Error of the sum of gradients, in parts, each what goes where one thing more is undone:

    range      the same mantissa with 8 bits of exponent: no value becomes 0 or overflows
    additions  and partial sums that are not rounded, but only what is sent, and the whole once
    mantissa   what is left
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cpdrun.explain.mends import GRADIENT, Turned, turn
from cpdrun.predict.effects import ask, is_observed
from cpdrun.predict.features import strictness
from cpdrun.predict.forecast import Forecast, Subject, forecast_all
from cpdrun.record import RunDir, read_config
from cpdrun.report.why.standing import RunStanding
from cpdrun.study.axes import formats
from cpdrun.study.metric import Metric
from cpdrun.study.study import Study

OWN, RANGE, ADDITIONS = "as it is", "without limits of range", "and without rounded additions"
USUAL_TOLERANCE = 0.5  # points
ROLES = ("gradient", "weight", "activation", "output_gradient", "update")
Figures = Mapping[str, Any]


@dataclass(frozen=True)
class Effect:
    """Of one config. `roles`: {role: {"all": figures, "layers": {name: figures}}}."""

    roles: Mapping[str, Any]
    forecast: Forecast

    def of(self, role: str) -> Figures:
        return (self.roles.get(role) or {}).get("all") or {}

    def layers(self, role: str) -> Mapping[str, Figures]:
        return (self.roles.get(role) or {}).get("layers") or {}


@dataclass(frozen=True)
class Counted:
    """`mends`: those that can be computed. `parts`: of the sum's error, by cause."""

    observed: RunDir
    own: Effect
    mends: list[tuple[Turned, Effect]]
    parts: dict[str, float]
    said: list[str]

    @property
    def role(self) -> str:
        """The role that loses most, as a share of what it should be."""
        return max(ROLES, key=lambda role: damage(self.own, role))


def observed_for(
    study: Study | None, run: RunDir, stands: RunStanding, config: Mapping[str, Any]
) -> RunDir | None:
    """The run whose observation serves: the baseline's of the same seed, one of another seed, another run of the same
    gradients; last the run itself, which saw what it had made of itself. None where nobody observed."""
    first = [stands.baseline] if stands.baseline is not None else []
    others = (
        [] if study is None else [one for group in study.groups if group.is_baseline for one in group.runs]
    )
    beside = list(run.sweep.prediction.runs())
    fitting = (one for one in (*first, *beside, *others) if is_observed(one) and _is_like(one, config))
    return next(fitting, run if is_observed(run) else None)


def count(
    observed: RunDir, config: Mapping[str, Any], turned: Sequence[Turned], run: RunDir, strict: float
) -> Counted | None:
    """None where what was observed says nothing of this config. `strict`: as `strict_of` has it. Raises
    NoEffectsError."""
    configs = {OWN: dict(config)} | {str(i): dict(one.config) for i, one in enumerate(turned)}
    configs |= {name: one.config for name, one in _undone(config).items()}
    found = ask(observed, configs, run.sweep)
    effects = {
        name: _effect(name, given, configs[name], strict)
        for name, given in found.items()
        if given.get("role")
    }
    if OWN not in effects:
        return None
    mends = [(one, effects[str(i)]) for i, one in enumerate(turned) if str(i) in effects]
    return Counted(observed, effects[OWN], mends, _parts(effects), list(found[OWN].get("said") or ()))


def damage(effect: Effect, role: str) -> float:
    """1 less the cosine with what should be, 0..1; of updates the share that is lost. 0 where nothing is known."""
    figures = effect.of(role)
    if role == "update":
        return number(figures, "update_lost", 0.0)
    if role == GRADIENT:
        return 1 - number(figures, "cosine", 0.0) if "cosine" in figures else 0.0
    noise = 10 ** (-number(figures, "snr_db", 200.0) / 10)
    return 1 - 1 / math.sqrt(1 + noise)


def number(figures: Figures, name: str, default: float = math.nan) -> float:
    value = figures.get(name)
    return float(value) if isinstance(value, int | float) else default


def worst_layers(effect: Effect, role: str, most: int = 3) -> list[tuple[str, Figures]]:
    """Those that lose most, the worst first: by the error of their sum, by signal to noise, by updates lost."""
    key, sign = {"gradient": ("sum_error", -1), "update": ("update_lost", -1)}.get(role, ("snr_db", 1))
    known = [(name, of) for name, of in effect.layers(role).items() if math.isfinite(number(of, key))]
    return sorted(known, key=lambda one: sign * number(one[1], key))[:most]


def _undone(config: Mapping[str, Any]) -> dict[str, Turned]:
    """The configs that part the error of a sum; none for a format that has no exponent of its own."""
    fmt = formats.parse(config["format"])
    if fmt is None or fmt.exponent_bits is None or fmt.has_scales or config["world_size"] < 2:
        return {}
    wide = {"format": f"e8m{fmt.code_bits - fmt.is_signed - fmt.exponent_bits}", "aps": False}
    exact = wide | {"sync.requantise": "once", "sync.kahan": False}
    made = {RANGE: turn(config, "", wide), ADDITIONS: turn(config, "", exact)}
    return {name: one for name, one in made.items() if one is not None}


def _parts(effects: Mapping[str, Effect]) -> dict[str, float]:
    """Differences below 0, of errors that undo each other, count as none."""
    errors = [
        number(effects[name].of(GRADIENT), "sum_error") for name in (OWN, RANGE, ADDITIONS) if name in effects
    ]
    if len(errors) < 3 or not all(map(math.isfinite, errors)):
        return {}
    own, wide, exact = errors
    return {"range": max(0.0, own - wide), "additions": max(0.0, wide - exact), "mantissa": exact}


def strict_of(study: Study | None, stands: RunStanding) -> float:
    """Of the tolerance that the forecast is of: that of the study, or else half a point of an accuracy."""
    if study is None:
        return strictness(Metric("test_accuracy"), USUAL_TOLERANCE)
    classes = stands.group.num_classes if stands.group is not None else math.nan
    return strictness(study.metric, study.tolerance or USUAL_TOLERANCE, classes)


def _effect(name: str, given: Mapping[str, Any], config: Mapping[str, Any], strict: float) -> Effect:
    forecasts = forecast_all([Subject(name, name, 0.0, config)], {name: given}, strict)
    return Effect(given["role"], forecasts[name])


def _is_like(one: RunDir, config: Mapping[str, Any]) -> bool:
    """Return whether a run has the settings of `config` that determine gradients, such as workers, model and data."""
    try:
        other = read_config(one)
    except (OSError, ValueError):
        return False
    keys = ("world_size", "batch_size", "model", "data", "norm", "task", "script")
    return all(other.get(key) == config.get(key) for key in keys)
