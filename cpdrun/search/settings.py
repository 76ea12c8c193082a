"""Read the `search:` block, which says what a search decides.

The file conf/any_run.yaml documents the keys and their defaults.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cpdrun.config.errors import ConfigError, did_you_mean
from cpdrun.config.keys import flatten
from cpdrun.config.margin import Typed, parse_margin
from cpdrun.config.overrides import typed_form

MARGIN_KEY = "search.tolerance"
# Fewer seeds cannot settle a candidate.
FEWEST_SEEDS = 3
PREDICTED, WIDEST = "predicted", "widest"
_CORE_HOURS = re.compile(r"(\d+(?:\.\d+)?)\s*(h|min)")


@dataclass(frozen=True)
class Budget:
    """The limit of a search. It includes the runs that have ended.

    Attributes:
        runs: The number of runs, or None if it is not limited.
        core_hours: The core time, in hours, or None if it is not limited.
    """

    runs: int | None = None
    core_hours: float | None = None

    def __str__(self) -> str:
        return f"{self.runs} runs" if self.runs is not None else f"{self.core_hours:g} core-hours"


@dataclass(frozen=True)
class Settings:
    """The `search:` block.

    Attributes:
        tolerance: The margin, in points of a share or as a percentage, or None for the default.
        confidence: The confidence in percent.
        most_seeds: The largest number of seeds.
        budget: The limit of the search, or None.
        baseline: The values that make a cell the baseline.
        metric: The metric that is compared, or None for the metric by which the runs are judged.
        tune: The values to choose from, by key. It is empty if nothing is tuned.
        tune_seeds: The number of tuning seeds.
        start: PREDICTED or WIDEST.
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

    @property
    def alpha(self) -> float:
        """The error level, 1 minus the confidence."""
        return 1 - self.confidence / 100


def settings(block: Mapping[str, Any]) -> Settings:
    """Return the settings of a `search:` block.

    Raises:
        ConfigError: A key is unknown or a value is not allowed.
    """
    known = list(Settings.__annotations__)
    for key in block:
        if key not in known:
            raise ConfigError(f"unknown key 'search.{key}'{did_you_mean(key, known)}")
    return Settings(
        tolerance=margin(MARGIN_KEY, block["tolerance"]),
        confidence=_confidence(block["confidence"]),
        most_seeds=_most_seeds(block["most_seeds"]),
        budget=budget(block["budget"]),
        baseline=_baseline(block["baseline"]),
        metric=_metric(block["metric"]),
        tune=_tune(block["tune"]),
        tune_seeds=_tune_seeds(block["tune_seeds"]),
        start=_start(block["start"]),
    )


def budget(value: Any) -> Budget | None:
    """Return the budget: `40` is a number of runs, and `12h` or `90min` is core time.

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
        raise ConfigError(
            f"search.budget={typed_form(value)}: must be a number of runs, or core time: 12h, 90min"
        )
    return Budget(core_hours=float(time[1]) / (60 if time[2] == "min" else 1))


def margin(key: str, value: Any) -> Typed | None:
    """Return the margin that the key holds, or None for the default.

    Raises:
        ConfigError: The value is not a margin.
    """
    try:
        return None if value is None else parse_margin(value)
    except ValueError as error:
        raise ConfigError(f"{key}={typed_form(value)}: {error}; null is the default") from None


def _confidence(value: Any) -> float:
    if not (_is_number(value) and 50 <= value < 100):
        _refuse("confidence", value, "must be per cent, from 50 to below 100")
    return value


def _most_seeds(value: Any) -> int:
    if not (_is_number(value) and isinstance(value, int) and value >= FEWEST_SEEDS):
        _refuse("most_seeds", value, f"must be a whole number, at least {FEWEST_SEEDS}")
    return value


def _baseline(value: Any) -> dict[str, Any]:
    if not (isinstance(value, Mapping) and value):
        _refuse("baseline", value, "must say which cell it is, such as {format: fp32, aps: false}")
    return dict(value)


def _metric(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        _refuse("metric", value, "must be the name of a metric, such as test_loss, or null")
    return value


def _tune(value: Any) -> dict[str, list[Any]]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        _refuse("tune", value, "must map keys to the values to try, such as {optim.lr: [.05, .1, .2]}")
    found = {}
    for key, given in flatten(value):
        values = given if isinstance(given, list) else [given]
        if not values or any(each is None or isinstance(each, list | Mapping) for each in values):
            _refuse(f"tune.{key}", given, "must be the values to try, such as [.05, .1, .2]")
        if len({typed_form(each) for each in values}) < len(values):
            _refuse(f"tune.{key}", given, "names a value twice")
        found[key] = values
    return found


def _tune_seeds(value: Any) -> int:
    if not (_is_number(value) and isinstance(value, int) and value >= 1):
        _refuse("tune_seeds", value, "must be a whole number, at least 1")
    return value


def _start(value: Any) -> str:
    if value not in (PREDICTED, WIDEST):
        _refuse("start", value, f"must be {PREDICTED} or {WIDEST}")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _refuse(key: str, value: Any, allowed: str) -> None:
    raise ConfigError(f"search.{key}={typed_form(value)}: {allowed}")
