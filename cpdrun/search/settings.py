"""Read and check the config sections `search:` and `screen:`.

The file conf/any_run.yaml documents the keys and their defaults.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NoReturn

from custom_fp.formats.names import is_own, parse

from cpdrun.config.errors import ConfigError, did_you_mean
from cpdrun.config.margin import Typed, parse_margin
from cpdrun.config.overrides import flatten, typed_form
from cpdrun.stats.means import FIRST_SEED
from cpdrun.stats.screening import LARGEST

MARGIN_KEY = "search.tolerance"
FEWEST_SEEDS = 3  # fewer seeds cannot decide a candidate
PREDICTED, WIDEST = "predicted", "widest"
_CORE_HOURS = re.compile(r"(\d+(?:\.\d+)?)\s*(h|min)")

GRADIENT = "gradient"
PRODUCTS = ("weight", "input", "output_gradient")
ROLES = (GRADIENT, *PRODUCTS)
WIRE, OPERATIONS = "wire", "operations"
# The keys of custom_fp.recipe.rules that a level may set.
RULE_KEYS = ("format", "rounding", "aps", "hadamard", "history")

# A precision rule without its modules and its role, such as {format: e3m0, aps: true}.
Level = dict[str, Any]


@dataclass(frozen=True)
class Budget:
    """The limit of a search, including runs that have ended.

    Attributes:
        runs: The maximum number of runs, if limited.
        core_hours: The maximum core time in hours, if limited.
    """

    runs: int | None = None
    core_hours: float | None = None

    def __str__(self) -> str:
        return f"{self.runs} runs" if self.runs is not None else f"{self.core_hours:g} core-hours"


@dataclass(frozen=True)
class Settings:
    """The settings in the `search:` section.

    Attributes:
        tolerance: The margin: a number in the displayed unit, or text such as "2%". None means the default.
        confidence: The confidence in percent.
        most_seeds: The maximum number of seeds for the pairs of a candidate.
        budget: The limit of the search, if any.
        baseline: The values that define the baseline's cell.
        metric: The metric that is compared. The default is the metric by which the runs are judged.
        tune: The values to choose from, for each tuned key.
        tune_seeds: The number of tuning seeds.
        start: PREDICTED or WIDEST: the width at which ladders start.
        min_coverage: The smallest share of a candidate's multiply-accumulates that must be rounded.
    """

    tolerance: Typed | None
    confidence: float
    most_seeds: int
    budget: Budget | None
    baseline: dict[str, Any]
    metric: str | None
    tune: dict[str, list[Any]]
    tune_seeds: int
    start: str
    min_coverage: float

    @property
    def alpha(self) -> float:
        """The error level, 1 minus the confidence."""
        return 1 - self.confidence / 100


@dataclass(frozen=True)
class ScreenSettings:
    """The settings in the `screen:` section.

    Attributes:
        roles: The roles that are screened.
        low: The low levels of each role, most bits first.
        high: The high level of each role.
        groups: The patterns of module names in each group; None for the default groups.
        most_factors: The maximum number of factors.
        foldover: Whether the design is folded over (`cpdrun.stats.screening`).
        seeds: The number of seeds for each row of the design.
        confidence: The confidence in percent.
        tolerance: The margin: a number in the displayed unit, or text such as "2%". None means the default.
        metric: The metric. The default is the metric by which the runs are judged.
        cost: The cost to minimize: WIRE or OPERATIONS.
        uniform: The levels that are used in all layers for comparison with the allocation.
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

        Searches use other seeds for their pairs, so that the runs which test an allocation did not influence it.
        """
        return range(FIRST_SEED, FIRST_SEED + self.seeds)

    def level(self, role: str, number: int) -> Level:
        """Return a role's level: 0 is high, and 1, 2 ... are the low levels."""
        return self.low[role][number - 1] if number else self.high[role]

    @property
    def rounds(self) -> int:
        """The maximum number of rounds."""
        return max(len(self.low[role]) for role in self.roles)


def settings(block: Mapping[str, Any]) -> Settings:
    """Read the `search:` section.

    Raises:
        ConfigError: A key is unknown or a value is not allowed.
    """
    _check_keys("search", block, Settings)
    return Settings(
        tolerance=_margin("search", block["tolerance"], "null is the default"),
        confidence=_confidence("search", block["confidence"]),
        most_seeds=_whole("search.most_seeds", block["most_seeds"], FEWEST_SEEDS),
        budget=budget(block["budget"]),
        baseline=_baseline(block["baseline"]),
        metric=_metric("search", block["metric"]),
        tune=_tune(block["tune"]),
        tune_seeds=_whole("search.tune_seeds", block["tune_seeds"], 1),
        start=_start(block["start"]),
        min_coverage=_share("search.min_coverage", block["min_coverage"]),
    )


def budget(value: Any) -> Budget | None:
    """Read a budget, such as `40` (runs) or `12h` (core time).

    Raises:
        ConfigError: The value is neither.
    """
    if value is None:
        return None
    text = str(value)
    if text.isdecimal() and int(text) > 0 and not isinstance(value, bool):
        return Budget(runs=int(text))
    time = _CORE_HOURS.fullmatch(text)
    if time is None or float(time[1]) == 0:
        _refuse("search.budget", value, "must be a number of runs, or core time: 12h, 90min")
    return Budget(core_hours=float(time[1]) / (60 if time[2] == "min" else 1))


def _baseline(value: Any) -> dict[str, Any]:
    if not (isinstance(value, Mapping) and value):
        _refuse(
            "search.baseline", value, "must give the baseline's values, such as {format: fp32, aps: false}"
        )
    return dict(value)


def _tune(value: Any) -> dict[str, list[Any]]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        _refuse("search.tune", value, "must map keys to the values to try, such as {optim.lr: [.05, .1, .2]}")
    found = {}
    for key, given in flatten(value):
        values = given if isinstance(given, list) else [given]
        if not values or any(each is None or isinstance(each, list | Mapping) for each in values):
            _refuse(f"search.tune.{key}", given, "must be the values to try, such as [.05, .1, .2]")
        if len({typed_form(each) for each in values}) < len(values):
            _refuse(f"search.tune.{key}", given, "names a value twice")
        found[key] = values
    return found


def _share(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        _refuse(key, value, "must be a share between 0 and 1, such as 0.5")
    return float(value)


def _start(value: Any) -> str:
    if value not in (PREDICTED, WIDEST):
        _refuse("search.start", value, f"must be {PREDICTED} or {WIDEST}")
    return value


# ---- The `screen:` block


def screen_settings(block: Mapping[str, Any], search: Mapping[str, Any]) -> ScreenSettings:
    """Read the `screen:` section. The `search:` section gives the default margin and metric.

    Raises:
        ConfigError: A key is unknown or a value is not allowed.
    """
    _check_keys("screen", block, ScreenSettings)
    roles = _roles(block["roles"])
    return ScreenSettings(
        roles=roles,
        low=_ladders(_by_role("low", block["low"]), roles),
        high=_levels("high", _by_role("high", block["high"]), [role for role in roles if role != GRADIENT])
        | ({GRADIENT: {"format": "fp32"}} if GRADIENT in roles else {}),
        groups=_groups(block["groups"]),
        most_factors=_whole("screen.most_factors", block["most_factors"], 1, LARGEST // 2),
        foldover=_foldover(block["foldover"]),
        seeds=_whole("screen.seeds", block["seeds"], 1, 1000),
        confidence=_confidence("screen", block["confidence"]),
        tolerance=_margin(
            "screen",
            search["tolerance"] if block["tolerance"] is None else block["tolerance"],
            "null is search.tolerance",
        ),
        metric=_metric("screen", search["metric"] if block["metric"] is None else block["metric"]),
        cost=_cost(block["cost"], roles),
        uniform=_uniform(block["uniform"], roles),
    )


def _roles(value: Any) -> tuple[str, ...]:
    given = value if isinstance(value, list) else [value]
    for role in given:
        if role not in ROLES:
            raise ConfigError(
                f"screen.roles={typed_form(value)}: must be one or more of {', '.join(ROLES)}"
                f"{did_you_mean(str(role), ROLES)}"
            )
    if not given or len(set(given)) < len(given):
        _refuse("screen.roles", value, f"must be one or more of {', '.join(ROLES)}, each once")
    return tuple(role for role in ROLES if role in given)


def _by_role(key: str, block: Any) -> Mapping[str, Any]:
    if not isinstance(block, Mapping):
        _refuse(f"screen.{key}", block, f"must name a format for each role, such as {{{GRADIENT}: e3m0}}")
    return block


def _levels(key: str, block: Mapping[str, Any], roles: Sequence[str]) -> dict[str, Level]:
    for role in block:
        if role not in ROLES:
            raise ConfigError(f"unknown key 'screen.{key}.{role}'{did_you_mean(str(role), ROLES)}")
    if key == "high" and block.get(GRADIENT) not in (None, "fp32"):
        _refuse(
            f"screen.high.{GRADIENT}",
            block[GRADIENT],
            "gradients at the high level are always in fp32: leave this key out",
        )
    missing = [role for role in roles if block.get(role) is None]
    if missing:
        raise ConfigError(
            f"screen.{key}.{missing[0]} is missing: give a format, because {missing[0]} is among screen.roles"
        )
    return {role: _level(f"{key}.{role}", block[role], is_gradient=role == GRADIENT) for role in roles}


def _ladders(block: Any, roles: Sequence[str]) -> dict[str, tuple[Level, ...]]:
    """Return the low levels of each role, most bits first."""
    first = {key: value[0] if isinstance(value, list) and value else value for key, value in block.items()}
    found: dict[str, tuple[Level, ...]] = {
        role: (level,) for role, level in _levels("low", first, roles).items()
    }
    for role in roles:
        if isinstance(given := block[role], list):
            found[role] = _ladder(f"low.{role}", given, is_gradient=role == GRADIENT)
    return found


def _ladder(key: str, given: list[Any], *, is_gradient: bool) -> tuple[Level, ...]:
    if is_gradient and len(given) > 1:
        _refuse(f"screen.{key}", given, "workers exchange low gradients in one format: name one")
    levels = tuple(_level(f"{key}[{i}]", each, is_gradient=is_gradient) for i, each in enumerate(given))
    widths = [float(parse(str(level["format"])).bits) for level in levels]
    if any(narrow >= wide for wide, narrow in pairwise(widths)):
        _refuse(f"screen.{key}", given, "each level must have fewer bits than the one before")
    return levels


def _level(key: str, value: Any, *, is_gradient: bool = False) -> Level:
    level = dict(value) if isinstance(value, Mapping) else {"format": value}
    allowed = ("format",) if is_gradient else RULE_KEYS
    if unknown := [name for name in level if name not in allowed]:
        _refuse(
            f"screen.{key}",
            value,
            f"must be a format, or a mapping of {', '.join(allowed)}; not {unknown[0]}",
        )
    name = level.get("format")
    try:
        if is_own(name):
            raise ValueError("only a run knows the bits of a format of your own; use one of cpdrun's formats")
        parse(str(name))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"screen.{key}={typed_form(value)}: {error}") from None
    return level


def _foldover(value: Any) -> bool:
    if not isinstance(value, bool):
        _refuse("screen.foldover", value, "must be true or false")
    return value


def _groups(value: Any) -> dict[str, list[str]] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping) or not value:
        _refuse(
            "screen.groups",
            value,
            "must map names to patterns of module names, such as {head: ['classifier']}",
        )
    found = {}
    for name, patterns in value.items():
        listed = patterns if isinstance(patterns, list) else [patterns]
        if not listed or not all(isinstance(pattern, str) and pattern for pattern in listed):
            _refuse(
                f"screen.groups.{name}", patterns, "must be patterns of module names, such as ['blocks.0.*']"
            )
        found[str(name)] = listed
    return found


def _cost(value: Any, roles: Sequence[str]) -> str:
    if value not in (None, WIRE, OPERATIONS):
        _refuse("screen.cost", value, f"must be {WIRE}, {OPERATIONS} or null")
    of_wire, of_products = GRADIENT in roles, any(role in PRODUCTS for role in roles)
    if value is None and of_wire and of_products:
        _refuse(
            "screen.cost",
            value,
            f"choose the cost to minimize: {WIRE} (gradients) or {OPERATIONS} (products)",
        )
    cost = value or (WIRE if of_wire else OPERATIONS)
    if cost == WIRE and not of_wire:
        _refuse("screen.cost", value, f"no role changes this cost: {GRADIENT} is not among screen.roles")
    if cost == OPERATIONS and not of_products:
        _refuse(
            "screen.cost", value, f"no role changes this cost: screen.roles has none of {', '.join(PRODUCTS)}"
        )
    return cost


def _uniform(value: Any, roles: Sequence[str]) -> tuple[Level, ...]:
    given = value if isinstance(value, list) else [value]
    is_gradient = GRADIENT in roles
    return tuple(_level(f"uniform[{i}]", each, is_gradient=is_gradient) for i, each in enumerate(given))


# ---- Values of both blocks


def _check_keys(block: str, given: Mapping[str, Any], known: type) -> None:
    names = list(known.__annotations__)
    for key in given:
        if key not in names:
            raise ConfigError(f"unknown key '{block}.{key}'{did_you_mean(key, names)}")


def _whole(key: str, value: Any, least: int, most: int | None = None) -> int:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or value < least or (most is not None and value > most):
        allowed = f"at least {least}" if most is None else f"{least} to {most}"
        _refuse(key, value, f"must be a whole number, {allowed}")
    return value


def _confidence(block: str, value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and 50 <= value < 100):
        _refuse(f"{block}.confidence", value, "must be a percentage, from 50 to below 100")
    return value


def _margin(block: str, value: Any, default: str) -> Typed | None:
    try:
        return None if value is None else parse_margin(value)
    except ValueError as error:
        raise ConfigError(f"{block}.tolerance={typed_form(value)}: {error}; {default}") from None


def _metric(block: str, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        _refuse(f"{block}.metric", value, "must be the name of a metric, such as test_loss, or null")
    return value


def _refuse(key: str, value: Any, allowed: str) -> NoReturn:
    raise ConfigError(f"{key}={typed_form(value)}: {allowed}")
