"""Rules as they are typed -> `Rule`. Mistakes are ValueErrors that name the key, what is wrong and what is allowed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from custom_fp.accumulator import Accumulator, is_name, near
from custom_fp.formats.names import parse
from custom_fp.formats.scalar import Format
from custom_fp.formats.tabulated import Tabulated
from custom_fp.layers.products import OPERANDS
from custom_fp.recipe.layers import ROLES
from custom_fp.recipe.rounding import NEAREST, Rounding
from custom_fp.recipe.rules import Rule
from custom_fp.rounding import Rounding as Word
from custom_fp.rounding import is_stochastic, read_rounding, words
from custom_fp.suggestions import did_you_mean

KEYS = ("modules", "first", "last", "role", "product", "steps", "format", "rounding", "hadamard", "history")
KEYS += ("aps", "kahan", "optional")
SHORT_FORMS = {  # keys, and their roles in rules for all modules
    "weights": "parameter",
    "activations": "activation",
    "errors": "error",
    "accumulator": "accumulator",
}
READ = tuple(dict.fromkeys(role for roles in OPERANDS.values() for role in roles))  # by products
MOST_TRANSFORMED = 1 << 15
MOST_REMEMBERED = 1 << 16


def read_rules(typed: str, given: Any) -> list[Rule]:
    """A list of rules as they are typed, called `typed`[0] and so on."""
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise ValueError(
            f"{typed}={given}: must be a list of rules, such as [{{modules: '*', role: weight, format: e4m3}}]"
        )
    return [read_rule(f"{typed}[{i}]", rule) for i, rule in enumerate(given)]


def read_rule(typed: str, given: Any) -> Rule:
    """A rule as it is typed, {modules: 'blocks.*', role: weight, format: e4m3}."""
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
    modules = _listed(given["modules"])
    if not modules or not all(isinstance(pattern, str) for pattern in modules):
        raise ValueError(
            f"{typed}.modules={given['modules']}: must be a pattern, such as 'blocks.*', or a list of them"
        )
    roles = _of_words(f"{typed}.role", given["role"], ROLES)
    products = () if given.get("product") is None else _listed(given["product"])
    for product in products:
        allowed = dict.fromkeys(p for role in roles for p in ROLES[role])
        if product not in allowed:
            whats = ", ".join(allowed) or "none: leave product out"
            raise ValueError(f"{typed}.product={product}: {' and '.join(roles)} takes part in {whats}")
    first, end = _steps(typed, given.get("steps"))
    if "parameter" in roles and (first, end) != (0, None):
        raise ValueError(f"{typed}.steps: weights are kept in one way throughout a run")
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
    """KEY: NAME as the rule that it is short for; None where it leaves things alone."""
    role = SHORT_FORMS[key]
    sums = role == "accumulator"
    rounding = rounding_to(typed, role, name, aps=aps and not sums, kahan=kahan and sums)
    return None if rounding is None else Rule(f"{typed}={rounding}", ("*",), (role,), rounding)


def _rounding(typed: str, roles: Sequence[str], given: Mapping[str, Any]) -> Rounding | None:
    aps, kahan = (_flag(f"{typed}.{key}", given.get(key, False)) for key in ("aps", "kahan"))
    word = NEAREST if given.get("rounding") is None else one_rounding(f"{typed}.rounding", given["rounding"])
    size = _transform(f"{typed}.hadamard", given.get("hadamard"))
    for role in roles:
        found = rounding_to(typed, role, given["format"], aps=aps, kahan=kahan)
        if word != NEAREST and role in ("accumulator", "parameter"):
            instead = f"format=fp16-{word}, a rounding in its name"
            if role == "parameter":
                instead = f"precision.update_rounding={word}"
            of_role = "weights" if role == "parameter" else "sums"
            raise ValueError(
                f"{typed}.rounding={word}: {role} takes nearest_even; of {of_role} type {instead}"
            )
        if word != NEAREST and found is not None and not parse(found.format).takes_rounding:
            raise ValueError(f"{typed}.rounding={word}: {found.format} rounds to nearest only")
        if size is not None and role not in READ:
            raise ValueError(
                f"{typed}.hadamard={size}: transforms what products read: {', '.join(READ)}, not {role}"
            )
    history = _history(typed, roles, given)
    if history is not None and size is not None:
        raise ValueError(f"{typed}: history={history} is of the tensor as it is; it goes without hadamard")
    if aps and (word != NEAREST or size is not None):
        raise ValueError(
            f"{typed}: aps=true rounds to nearest even and goes with no other rounding, nor hadamard"
        )
    if found is None:
        if word != NEAREST or size is not None:
            key = f"hadamard={size}" if size is not None else f"rounding={word}"
            raise ValueError(f"{typed}.{key}: format=fp32 rounds nothing")
        return None
    return Rounding(found.format, aps, kahan, word, size, history)


def rounding_to(
    typed: str, role: str, name: str, *, aps: bool = False, kahan: bool = False
) -> Rounding | None:
    """None for fp32, rounding to which changes nothing."""
    key = f"{typed}.format" if typed.endswith("]") else typed
    if role == "accumulator" and isinstance(name, str) and is_name(name):
        fmt = accumulator_named(key, name, kahan)
    else:
        try:
            fmt = format_named(key, name, scales=role != "accumulator")
        except ValueError as error:
            raise ValueError(f"{error}{near(str(name)) if role == 'accumulator' else ''}") from None
    if kahan and role != "accumulator":
        raise ValueError(f"{typed}: kahan is for sums: role accumulator, not {role}")
    if aps and role == "accumulator":
        raise ValueError(f"{typed}: an accumulator has no tensor to shift: it takes aps=false")
    if aps and fmt is not None and parse(fmt).has_scales:
        raise ValueError(f"{typed}={name} has scales of its own: it takes aps=false")
    return None if fmt is None else Rounding(fmt, aps, kahan)


def format_named(key: str, name: str, scales: bool = False) -> str | None:
    """The format's name, or None for fp32. scales: whether it may have any."""
    try:
        parsed = parse(name)
        if not scales and not isinstance(parsed, Format | Tabulated):
            raise ValueError(
                "a format with scales can stand for weights, activations and errors; here take eXmY"
            )
    except (ValueError, TypeError) as error:
        raise ValueError(f"{key}={name}: {error}") from None
    if parsed.is_fp32:
        return None
    return name if parsed.has_scales else parsed.name


def accumulator_named(key: str, name: str, kahan: bool) -> str:
    """The one name of what sums, where it is more than a format."""
    try:
        how = Accumulator.parse(name)
        return (replace(how, kahan=True) if kahan else how).name
    except ValueError as error:
        raise ValueError(f"{key}={name}: {error}") from None


def one_of(key: str, value: Any, allowed: Iterable[str]) -> str:
    if not isinstance(value, str) or value not in allowed:
        near = did_you_mean(value, allowed) if isinstance(value, str) else ""
        raise ValueError(f"{key}={value}: choose one of {', '.join(allowed)}{near}")
    return value


def one_rounding(key: str, value: Any, allowed: Sequence[str] = tuple(Word)) -> str:
    """One of `allowed`, or stochastic_N where that has stochastic."""
    try:
        read_rounding(value, allowed)
    except ValueError:
        near = did_you_mean(value, allowed) if isinstance(value, str) and not is_stochastic(value) else ""
        raise ValueError(f"{key}={value}: choose one of {words(allowed)}{near}") from None
    return value


def _of_words(key: str, given: Any, allowed: Iterable[str]) -> tuple[str, ...]:
    words = _listed(given)
    if not words:
        raise ValueError(f"{key}={given}: choose one or some of {', '.join(allowed)}")
    return tuple(one_of(key, word, allowed) for word in words)


def _listed(given: Any) -> list[Any]:
    return list(given) if isinstance(given, list | tuple) else [given]


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


def _count(key: str, value: Any) -> float | None:
    if value is None:
        return None
    is_share = isinstance(value, float) and 0 < value < 1
    if not is_share and not _counts(value):
        raise ValueError(
            f"{key}={value}: must be how many layers, such as 2, or a share below 1, such as 0.15; 0 is none"
        )
    return value


def _history(typed: str, roles: Sequence[str], given: Mapping[str, Any]) -> int | None:
    steps, name = given.get("history"), given["format"]
    if steps is None:
        return None
    if not _counts(steps) or not 1 <= steps <= MOST_REMEMBERED:
        raise ValueError(f"{typed}.history={steps}: must be a number of steps, 1 to {MOST_REMEMBERED}")
    if not set(roles) <= set(READ):
        raise ValueError(f"{typed}.history={steps}: is of what products read: {', '.join(READ)}")
    if not parse(name).has_scales or parse(name).block != "tensor":
        raise ValueError(
            f"{typed}.history={steps}: takes a format with one scale for the tensor, fp8_tensor, not {name}"
        )
    return steps


def _transform(key: str, value: Any) -> int | None:
    if value is None:
        return None
    if not (_counts(value) and 1 < value <= MOST_TRANSFORMED and value & (value - 1) == 0):
        raise ValueError(f"{key}={value}: must be a power of two, such as 16")
    return value


def _flag(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{key}={value}: must be true or false")
    return value
