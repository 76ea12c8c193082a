"""Names of formats and accumulators in a run's `precision`, looked at before anything starts. What the keys do, and how
they go together, is for its class to say (train/precision/formats.py)."""

from collections.abc import Mapping
from typing import Any

from custom_fp import accumulator
from custom_fp.formats.names import is_own, parse

from cpdrun.config.errors import ConfigError
from cpdrun.config.overrides import typed_form

FORMATS = "cpdrun.train.precision.formats.Formats"
SUMS = "accumulator"  # a key, and a role of rules
NAMES = ("weights", "activations", "errors", SUMS, "optimizer_state", "update")


def check_names(precision: Any, *, imports: bool = True) -> None:
    """Raises ConfigError for the first name that is none. Without `imports`, one in a module of the user's own is taken
    at its word. Of another class than ours nothing is looked at."""
    if not isinstance(precision, Mapping) or precision.get("_target_") != FORMATS:
        return
    for key in NAMES:
        if key in precision:
            _check(f"precision.{key}", precision[key], key == SUMS, imports)
    rules = precision.get("rules")
    for i, rule in enumerate(rules if isinstance(rules, list | tuple) else ()):
        if isinstance(rule, Mapping) and "format" in rule:
            role = rule.get("role")
            sums = SUMS in (role if isinstance(role, list | tuple) else [role])
            _check(f"precision.rules[{i}].format", rule["format"], sums, imports)


def _check(key: str, name: Any, sums: bool, imports: bool) -> None:
    if is_own(name) and not imports:
        return
    try:
        how = accumulator.read(name)[0] if sums else parse(name)
        if sums and getattr(how, "has_scales", False):
            raise ValueError("sums have no blocks that a scale could be of; take a format without scales")
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{key}={typed_form(name)}: {error}") from None
