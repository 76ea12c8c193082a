"""Read the `screen:` block, which says what a screen measures.

The file conf/any_run.yaml documents the keys and their defaults.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NoReturn

from custom_fp.formats.names import is_own, parse

from cpdrun.config.errors import ConfigError, did_you_mean
from cpdrun.config.margin import Typed, parse_margin
from cpdrun.config.overrides import typed_form
from cpdrun.stats.means import FIRST_SEED
from cpdrun.stats.screening import LARGEST

GRADIENT = "gradient"
PRODUCTS = ("weight", "input", "output_gradient")
ROLES = (GRADIENT, *PRODUCTS)
WIRE, OPERATIONS = "wire", "operations"
# The keys of custom_fp.recipe.rules that a level may set.
RULE_KEYS = (
    "format",
    "rounding",
    "aps",
    "hadamard",
    "history",
)

# A rule without its modules and its role, such as {format: e3m0, aps: true}.
Level = dict[str, Any]


@dataclass(frozen=True)
class ScreenSettings:
    """The `screen:` block.

    Attributes:
        roles: The roles that are screened.
        low: The low levels of each role, each narrower than the level before.
        high: The high level of each role.
        groups: Patterns of module names for each group, or None for the default groups.
        most_factors: The largest number of factors.
        foldover: Whether the design is folded over.
        seeds: The number of seeds of each row.
        confidence: The confidence in percent.
        tolerance: The margin, in points of a share or as a percentage, or None for the default.
        metric: The metric, or None for the metric by which the runs are judged.
        cost: The cost to minimize, WIRE or OPERATIONS.
        uniform: The uniform formats with which the allocation is compared.
    """

    roles: tuple[str, ...]
    low: dict[str, tuple[Level, ...]]
    high: dict[str, Level]
    groups: dict[str, list[str]] | None
    most_factors: int
    foldover: bool
    seeds: int
    confidence: float
    tolerance: Typed | None
    metric: str | None
    cost: str
    uniform: tuple[Level, ...]

    @property
    def drawn(self) -> range:
        """The seeds of the screen.

        No search tests on these seeds, so an allocation is tested on runs that did not choose it.
        """
        return range(FIRST_SEED, FIRST_SEED + self.seeds)

    def level(self, role: str, number: int) -> Level:
        """Return a level of a role: 0 is the high level, and 1, 2 ... are the low levels in order."""
        return self.low[role][number - 1] if number else self.high[role]

    @property
    def rounds(self) -> int:
        """The largest number of rounds: the number of low levels of the role that has the most."""
        return max(len(self.low[role]) for role in self.roles)


def settings(block: Mapping[str, Any], search: Mapping[str, Any]) -> ScreenSettings:
    """Return the settings of a `screen:` block. The margin and the metric default to those of the `search` block.

    Raises:
        ConfigError: A key is unknown or a value is not allowed.
    """
    known = list(ScreenSettings.__annotations__)
    for key in block:
        if key not in known:
            raise ConfigError(f"unknown key 'screen.{key}'{did_you_mean(key, known)}")
    roles = _roles(block["roles"])
    return ScreenSettings(
        roles=roles,
        low=_ladders(_by_role("low", block["low"]), roles),
        high=_levels("high", _by_role("high", block["high"]), [role for role in roles if role != GRADIENT])
        | ({GRADIENT: {"format": "fp32"}} if GRADIENT in roles else {}),
        groups=_groups(block["groups"]),
        most_factors=_whole("most_factors", block["most_factors"], 1, LARGEST // 2),
        foldover=_flag("foldover", block["foldover"]),
        seeds=_whole("seeds", block["seeds"], 1, 1000),
        confidence=_confidence(block["confidence"]),
        tolerance=_margin(search["tolerance"] if block["tolerance"] is None else block["tolerance"]),
        metric=_metric(search["metric"] if block["metric"] is None else block["metric"]),
        cost=_cost(block["cost"], roles),
        uniform=_uniform(block["uniform"], roles),
    )


def _roles(value: Any) -> tuple[str, ...]:
    given = value if isinstance(value, list) else [value]
    for role in given:
        if role not in ROLES:
            raise ConfigError(
                f"screen.roles={typed_form(value)}: must be some of {', '.join(ROLES)}{did_you_mean(str(role), ROLES)}"
            )
    if not given or len(set(given)) < len(given):
        _refuse("roles", value, f"must be some of {', '.join(ROLES)}, each once")
    return tuple(role for role in ROLES if role in given)


def _by_role(key: str, block: Any) -> Mapping[str, Any]:
    if not isinstance(block, Mapping):
        _refuse(key, block, f"must name a format for each role, such as {{{GRADIENT}: e3m0}}")
    return block


def _levels(key: str, block: Mapping[str, Any], roles: Sequence[str]) -> dict[str, Level]:
    for role in block:
        if role not in ROLES:
            raise ConfigError(f"unknown key 'screen.{key}.{role}'{did_you_mean(str(role), ROLES)}")
    if key == "high" and block.get(GRADIENT) not in (None, "fp32"):
        _refuse(
            f"high.{GRADIENT}", block[GRADIENT], "what is exchanged in high bits is in fp32: leave it out"
        )
    missing = [role for role in roles if block.get(role) is None]
    if missing:
        raise ConfigError(
            f"screen.{key}.{missing[0]} is missing: a format, for {missing[0]} is among screen.roles"
        )
    return {role: _level(f"{key}.{role}", block[role], is_gradient=role == GRADIENT) for role in roles}


def _ladders(block: Any, roles: Sequence[str]) -> dict[str, tuple[Level, ...]]:
    """Return the low levels of each role, one or several, from wide to narrow."""
    first = {key: value[0] if isinstance(value, list) and value else value for key, value in block.items()}
    found = {role: (level,) for role, level in _levels("low", first, roles).items()}
    for role in roles:
        if isinstance(given := block[role], list):
            found[role] = _ladder(f"low.{role}", given, is_gradient=role == GRADIENT)
    return found


def _ladder(key: str, given: list[Any], *, is_gradient: bool) -> tuple[Level, ...]:
    if is_gradient and len(given) > 1:
        _refuse(key, given, "workers exchange what is low in one format: name one")
    levels = tuple(_level(f"{key}[{i}]", each, is_gradient=is_gradient) for i, each in enumerate(given))
    widths = [float(parse(str(level["format"])).bits) for level in levels]
    if any(narrow >= wide for wide, narrow in pairwise(widths)):
        _refuse(key, given, "each level must have fewer bits than the one before")
    return levels


def _level(key: str, value: Any, *, is_gradient: bool = False) -> Level:
    level = dict(value) if isinstance(value, Mapping) else {"format": value}
    allowed = ("format",) if is_gradient else RULE_KEYS
    if unknown := [name for name in level if name not in allowed]:
        _refuse(key, value, f"must be a format, or a mapping of {', '.join(allowed)}; not {unknown[0]}")
    name = level.get("format")
    try:
        if is_own(name):
            raise ValueError("a format of your own has bits that only a run knows; take one of cpdrun's")
        parse(name)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"screen.{key}={typed_form(value)}: {error}") from None
    return level


def _groups(value: Any) -> dict[str, list[str]] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping) or not value:
        _refuse("groups", value, "must map names to patterns of module names, such as {head: ['classifier']}")
    found = {}
    for name, patterns in value.items():
        listed = patterns if isinstance(patterns, list) else [patterns]
        if not listed or not all(isinstance(pattern, str) and pattern for pattern in listed):
            _refuse(f"groups.{name}", patterns, "must be patterns of module names, such as ['blocks.0.*']")
        found[str(name)] = listed
    return found


def _cost(value: Any, roles: Sequence[str]) -> str:
    if value not in (None, WIRE, OPERATIONS):
        _refuse("cost", value, f"must be {WIRE}, {OPERATIONS} or null")
    of_wire, of_products = GRADIENT in roles, any(role in PRODUCTS for role in roles)
    if value is None and of_wire and of_products:
        _refuse("cost", value, f"say which is to be small: {WIRE} (gradients) or {OPERATIONS} (products)")
    cost = value or (WIRE if of_wire else OPERATIONS)
    if cost == WIRE and not of_wire:
        _refuse("cost", value, f"no role changes it: {GRADIENT} is not among screen.roles")
    if cost == OPERATIONS and not of_products:
        _refuse("cost", value, f"no role changes it: screen.roles has none of {', '.join(PRODUCTS)}")
    return cost


def _uniform(value: Any, roles: Sequence[str]) -> tuple[Level, ...]:
    given = value if isinstance(value, list) else [value]
    is_gradient = GRADIENT in roles
    return tuple(_level(f"uniform[{i}]", each, is_gradient=is_gradient) for i, each in enumerate(given))


def _whole(key: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        _refuse(key, value, f"must be a whole number, {least} to {most}")
    return value


def _flag(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        _refuse(key, value, "must be true or false")
    return value


def _confidence(value: Any) -> float:
    if not (_is_number(value) and 50 <= value < 100):
        _refuse("confidence", value, "must be per cent, from 50 to below 100")
    return value


def _margin(value: Any) -> Typed | None:
    try:
        return None if value is None else parse_margin(value)
    except ValueError as error:
        raise ConfigError(
            f"screen.tolerance={typed_form(value)}: {error}; null is search.tolerance"
        ) from None


def _metric(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        _refuse("metric", value, "must be the name of a metric, such as test_loss, or null")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _refuse(key: str, value: Any, allowed: str) -> NoReturn:
    raise ConfigError(f"screen.{key}={typed_form(value)}: {allowed}")
