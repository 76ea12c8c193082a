"""Parse the rules of a recipe into `Rule` objects.

Mistakes raise a ValueError that names the key and says what is wrong and what is allowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from custom_fp.accumulator import Accumulator, is_name, near
from custom_fp.formats.names import parse
from custom_fp.formats.scalar import Format
from custom_fp.formats.tabulated_format import Tabulated
from custom_fp.layers.operations import PRODUCT_PARTS, SDPA
from custom_fp.layers.products import OPERANDS, WEIGHT_GRADIENT
from custom_fp.recipe.layers import CALL, ROLES
from custom_fp.recipe.model_parts import MODEL_PARTS
from custom_fp.recipe.quantization_spec import NEAREST, QuantizationSpec
from custom_fp.recipe.rules import Rule
from custom_fp.rounding import Rounding, is_stochastic, read_rounding, words
from custom_fp.suggestions import did_you_mean

KEYS = (
    *("modules", "first", "last", "role", "product", "steps", "format", "rounding", "hadamard", "history"),
    *("cached", "aps", "kahan", "optional"),
)
SHORT_FORMS = {  # short key -> the role of the rule for all modules that the key stands for
    "weights": "parameter",
    "activations": "activation",
    "errors": "error",
    "accumulator": "accumulator",
}
OPERAND_ROLES = tuple(dict.fromkeys(role for roles in OPERANDS.values() for role in roles))
EVERY_PRODUCT = (*(part for part in PRODUCT_PARTS if part.endswith(CALL)), SDPA)
MAX_TRANSFORM_SIZE = 1 << 15
MAX_HISTORY = 1 << 16


def read_rules(typed: str, given: Any, operations: Any = None) -> list[Rule]:
    """Parse a list of rules. Error messages refer to the rules as `typed`[0], `typed`[1] and so on.

    Args:
        typed: The key of the list as the user typed it, for error messages.
        given: The list of rules.
        operations: Patterns of the operations that a rule for '*' also selects, unless the rule sets `first` or `last`.
            A rule for a part of the model, such as router, also selects these operations in this part. True stands for
            `EVERY_PRODUCT`. None and False stand for no operations.
    """
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise ValueError(
            f"{typed}={given}: must be a list of rules, such as [{{modules: '*', role: weight, format: e4m3}}]"
        )
    rules = [read_rule(f"{typed}[{i}]", rule) for i, rule in enumerate(given)]
    patterns = _operations(f"{typed.rpartition('.')[0]}.operations".lstrip("."), operations)
    return [_with_operations(rule, patterns) for rule in rules]


def _operations(key: str, given: Any) -> tuple[str, ...]:
    if given is None or isinstance(given, bool):
        return EVERY_PRODUCT if given else ()
    patterns = _as_list(given)
    for pattern in patterns:
        if not isinstance(pattern, str) or not (pattern == SDPA or pattern.endswith(CALL)):
            raise ValueError(
                f"{key}={given}: must be true, false, or a list of operations, such as ['matmul()', 'linear()']"
            )
    return tuple(patterns)


def _with_operations(rule: Rule, patterns: tuple[str, ...]) -> Rule:
    """Add operations to a rule if it selects all layers ('*') or a part of the model, such as router."""
    counts = (rule.first_layers, rule.last_layers) != (None, None)
    added = patterns if "*" in rule.modules and not counts else ()
    calls = [pattern for pattern in patterns if pattern in PRODUCT_PARTS]
    of_parts = [f"{part}.{call}" for part in rule.modules if part in MODEL_PARTS for call in calls]
    return replace(rule, modules=(*rule.modules, *added, *of_parts)) if added or of_parts else rule


def read_rule(typed: str, given: Any) -> Rule:
    """Parse one rule, such as {modules: 'blocks.*', role: weight, format: e4m3}."""
    if not isinstance(given, Mapping):
        raise ValueError(
            f"{typed}={given}: must be a mapping, such as {{modules: '*', role: weight, format: e4m3}}"
        )
    for key in given:
        if key not in KEYS:
            raise ValueError(
                f"{typed}: unknown key {key!r}{did_you_mean(str(key), KEYS)}; allowed: {', '.join(KEYS)}"
            )
    for key in ("modules", "role", "format"):
        if key not in given:
            raise ValueError(f"{typed}: {key} is missing")
    modules = _as_list(given["modules"])
    if not modules or not all(isinstance(pattern, str) for pattern in modules):
        raise ValueError(
            f"{typed}.modules={given['modules']}: must be a pattern, such as 'blocks.*', or a list of patterns"
        )
    roles = _several_of(f"{typed}.role", given["role"], ROLES)
    products = () if given.get("product") is None else _as_list(given["product"])
    for product in products:
        allowed = dict.fromkeys(p for role in roles for p in ROLES[role])
        if product not in allowed:
            found = ", ".join(allowed) or "none, so remove product"
            raise ValueError(f"{typed}.product={product}: allowed for role {' and '.join(roles)}: {found}")
    first, end = _steps(typed, given.get("steps"))
    if "parameter" in roles and (first, end) != (0, None):
        raise ValueError(f"{typed}.steps: the format of stored weights cannot change during a run")
    return Rule(
        typed,
        tuple(modules),
        roles,
        _rounding(typed, roles, given),
        tuple(products),
        first,
        end,
        _count(f"{typed}.first", given.get("first")),
        _count(f"{typed}.last", given.get("last")),
        _flag(f"{typed}.optional", given.get("optional", False)),
    )


def short_form(typed: str, key: str, name: str, aps: bool, kahan: bool) -> Rule | None:
    """Return the rule for which KEY: NAME is the short form, or None if it rounds nothing."""
    role = SHORT_FORMS[key]
    is_sum = role == "accumulator"
    rounding = rounding_to(typed, role, name, aps=aps and not is_sum, kahan=kahan and is_sum)
    return None if rounding is None else Rule(f"{typed}={rounding}", ("*",), (role,), rounding)


def _rounding(typed: str, roles: Sequence[str], given: Mapping[str, Any]) -> QuantizationSpec | None:
    aps, kahan = (_flag(f"{typed}.{key}", given.get(key, False)) for key in ("aps", "kahan"))
    mode = NEAREST if given.get("rounding") is None else one_rounding(f"{typed}.rounding", given["rounding"])
    size = _transform_size(f"{typed}.hadamard", given.get("hadamard"))
    for role in roles:
        found = rounding_to(typed, role, given["format"], aps=aps, kahan=kahan)
        if mode != NEAREST and role in ("accumulator", "parameter"):
            instead = f"format=fp16-{mode}, with the rounding in the name"
            if role == "parameter":
                instead = f"precision.update_rounding={mode}"
            what = "weights" if role == "parameter" else "sums"
            raise ValueError(
                f"{typed}.rounding={mode}: {role} requires nearest_even; for {what}, use {instead}"
            )
        if mode != NEAREST and found is not None and not parse(found.format).takes_rounding:
            raise ValueError(f"{typed}.rounding={mode}: {found.format} rounds to nearest only")
        if size is not None and role not in OPERAND_ROLES:
            raise ValueError(
                f"{typed}.hadamard={size}: only operands can be transformed ({', '.join(OPERAND_ROLES)}), not {role}"
            )
    history = _history(typed, roles, given)
    if history is not None and size is not None:
        raise ValueError(
            f"{typed}: history={history} cannot be combined with hadamard={size}; remove one of them"
        )
    cached = _cached(typed, roles, given)
    if cached is not None and (aps or history is not None):
        raise ValueError(
            f"{typed}: cached={given['cached']} cannot be combined with aps or history; remove aps and history"
        )
    if aps and (mode != NEAREST or size is not None):
        raise ValueError(f"{typed}: aps=true cannot be combined with rounding or hadamard; remove them")
    if found is None:
        if mode != NEAREST or size is not None or cached is not None:
            key = f"hadamard={size}" if size is not None else f"rounding={mode}"
            key = f"cached={cached}" if cached is not None else key
            raise ValueError(f"{typed}.{key}: has no effect, because format=fp32 rounds nothing; remove it")
        return None
    return QuantizationSpec(found.format, aps, kahan, mode, size, history, cached)


def rounding_to(
    typed: str, role: str, name: str, *, aps: bool = False, kahan: bool = False
) -> QuantizationSpec | None:
    """Return the rounding to a format or accumulator, or None for fp32, which leaves values unchanged."""
    key = f"{typed}.format" if typed.endswith("]") else typed
    fmt: str | None
    if role == "accumulator" and isinstance(name, str) and is_name(name):
        fmt = accumulator_named(key, name, kahan)
    else:
        try:
            fmt = format_named(key, name, scales=role != "accumulator")
        except ValueError as error:
            raise ValueError(f"{error}{near(str(name)) if role == 'accumulator' else ''}") from None
    if kahan and role != "accumulator":
        raise ValueError(f"{typed}: kahan requires the role accumulator, not {role}")
    if aps and role == "accumulator":
        raise ValueError(f"{typed}: aps=true scales tensors, but an accumulator has none; use aps=false")
    if aps and fmt is not None and parse(fmt).has_scales:
        raise ValueError(f"{typed}={name} has its own scales; use aps=false")
    return None if fmt is None else QuantizationSpec(fmt, aps, kahan)


def format_named(key: str, name: str, scales: bool = False) -> str | None:
    """Return the name of a format, or None for fp32. `scales` says whether the format may have scales."""
    try:
        parsed = parse(name)
        if not scales and not isinstance(parsed, Format | Tabulated):
            raise ValueError(
                "a format with scales is allowed only for weights, activations, errors and optimizer states; use eXmY "
                "here"
            )
    except (ValueError, TypeError) as error:
        raise ValueError(f"{key}={name}: {error}") from None
    if parsed.is_fp32:
        return None
    return name if parsed.has_scales else parsed.name


def accumulator_named(key: str, name: str, kahan: bool) -> str:
    """Return the canonical name of an accumulator."""
    try:
        how = Accumulator.parse(name)
        return (replace(how, kahan=True) if kahan else how).name
    except ValueError as error:
        raise ValueError(f"{key}={name}: {error}") from None


def one_of(key: str, value: Any, allowed: Iterable[str]) -> str:
    """Return the value of a key if it is one of the allowed values.

    Raises:
        ValueError: If the value is not allowed.
    """
    if not isinstance(value, str) or value not in allowed:
        near = did_you_mean(value, allowed) if isinstance(value, str) else ""
        raise ValueError(f"{key}={value}: choose one of {', '.join(allowed)}{near}")
    return value


def one_rounding(key: str, value: Any, allowed: Sequence[str] = tuple(Rounding)) -> str:
    """Return a rounding mode if it is one of `allowed`. If stochastic is allowed, so is stochastic_N.

    Raises:
        ValueError: If the rounding mode is not allowed.
    """
    try:
        read_rounding(value, allowed)
    except ValueError:
        near = did_you_mean(value, allowed) if isinstance(value, str) and not is_stochastic(value) else ""
        raise ValueError(f"{key}={value}: choose one of {words(allowed)}{near}") from None
    return value


def _several_of(key: str, given: Any, allowed: Iterable[str]) -> tuple[str, ...]:
    values = _as_list(given)
    if not values:
        raise ValueError(f"{key}={given}: choose one or several of {', '.join(allowed)}")
    return tuple(one_of(key, value, allowed) for value in values)


def _as_list(given: Any) -> list[Any]:
    return list(given) if isinstance(given, list | tuple) else [given]


def _steps(typed: str, given: Any) -> tuple[int, int | None]:
    if given is None:
        return 0, None
    if isinstance(given, list | tuple) and len(given) == 2 and _is_count(given[0]):
        first, end = given
        if end is None or (_is_count(end) and end > first):
            return first, end
    raise ValueError(f"{typed}.steps={given}: must be [first, end], such as [0, 100] or [100, null]")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _count(key: str, value: Any) -> float | None:
    if value is None:
        return None
    is_share = isinstance(value, float) and 0 < value < 1
    if not is_share and not _is_count(value):
        raise ValueError(
            f"{key}={value}: must be a number of layers, such as 2, or a share below 1, such as 0.15; 0 selects none"
        )
    return value


def _history(typed: str, roles: Sequence[str], given: Mapping[str, Any]) -> int | None:
    steps, name = given.get("history"), given["format"]
    if steps is None:
        return None
    if not _is_count(steps) or not 1 <= steps <= MAX_HISTORY:
        raise ValueError(f"{typed}.history={steps}: must be a number of steps from 1 to {MAX_HISTORY}")
    if not set(roles) <= set(OPERAND_ROLES):
        raise ValueError(
            f"{typed}.history={steps}: only operands can have a history ({', '.join(OPERAND_ROLES)})"
        )
    if not parse(name).has_scales or parse(name).block != "tensor":
        raise ValueError(
            f"{typed}.history={steps}: requires a format with one scale for the tensor, such as fp8_tensor, not {name}"
        )
    return steps


def _cached(typed: str, roles: Sequence[str], given: Mapping[str, Any]) -> QuantizationSpec | None:
    """Return the rounding of inputs that are stored for the weight gradient, or None to store them unrounded."""
    name = given.get("cached")
    if name is None:
        return None
    if list(roles) != ["input"] or _as_list(given.get("product")) != [WEIGHT_GRADIENT]:
        raise ValueError(
            f"{typed}.cached={name}: requires role: input and product: {WEIGHT_GRADIENT}, the product that reads "
            "stored values"
        )
    fmt = format_named(f"{typed}.cached", name, scales=True)
    return None if fmt is None else QuantizationSpec(fmt)


def _transform_size(key: str, value: Any) -> int | None:
    if value is None:
        return None
    if not (_is_count(value) and 1 < value <= MAX_TRANSFORM_SIZE and value & (value - 1) == 0):
        raise ValueError(f"{key}={value}: must be a power of two, such as 16")
    return value


def _flag(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{key}={value}: must be true or false")
    return value
