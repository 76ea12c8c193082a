"""List changes of a configuration that may reduce rounding errors."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from custom_fp.formats.names import is_own

from cpdrun.config.errors import ConfigError
from cpdrun.config.overrides import get_key, has_key, set_key, typed_form
from cpdrun.config.schema import validate
from cpdrun.study import formats
from cpdrun.study.collect import SCALING
from cpdrun.whatif.damage import GRADIENT, PRECISION_KEYS, UPDATE

SUMS = ("cpdrun.comm.AllReduceSync", "cpdrun.comm.sync.decoded")
CHAINS = ("rank", "ring")
# Precision rules use another name for activations.
OPERANDS = {"weight": "weight", "activation": "input", "output_gradient": "output_gradient"}
WIDE = "bf16"
_ALL = ["*", "MultiheadAttention"]  # matches every layer with a matrix product


@dataclass(frozen=True)
class Change:
    """A change to a configuration.

    Attributes:
        description: A short description for the user.
        words: The command-line overrides, such as "sync.order=tree". For an added rule, a description of the rule.
        config: The changed configuration.
        role: The role of the tensors whose error the change should reduce: gradient, weight, activation,
            output_gradient, or update.
    """

    description: str
    words: tuple[str, ...]
    config: dict[str, Any]
    role: str = GRADIENT


def changes_of_sums(config: Mapping[str, Any], layers: Sequence[str] = ()) -> list[Change]:
    """Return possible changes to how the workers' gradients are summed.

    The list is empty if there is a single worker, if sums are in fp32, or if the sync is not an all-reduce. If `layers`
    are given, one of the changes keeps the first two in fp32.
    """
    sync = config.get("sync") or {}
    fmt = formats.parse(config["format"])
    if config["world_size"] < 2 or sync.get("_target_") not in SUMS or formats.is_baseline(config["format"]):
        return []
    found: list[Any] = []
    if fmt is not None and fmt.exponent_bits is not None and not fmt.has_scales and not config["aps"]:
        found.append(("APS: one power-of-two scale per layer", {"aps": True}))
    found += [(f"added in another order, {order}", {"sync.order": order}) for order in _orders(sync)]
    if sync.get("kahan") is False:
        found.append(("Kahan's compensated sum", {"sync.kahan": True}))
    if sync.get("rounding") == "nearest_even":
        found.append(("stochastic rounding", {"sync.rounding": "stochastic"}))
    if sync.get("error_feedback") is False:
        found.append(("error feedback", {"sync.error_feedback": True}))
    if layers:
        some = list(layers)[:2]
        found.append((f"{' and '.join(some)} in fp32", {"full_precision.layers": some}))
    found += [(text, {"format": name}) for name, text in _formats(config["format"])]
    return [made for text, values in found if (made := change(config, text, values)) is not None]


def changes_of_products(config: Mapping[str, Any]) -> list[Change]:
    """Return changes of the formats that a worker uses in its own computation.

    With precision rules, each change puts one role, the first layer, or the last layer in bf16. Without rules, the
    changes put one role in bf16, scale each tensor, or make weight updates more precise.
    """
    precision = config.get("precision") or {}
    if precision.get("rules"):
        return _of_rules(config, precision["rules"])
    found: list[Any] = []
    for role, key in PRECISION_KEYS.items():
        if not formats.is_baseline(precision.get(key, "fp32")):
            found.append((role, f"{key} in {WIDE}", {f"precision.{key}": WIDE}))
    if found and precision.get("aps") is False and precision.get("master_weights") is not False:
        found.append((found[0][0], "a power-of-two scale for each tensor", {"precision.aps": True}))
    if precision.get("master_weights") is False:
        found.append(
            (UPDATE, "stochastic rounding of weight updates", {"precision.update_rounding": "stochastic"})
        )
        found.append((UPDATE, "Kahan compensation of weight updates", {"precision.kahan_weights": True}))
        found.append((UPDATE, "float32 master weights", {"precision.master_weights": True}))
    changes = ((role, change(config, text, values)) for role, text, values in found)
    return [replace(one, role=role) for role, one in changes if one is not None]


def _of_rules(config: Mapping[str, Any], rules: Sequence[Mapping[str, Any]]) -> list[Change]:
    """Return changes that each insert a bf16 rule, which takes precedence."""
    found: list[Any] = []
    roles = list(OPERANDS.values())
    for role, operand in OPERANDS.items():
        found.append(
            (role, f"{PRECISION_KEYS[role]} in {WIDE}", {"modules": _ALL, "role": operand, "format": WIDE})
        )
    for end in ("first", "last"):
        rule = {"modules": _ALL, end: 1, "role": roles, "format": WIDE}
        found.append(("activation", f"the {end} layer in {WIDE}", rule))
    made = []
    for role, text, rule in found:
        one = change(config, text, {"precision.rules": [rule, *rules]})
        if one is not None:
            made.append(replace(one, words=(f"a rule in front: {typed_form(rule)}",), role=role))
    return made


def change(config: Mapping[str, Any], description: str, values: Mapping[str, Any]) -> Change | None:
    """Return a copy of a configuration with new values, as a `Change`.

    Returns None if the configuration lacks a key or if the result is invalid.
    """
    made = copy.deepcopy(dict(config))
    for key, value in values.items():
        if not has_key(made, key):
            return None
        if key == "full_precision.layers":
            value = list(dict.fromkeys([*get_key(made, key), *value]))
        set_key(made, key, value)
    if values.get("aps"):
        made[SCALING] = copy.deepcopy(_aps())
    problem = _problem(made)
    # A config from an earlier version of cpdrun may already be invalid. That does not rule out the change.
    if problem and problem != _problem(config):
        return None
    words = tuple(f"{key}={typed_form(get_key(made, key))}" for key in values)
    return Change(description, words, made)


def _problem(config: Mapping[str, Any]) -> str:
    try:
        validate(config, imports=False)
    except ConfigError as error:
        return str(error)
    return ""


def _orders(sync: Mapping[str, Any]) -> list[str]:
    """Return the reduction orders with fewer consecutive rounded additions than the current order."""
    order = sync.get("order")
    return ["hierarchical", "tree"] if order in CHAINS else ["tree"] if order == "hierarchical" else []


def _formats(name: str) -> Iterator[tuple[str, str]]:
    """Yield similar formats as (name, description): equally wide ones, then those with one more bit."""
    fmt = formats.parse(name)
    if is_own(name) or fmt is None or fmt.exponent_bits is None or fmt.has_scales:
        return
    exponent, mantissa = fmt.exponent_bits, fmt.code_bits - fmt.is_signed - fmt.exponent_bits
    for e in range(min(8, exponent + mantissa), 1, -1):
        m = exponent + mantissa - e
        if e != exponent and m <= 10:
            yield f"e{e}m{m}", "as many bits, with another split"
    if exponent < 8:
        yield f"e{exponent + 1}m{mantissa}", "one more exponent bit"
    if mantissa < 10:
        yield f"e{exponent}m{mantissa + 1}", "one more mantissa bit"


@cache
def _aps() -> dict[str, Any]:
    # Import Hydra only when it is needed. Its import takes 0.2 s, and not every report on a sweep needs it.
    from cpdrun.config.compose import Composer
    from cpdrun.config.short_forms import APS_RULE

    with Composer() as composer:
        return composer.file(SCALING, APS_RULE)
