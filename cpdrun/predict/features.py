"""The few numbers that the model looks at, each a loss: what a format takes from the tensors of an observed run.

All are of effects alone (cpdrun.train.observe.judged.effects), never of how training ended. `x` are shares or ratios; a
share of nothing lost is as good as one of FLOOR, for no outcome tells them apart.

`of layers`: log10 of the odds of d = 1 - cos, d / (1 - d): what of a step goes elsewhere. The cosine is that of the
    workers' summed gradient with the exact one, times those of what its products read with what they should read:
    output gradients, activations, weights. A weight's gradient is linear in each, and errors of different roles are
    independent. Each is a mean over layers: one whose gradients vanish is not trained, however short they are beside
    others. What vanished altogether points nowhere: d = 1.
`forward`: the same of weights and activations alone. It counts beside their part in `of layers` because no later step
    makes up for it: what is rounded so is the function itself that is trained and tested.
`biased`: log10 of the largest bias of a role, the mean error of its magnitudes as a share of their mean: what steps do
    not average away, as they do what is rounded stochastically.
`saturated`: log10 of the share of gradients beyond the format's largest value.
`update lost`: the share of the weights' changes that leave the weight as it was.
`strictness`: -log10 of the tolerance as a share of the metric's range, from a guess's value to a perfect one's: the
    same loss is enough at two points and not at half a point.

A number that the effects do not have counts as no loss; `not_seen` names what is left out so.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from statistics import fmean
from typing import Any

from cpdrun.study.metric import Metric
from cpdrun.study.runs.learnt import guess

FLOOR = 1e-4  # of shares
CERTAIN = 0.999  # a share above it is as bad as one of 1
LEAST_BIAS = 1e-3
GRADIENT, UPDATE = "gradient", "update"
FORWARD = ("weight", "activation")
OF_PRODUCTS = (*FORWARD, "output_gradient")
ALL = (GRADIENT, *OF_PRODUCTS)
OF_KEYS = {"weights": "weight", "activations": "activation", "errors": "output_gradient"}
SUMS = ("cpdrun.comm.AllReduceSync", "cpdrun.comm.sync.AllReduceSync", "cpdrun.comm.sync.decoded")

Part = Mapping[str, float | None]


def strictness(metric: Metric, tolerance: float, classes: float = math.nan) -> float:
    """Return the strictness of a margin, in the unit in which the metric is shown.

    `classes`: the number of classes of the task, which gives the value of a guess. Without it the metric's range is
    taken to be 1. A margin that is not known yet (NaN) counts as 2 % of the range.
    """
    if math.isnan(tolerance):
        return -math.log10(0.02)
    by_chance = 1.0 if metric.is_fraction else abs(guess(metric, classes))
    return -math.log10(tolerance / metric.scale / (by_chance if 0 < by_chance < math.inf else 1.0))


def features(effects: Mapping[str, Any], strict: float) -> dict[str, float]:
    """Finite numbers by name, the same names for every config; `strict`: as `strictness` has it."""
    whole = _all(effects, GRADIENT)
    biases = [abs(_number(_all(effects, role), "bias", 0.0)) for role in ALL]
    return {
        "of layers": _log_odds(_together(_misdirected(effects, role) for role in ALL)),
        "forward": _log_odds(_together(_misdirected(effects, role) for role in FORWARD)),
        "biased": math.log10(max(LEAST_BIAS, *biases)),
        "saturated": _log(_number(whole, "saturation", 0.0)),
        "update lost": _number(_all(effects, UPDATE), "update_lost", 0.0),
        "strictness": strict,
    }


def shown(effects: Mapping[str, Any]) -> dict[str, float | None]:
    """What a table shows of them: of gradients between workers and, of the update, what is lost."""
    whole = _all(effects, GRADIENT)
    keys = ("underflow", "saturation", "snr_db", "bias", "cosine", "sum_error", "growth")
    return {key: whole.get(key) for key in keys} | {
        "update_lost": _all(effects, UPDATE).get("update_lost", whole.get("update_lost"))
    }


def not_seen(effects: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[str]:
    """What this config does that its effects say nothing of: in their own words, or in ours where they have none."""
    if said := effects.get("said"):
        yield from said
        return
    whole, sync = _all(effects, GRADIENT), str(config["sync"].get("_target_"))
    is_known = _number(whole, "sum_error", None) is not None or _is_lost(whole)
    if config["world_size"] > 1 and config["format"] != "fp32" and not is_known:
        yield f"sums of gradients in {config['format']}"
    if config["world_size"] > 1 and not sync.startswith(SUMS):
        yield f"what sync {sync.rsplit('.', 1)[-1]} does beside rounding"
    elif config["sync"].get("error_feedback"):
        yield "what error feedback gives back"
    for role in _rounded_in_products(config):
        if _number(_all(effects, role), "snr_db", None) is None:
            yield f"rounding of products' {role.replace('_', ' ')}s"


def _rounded_in_products(config: Mapping[str, Any]) -> Iterator[str]:
    precision = config.get("precision")
    if not isinstance(precision, Mapping):
        return
    named = {role for key, role in OF_KEYS.items() if precision.get(key, "fp32") != "fp32"}
    rules = precision.get("rules")
    for rule in rules if isinstance(rules, list) else ():
        roles = rule.get("role") if isinstance(rule, Mapping) else None
        each = OF_PRODUCTS if roles is None else roles if isinstance(roles, list) else [roles]
        named |= {"activation" if role == "input" else role for role in each}
    yield from (role for role in OF_PRODUCTS if role in named)


def _all(effects: Mapping[str, Any], role: str) -> Part:
    return (_roles(effects).get(role) or {}).get("all") or {}


def _layers(effects: Mapping[str, Any], role: str) -> Iterator[Part]:
    yield from ((_roles(effects).get(role) or {}).get("layers") or {}).values()


def _roles(effects: Mapping[str, Any]) -> Mapping[str, Any]:
    return effects.get("role", effects)


def _number(part: Part, key: str, default: Any) -> Any:
    value = part.get(key)
    return value if isinstance(value, int | float) and math.isfinite(value) else default


def _is_lost(part: Part) -> bool:
    """Whether nothing is left of it: it has no direction then. Of what was zero already there is no signal to noise."""
    return "cosine" in part and part["cosine"] is None and part.get("snr_db", 0.0) is not None


def _misdirected(effects: Mapping[str, Any], role: str) -> float:
    """The mean over layers of what of each one points elsewhere; of a role without layers the whole's."""
    layers = list(_layers(effects, role)) or [_all(effects, role)]
    return fmean(_elsewhere(part) for part in layers)


def _elsewhere(part: Part) -> float:
    cosine = _number(part, "cosine", 0.0 if _is_lost(part) else 1.0)
    return min(1.0, max(0.0, 1 - cosine))


def _together(shares: Iterable[float]) -> float:
    """Of independent errors: cosines multiply."""
    return 1 - math.prod(1 - share for share in shares)


def _log_odds(share: float) -> float:
    share = min(CERTAIN, max(FLOOR, share))
    return math.log10(share / (1 - share))


def _log(share: float) -> float:
    return math.log10(max(FLOOR, share))
