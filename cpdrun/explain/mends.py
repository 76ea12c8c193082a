"""What one may turn so that less is lost, each as the words that are typed and the config that they give."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from custom_fp.formats.names import is_own

from cpdrun.config.compose import Composer
from cpdrun.config.errors import ConfigError
from cpdrun.config.keys import get_key, has_key, set_key
from cpdrun.config.overrides import typed_form
from cpdrun.config.scaling import SCALING, SHORT_FOR
from cpdrun.config.schema import validate
from cpdrun.study.axes import formats

SUMS = ("cpdrun.comm.AllReduceSync", "cpdrun.comm.sync.decoded")
CHAINS = ("rank", "ring")
GRADIENT, UPDATE = "gradient", "update"
OF_PRODUCTS = {
    "weight": "weights",
    "activation": "activations",
    "output_gradient": "errors",
}  # keys of precision
IN_RULES = {"weight": "weight", "activation": "input", "output_gradient": "output_gradient"}
WIDE = "bf16"
_ALL = ["*", "MultiheadAttention"]  # as the recipes name every layer that multiplies


@dataclass(frozen=True)
class Turned:
    """`what`: in words."""

    what: str
    words: tuple[str, ...]
    config: dict[str, Any]
    role: str = GRADIENT  # whose loss it mends


def of_sums(config: Mapping[str, Any], layers: Sequence[str] = ()) -> list[Turned]:
    """Of the sum of gradients between workers; empty where they are summed in fp32, by another method than all-reduce,
    or by one worker. `layers`: by name, those that lose most: they may stay in fp32."""
    sync = config.get("sync") or {}
    fmt = formats.parse(config["format"])
    if config["world_size"] < 2 or sync.get("_target_") not in SUMS or formats.is_baseline(config["format"]):
        return []
    found = []
    if fmt is not None and fmt.exponent_bits is not None and not fmt.has_scales and not config["aps"]:
        found.append(("APS: one power-of-two shift a layer", {"aps": True}))
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
    found += [(words, {"format": name}) for name, words in _formats(config["format"])]
    return [turned for what, values in found if (turned := turn(config, what, values)) is not None]


def of_products(config: Mapping[str, Any]) -> list[Turned]:
    """Of what is rounded within a worker: each role in bf16, the first and the last layer so, steps that lose less."""
    precision = config.get("precision") or {}
    if precision.get("rules"):
        return _of_rules(config, precision["rules"])
    found = []
    for role, key in OF_PRODUCTS.items():
        if not formats.is_baseline(precision.get(key, "fp32")):
            found.append((role, f"{key} in {WIDE}", {f"precision.{key}": WIDE}))
    if found and precision.get("aps") is False and precision.get("master_weights") is not False:
        found.append((found[0][0], "each tensor shifted to fill its format", {"precision.aps": True}))
    if precision.get("master_weights") is False:
        found.append(
            (UPDATE, "updates of weights rounded stochastically", {"precision.update_rounding": "stochastic"})
        )
        found.append((UPDATE, "a second value for what updates lose", {"precision.kahan_weights": True}))
        found.append((UPDATE, "a float32 copy of the weights", {"precision.master_weights": True}))
    turned = ((role, turn(config, what, values)) for role, what, values in found)
    return [replace(one, role=role) for role, one in turned if one is not None]


def _of_rules(config: Mapping[str, Any], rules: Sequence[Mapping[str, Any]]) -> list[Turned]:
    """A rule in front of a recipe's, for the first that matches counts."""
    found = []
    roles = list(IN_RULES.values())
    for role, named in IN_RULES.items():
        found.append(
            (role, f"{OF_PRODUCTS[role]} in {WIDE}", {"modules": _ALL, "role": named, "format": WIDE})
        )
    for end in ("first", "last"):
        rule = {"modules": _ALL, end: 1, "role": roles, "format": WIDE}
        found.append(("activation", f"the {end} layer in {WIDE}", rule))
    made = []
    for role, what, rule in found:
        one = turn(config, what, {"precision.rules": [rule, *rules]})
        if one is not None:
            made.append(replace(one, words=(f"a rule in front: {typed_form(rule)}",), role=role))
    return made


def turn(config: Mapping[str, Any], what: str, values: Mapping[str, Any]) -> Turned | None:
    """The config with these values; None where it would be refused."""
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
    if problem and problem != _problem(config):  # a record of before lacks keys of now
        return None
    words = tuple(f"{key}={typed_form(get_key(made, key))}" for key in values)
    return Turned(what, words, made)


def _problem(config: Mapping[str, Any]) -> str:
    try:
        validate(config, imports=False)
    except ConfigError as error:
        return str(error)
    return ""


def _orders(sync: Mapping[str, Any]) -> list[str]:
    """Those with shorter chains."""
    order = sync.get("order")
    return ["hierarchical", "tree"] if order in CHAINS else ["tree"] if order == "hierarchical" else []


def _formats(name: str) -> Iterator[tuple[str, str]]:
    """The other splits of as many bits, then those of one bit more, with what each is."""
    fmt = formats.parse(name)
    if is_own(name) or fmt is None or fmt.exponent_bits is None or fmt.has_scales:
        return
    exponent, mantissa = fmt.exponent_bits, fmt.code_bits - fmt.is_signed - fmt.exponent_bits
    for e in range(min(8, exponent + mantissa), 1, -1):
        m = exponent + mantissa - e
        if e != exponent and m <= 10:
            yield f"e{e}m{m}", "as many bits, split differently"
    if exponent < 8:
        yield f"e{exponent + 1}m{mantissa}", "one bit more, of exponent"
    if mantissa < 10:
        yield f"e{exponent}m{mantissa + 1}", "one bit more, of mantissa"


@cache
def _aps() -> dict[str, Any]:
    with Composer() as composer:
        return composer.file(SCALING, SHORT_FOR)
