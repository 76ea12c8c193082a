"""The few numbers that the model looks at, each a loss: what a format takes from the tensors of an observed run.

All are of effects alone (cpdrun.train.observe.effects), never of how training ended. `x` are shares or ratios; a share
of nothing lost is as good as one of FLOOR, for no outcome tells them apart.

`misdirected`: log10 of the odds of d = 1 - cos of the summed gradient with the exact one, d / (1 - d), all layers
    together: what of the step goes elsewhere. A sum that vanished altogether points nowhere: d = 1.
`of layers`: the same of the mean over layers of each layer's d: a layer whose gradients vanish is not trained, however
    short they are beside others.
`saturated`: log10 of the share of gradients beyond the format's largest value.
`update lost`: the share of the weights' changes that leave the weight as it was.
`products`: log10 of noise to signal of what products read (weights, activations, output gradients), the worst of them.

`strictness`: -log10 of the tolerance as a share of the metric's range, from a guess's value to a perfect one's: the
    same loss is enough at two points and not at half a point.

A number that the effects do not have counts as no loss; `not_seen` names what is left out so.
"""

import math
from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any

from cpdrun.report.read.learnt import guess
from cpdrun.report.read.metric import Metric

FLOOR = 1e-4  # of shares and squared ratios
CEILING = 10.0
CERTAIN = 0.999  # a share above it is as bad as one of 1
GRADIENT, UPDATE = "gradient", "update"
OF_PRODUCTS = ("weight", "activation", "output_gradient")
OF_KEYS = {"weights": "weight", "activations": "activation", "errors": "output_gradient"}
SUMS = ("cpdrun.comm.AllReduceSync", "cpdrun.comm.sync.AllReduceSync", "cpdrun.comm.sync.decoded")

Part = Mapping[str, float | None]


def strictness(metric: Metric, tolerance: float, classes: float = math.nan) -> float:
    """Of a tolerance as it is shown. `classes`: of the task, which say what guessing gives; of a metric of which that
    is not known the range is taken to be 1."""
    by_chance = 1.0 if metric.is_fraction else abs(guess(metric, classes))
    return -math.log10(tolerance / metric.scale / (by_chance if 0 < by_chance < math.inf else 1.0))


def features(effects: Mapping[str, Any], strict: float) -> dict[str, float]:
    """Finite numbers by name, the same names for every config; `strict`: as `strictness` has it."""
    whole, layers = _all(effects, GRADIENT), list(_layers(effects, GRADIENT))
    products = [_noise(_all(effects, role)) for role in OF_PRODUCTS]
    return {
        "misdirected": _log_odds(_misdirected(whole)),
        "of layers": _log_odds(fmean(map(_misdirected, layers)) if layers else _misdirected(whole)),
        "saturated": _log(_number(whole, "saturation", 0.0)),
        "update lost": _number(_all(effects, UPDATE), "update_lost", 0.0),
        "products": _log(max(products)),
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
    """Whether nothing is left of the sum: it has no direction then."""
    return "cosine" in part and part["cosine"] is None


def _misdirected(part: Part) -> float:
    cosine = _number(part, "cosine", 0.0 if _is_lost(part) else 1.0)
    return min(1.0, max(0.0, 1 - cosine))


def _noise(part: Part) -> float:
    """Noise to signal, 0 where nothing is rounded."""
    snr = _number(part, "snr_db", None)
    return 0.0 if snr is None else 10 ** (-snr / 10)


def _log_odds(share: float) -> float:
    share = min(CERTAIN, max(FLOOR, share))
    return math.log10(share / (1 - share))


def _log(share: float) -> float:
    return math.log10(min(CEILING, max(FLOOR, share)))
