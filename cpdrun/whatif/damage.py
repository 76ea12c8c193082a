"""Reduce rounding errors to two features: damage in the layers and forward.

A feature is log10(d / (1 - d)), where d = 1 - cosine is the share of a tensor's direction that rounding destroys. d = 1
for a tensor that vanishes completely.

- `layers` covers the summed gradients, the output gradients, the activations, and the weights. A weight's gradient is
  linear in each of them.
- `forward` covers the weights and activations again. They count twice because their errors change the function that is
  trained and tested, and no later step makes up for that.

The cosine of a role is an unweighted mean over layers, because a layer whose gradients vanish is no longer trained, no
matter how small its gradients are. The cosines of the roles are multiplied, as if their errors were independent.

A missing or infinite cosine counts as no damage; `uncovered_parts` reports it. d is limited to [SMALLEST_SHARE,
LARGEST_SHARE], which limits a feature to about [-4, 3].
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from cpdrun.study.metric import Metric, guess

SMALLEST_SHARE = 1e-4
LARGEST_SHARE = 0.999
UNKNOWN_MARGIN = 0.02  # the assumed margin if it is unknown, as a share of the metric's range
GRADIENT, UPDATE = "gradient", "update"
FORWARD = ("weight", "activation")
PRODUCTS = (*FORWARD, "output_gradient")
# The keys of `precision` that set the formats of the roles.
PRECISION_KEYS = {"weight": "weights", "activation": "activations", "output_gradient": "errors"}
EMULATED_SUMS = ("cpdrun.comm.AllReduceSync", "cpdrun.comm.sync.AllReduceSync", "cpdrun.comm.sync.decoded")

Figures = Mapping[str, float | None]


@dataclass(frozen=True)
class Damage:
    """The damage of one candidate, as log10(d / (1 - d)) (see the module).

    Attributes:
        layers: The damage in the layers.
        forward: The damage in the forward pass.
    """

    layers: float
    forward: float

    @property
    def total(self) -> float:
        return self.layers + self.forward


def damage(effects: Mapping[str, Any]) -> Damage:
    """Return the damage of a candidate from its effects."""
    return Damage(
        layers=_log_odds(_combined(_lost_direction(effects, role) for role in (GRADIENT, *PRODUCTS))),
        forward=_log_odds(_combined(_lost_direction(effects, role) for role in FORWARD)),
    )


def number(figures: Mapping[str, Any], name: str, default: float = math.nan) -> float:
    """Return a statistic, or `default` if it is missing, null, or not finite."""
    value = figures.get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else default


def strictness(metric: Metric, tolerance: float, classes: float = math.nan) -> float:
    """Return -log10(margin / range of the metric), the strictness of a margin.

    The range extends from random guessing with `classes` classes to a perfect value. It is 1 for a fraction, and if the
    value of random guessing is unknown. `tolerance` is the margin in the displayed unit; NaN means UNKNOWN_MARGIN of
    the range.
    """
    if math.isnan(tolerance):
        return -math.log10(UNKNOWN_MARGIN)
    value_range = 1.0 if metric.is_fraction else abs(guess(metric, classes))
    return -math.log10(tolerance / metric.scale / (value_range if 0 < value_range < math.inf else 1.0))


def shown_effects(effects: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the statistics that tables show: gradient errors and lost updates. Undefined statistics are None."""
    gradient = _figures(effects, GRADIENT)
    keys = ("underflow", "saturation", "snr_db", "bias", "cosine", "sum_error", "growth")
    lost = _figures(effects, UPDATE).get("update_lost", gradient.get("update_lost"))
    return {**{key: gradient.get(key) for key in keys}, "update_lost": lost}


def uncovered_parts(effects: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the parts of the config that were not simulated, as phrases.

    The phrases come from the effects if they contain any, otherwise from the config.
    """
    if parts := effects.get("uncovered"):
        yield from parts
        return
    gradient, sync = _figures(effects, GRADIENT), str(config["sync"].get("_target_"))
    is_known = math.isfinite(number(gradient, "sum_error")) or _has_vanished(gradient)
    if config["world_size"] > 1 and config["format"] != "fp32" and not is_known:
        yield f"sums of gradients in {config['format']}"
    if config["world_size"] > 1 and not sync.startswith(EMULATED_SUMS):
        yield f"effects of sync {sync.rsplit('.', 1)[-1]} other than rounding"
    elif config["sync"].get("error_feedback"):
        yield "error that error feedback returns in later steps"
    rounded = _rounded_roles(config)
    for role in (role for role in PRODUCTS if role in rounded):
        if not math.isfinite(number(_figures(effects, role), "snr_db")):
            yield f"rounding of the {role.replace('_', ' ')}s of matrix products"


def _rounded_roles(config: Mapping[str, Any]) -> set[str]:
    """Return the roles that the config's precision rounds."""
    precision = config.get("precision")
    if not isinstance(precision, Mapping):
        return set()
    roles = {role for role, key in PRECISION_KEYS.items() if precision.get(key, "fp32") != "fp32"}
    rules = precision.get("rules")
    for rule in rules if isinstance(rules, list) else ():
        given = rule.get("role") if isinstance(rule, Mapping) else None
        each = PRODUCTS if given is None else given if isinstance(given, list) else [given]
        roles |= {"activation" if role == "input" else role for role in each}
    return roles


def _role(effects: Mapping[str, Any], role: str) -> Mapping[str, Any]:
    return effects["role"].get(role) or {}


def _figures(effects: Mapping[str, Any], role: str) -> Figures:
    return _role(effects, role).get("all") or {}


def _has_vanished(figures: Figures) -> bool:
    """Return True if rounding turned a nonzero tensor into zeros.

    The cosine is then undefined, but the signal-to-noise ratio is not. A tensor of zeros has neither.
    """
    return "cosine" in figures and figures["cosine"] is None and figures.get("snr_db", 0.0) is not None


def _lost_direction(effects: Mapping[str, Any], role: str) -> float:
    """Return the mean of 1 - cosine over a role's layers. Without layers, return 1 - cosine of the whole role."""
    layers = (_role(effects, role).get("layers") or {}).values()
    cosines = [
        number(figures, "cosine", 0.0 if _has_vanished(figures) else 1.0)
        for figures in (layers or [_figures(effects, role)])
    ]
    return fmean(min(1.0, max(0.0, 1 - cosine)) for cosine in cosines)


def _combined(shares: Iterable[float]) -> float:
    return 1 - math.prod(1 - share for share in shares)


def _log_odds(share: float) -> float:
    share = min(LARGEST_SHARE, max(SMALLEST_SHARE, share))
    return math.log10(share / (1 - share))
