"""What is rounded where: rules, of which the first that matches wins.

    modules   glob patterns, one or a list, of the names or classes of layers: blocks.*, Linear
    role      of a Linear or Conv layer's products (custom_fp.products): input, weight, output_gradient, what a product
              reads; result, what it gives; accumulator, every product of two values and every partial sum
              of any layer: activation, what it reads and gives; error, the gradient that arrives at its output;
              parameter, its weights and running statistics, as they are kept from step to step
    product   forward, input_gradient or weight_gradient; null: all in which the role takes part
    steps     [first, end]: steps of the run from `first`, counted from 0, to the one before `end`; null: to the last.
              The test set is read by the rules of the step before it
    format    any of custom_fp; fp32: left alone
    aps       true: each tensor is shifted by a power of two that fills its format (`tensor_aps.py`)
    kahan     true: additions of an accumulator carry their error along

Nothing is rounded twice by two rules, and a rule that never comes to bear is an error: it matches no layer, rules
before it take all that it matches, or the run ends before it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import custom_fp
from custom_fp.formats.names import parse
from custom_fp.modules import LAYERS
from custom_fp.products import PRODUCTS
from custom_fp.products import ROLES as OF_PRODUCTS
from torch import Tensor, nn

from cpdrun.config.errors import did_you_mean
from cpdrun.train.precision.tensor_aps import aps_quantize

ROLES = {**OF_PRODUCTS, "accumulator": PRODUCTS, "activation": (), "error": (), "parameter": ()}
KEYS = ("modules", "role", "product", "steps", "format", "aps", "kahan")


@dataclass(frozen=True)
class Rounding:
    """To a format, nearest even; the gradient passes straight through."""

    format: str
    aps: bool = False
    kahan: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        return aps_quantize(x, self.format) if self.aps else custom_fp.quantize(x, self.format)

    def __str__(self) -> str:
        return self.format


@dataclass(frozen=True)
class Layer:
    """A module of the model, as it was built: all names that it has, and its class."""

    module: nn.Module
    names: tuple[str, ...]

    @property
    def multiplies(self) -> bool:
        """Whether its products can be rounded: it is exactly a Linear or Conv layer."""
        return type(self.module) in LAYERS

    def takes(self, role: str) -> bool:
        """Whether a rule of this role can mean it."""
        if role == "parameter":
            kept = (*self.module.parameters(False), *self.module.buffers(False))
            return any(
                x.requires_grad or (x.is_floating_point() and not isinstance(x, nn.Parameter)) for x in kept
            )
        if role in ("activation", "error"):
            return not list(self.module.children())
        return self.multiplies


def layers_of(model: nn.Module) -> list[Layer]:
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    return [Layer(module, tuple(of_module)) for module, of_module in names.items()]


@dataclass(frozen=True)
class Rule:
    """One rule; `typed` is what an error calls it. rounding: None leaves things alone."""

    typed: str
    modules: tuple[str, ...]
    role: str
    rounding: Rounding | None
    product: str | None = None
    first: int = 0
    end: int | None = None

    def matches(self, layer: Layer) -> bool:
        called = (*layer.names, type(layer.module).__name__)
        return any(fnmatchcase(name, pattern) for name in called for pattern in self.modules)

    def holds(self, role: str, product: str | None, step: int) -> bool:
        in_time = self.first <= step and (self.end is None or step < self.end)
        return role == self.role and self.product in (None, product) and in_time


def read_rule(typed: str, given: Any) -> Rule:
    """A rule as it is typed, {modules: 'blocks.*', role: weight, format: e4m3}. ValueError, naming what is wrong."""
    if not isinstance(given, Mapping):
        raise ValueError(
            f"{typed}={given}: must be a mapping, such as {{modules: '*', role: weight, format: e4m3}}"
        )
    for key in given:
        if key not in KEYS:
            raise ValueError(
                f"{typed}: unknown key {key!r}{did_you_mean(str(key), KEYS)}; a rule has {', '.join(KEYS)}"
            )
    for key in ("modules", "role", "format"):
        if key not in given:
            raise ValueError(f"{typed}: {key} is missing")
    modules = given["modules"] if isinstance(given["modules"], list | tuple) else [given["modules"]]
    if not modules or not all(isinstance(pattern, str) for pattern in modules):
        raise ValueError(
            f"{typed}.modules={given['modules']}: must be a pattern, such as 'blocks.*', or a list of them"
        )
    role, product = one_of(f"{typed}.role", given["role"], ROLES), given.get("product")
    if product is not None and product not in ROLES[role]:
        products = ", ".join(ROLES[role]) or "none: leave product out"
        raise ValueError(f"{typed}.product={product}: {role} takes part in {products}")
    first, end = _steps(typed, given.get("steps"))
    if role == "parameter" and (first, end) != (0, None):
        raise ValueError(f"{typed}.steps: weights are kept in one way throughout a run")
    aps, kahan = (_flag(f"{typed}.{key}", given.get(key, False)) for key in ("aps", "kahan"))
    rounding = rounding_to(typed, role, given["format"], aps=aps, kahan=kahan)
    return Rule(typed, tuple(modules), role, rounding, product, first, end)


def rounding_to(
    typed: str, role: str, name: str, *, aps: bool = False, kahan: bool = False
) -> Rounding | None:
    """None for fp32, rounding to which changes nothing. Raises ValueError where it cannot be."""
    fmt = format_named(
        f"{typed}.format" if typed.endswith("]") else typed, name, scales=role != "accumulator"
    )
    if kahan and role != "accumulator":
        raise ValueError(f"{typed}: kahan is for sums: role accumulator, not {role}")
    if aps and role == "accumulator":
        raise ValueError(f"{typed}: an accumulator has no tensor to shift: it takes aps=false")
    if aps and fmt is not None and parse(fmt).has_scales:
        raise ValueError(f"{typed}={name} has scales of its own: it takes aps=false")
    return None if fmt is None else Rounding(fmt, aps, kahan)


def format_named(key: str, name: str, scales: bool = False) -> str | None:
    """The format's name, or None for fp32. scales: whether it may have any. Raises ValueError."""
    try:
        parsed = parse(name)
        if not scales and (parsed.has_scales or parsed.exponent_bits is None):
            raise ValueError(
                "a format with scales can stand for weights, activations and errors; here take eXmY"
            )
    except ValueError as error:
        raise ValueError(f"{key}={name}: {error}") from None
    if parsed.is_fp32:
        return None
    return name if parsed.has_scales else parsed.name


class Rules:
    """In the order in which they are asked, of a run of so many steps (None: of any number)."""

    def __init__(self, rules: Sequence[Rule], steps: int | None = None):
        self.rules, self.steps = list(rules), steps or math.inf
        turns = {0, *(r.first for r in self.rules), *(r.end for r in self.rules if r.end is not None)}
        self.turns = sorted(t for t in turns if t < self.steps)  # steps from which other rules hold
        self._won: set[Rule] = set()

    def of(self, layer: Layer, role: str, product: str | None = None, step: int = 0) -> Rounding | None:
        for rule in self.rules:
            if rule.holds(role, product, step) and rule.matches(layer):
                self._won.add(rule)
                return rule.rounding
        return None

    def of_any(self, roles: Sequence[str]) -> str:
        """Those of these roles as they are typed, in words."""
        found = dict.fromkeys(r.typed for r in self.rules if r.role in roles and r.rounding is not None)
        return " and ".join(found)

    def check(self, layers: Sequence[Layer]) -> None:
        """Once all has been asked: ValueError for a rule that never was the first to match."""
        for rule in self.rules:
            if rule in self._won:
                continue
            means = [layer for layer in layers if layer.takes(rule.role)]
            if any(rule.matches(layer) for layer in means):
                late = rule.first >= self.steps
                why = (
                    f"the run has {self.steps} steps" if late else "rules before it take all that it matches"
                )
                raise ValueError(f"{rule.typed} never comes to bear: {why}")
            patterns = " or ".join(map(repr, rule.modules))
            kinds = ", ".join(kind.__name__ for kind in LAYERS)
            why = f" ({rule.role} is of layers that are exactly {kinds})" if ROLES[rule.role] else ""
            some = ", ".join(layer.names[0] or type(layer.module).__name__ for layer in means[:4]) or "none"
            raise ValueError(f"{rule.typed}: {patterns} matches no layer{why}; the first ones are {some}")


def _steps(typed: str, given: Any) -> tuple[int, int | None]:
    if given is None:
        return 0, None
    if isinstance(given, list | tuple) and len(given) == 2 and _counts(given[0]):
        first, end = given
        if end is None or (_counts(end) and end > first):
            return first, end
    raise ValueError(f"{typed}.steps={given}: must be [first, end], such as [0, 100] or [100, null]")


def _counts(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _flag(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{key}={value}: must be true or false")
    return value


def one_of(key: str, value: Any, allowed: Sequence[str] | Mapping[str, Any]) -> str:
    if value not in allowed:
        raise ValueError(f"{key}={value}: choose one of {', '.join(allowed)}")
    return value
