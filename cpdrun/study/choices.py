"""Compute the bit widths of config group choices, such as `precision=pure_fp8`, and of named cases.

A choice has the bits of its widest rounding:

- Values in float32 do not count, but a choice that rounds nothing has 32 bits.
- The format of sums (`accumulator`) counts only if nothing else is rounded, because sums are neither stored nor sent.
- A compressor has the bits of its levels (`min_max`, `qsgd`) or of its format. A `sync` without a compressor has the
  bits of the run's format.

A recipe mixes formats on purpose, so its widest format tells little. It has the bits of the narrowest format in which
matrix products read activations or gradients, because this decides which hardware it needs. If it rounds neither, its
narrowest other format counts. These planned bits determine the order in which recipes are tested. After the products of
a recipe have been counted, reports and searches show their mean bits instead (`Group.mean_operand_bits`).

Choices with the same bits are sorted by the number of settings that round, fewest first.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from cpdrun.record import RunDir, read_overrides
from cpdrun.stats.means import is_number
from cpdrun.study import formats
from cpdrun.study.collect import as_rows
from cpdrun.study.formats import Choice

GROUPS = ("precision", "recipe", "sync", "compressor")  # Choices of these groups may name formats.
RECIPE, PRECISION = "recipe", "precision"
# A run without this config section uses no compressor.
COMPRESSOR = "sync.compressor"
_OF_SUMS = "accumulator"
_OF_ACTIVATIONS = ("input", "output_gradient", "activation", "error", "activations", "errors")
_FORMAT = "format"
_BIT_SETTINGS = {
    _FORMAT,
    "bits",
    "levels",
}  # The settings of a compressor that tell how many bits it sends per value.


def section_of(group: str) -> str:
    """Return the config section that a choice of `group` sets."""
    return {"compressor": COMPRESSOR, RECIPE: PRECISION}.get(group, group)


def choice(name: str, config: Mapping[str, Any], group: str, held: Sequence[str] = ()) -> Choice:
    """Return one choice of a config group, with its bit width.

    Args:
        name: The name of the choice.
        config: The settings of a run with this choice, keyed by dotted key.
        group: The config group of the choice.
        held: Keys of the group's section to ignore, because they are axes of their own.
    """
    values = {key: value for key, value in _section(config, group) if key not in held}
    return narrowest(name, values) if group == RECIPE else widest(name, values)


def of_case(name: str, config: Mapping[str, Any]) -> Choice:
    """Return a named case with its bit width, given the settings of one of its runs.

    This is the width of the case's recipe if it has one that rounds. Otherwise, it is the widest format that the case
    rounds to, including gradients between workers.
    """
    recipe = choice(name, config, RECIPE)
    if isinstance(config.get(RECIPE), str) and not formats.is_baseline(recipe):
        return recipe
    found = {key: value for group in GROUPS for key, value in _section(config, group)}
    return widest(name, found | {_FORMAT: config.get(_FORMAT)})


def bits_choice(value: Any) -> Choice:
    """Return the choice for a number of bits, such as a value of precision.weight_bits.

    Other values, such as null, mean fp32.
    """
    bits = _number_of_bits(value)
    return Choice.made("fp32", 32, 8) if bits is None else Choice.made(str(value), bits, None)


def widest(name: str, values: Mapping[str, Any]) -> Choice:
    """Return a choice with the bits of its widest format among some settings."""
    found = [one for key, value in values.items() for one in _roundings(key, value)]
    kept = [one for one in found if not one[0]] or found
    if not kept:
        return Choice.made(name, 32, 8)
    _, bits, exponent_bits = max(kept, key=lambda one: (one[1], one[2] or 0))
    return Choice.made(name, bits, exponent_bits, rounds=len(found))


def narrowest(name: str, values: Mapping[str, Any]) -> Choice:
    """Return a recipe with the bits of its narrowest format of activations or gradients."""
    found = [one for key, value in values.items() for one in _roundings(key, value)]
    read = [one for key, value in values.items() for one in _of_activations(key, value)] or found
    if not read:
        return widest(name, values)
    _, bits, exponent_bits = min(read, key=lambda one: (one[1], -(one[2] or 0)))
    return Choice.made(name, bits, exponent_bits, rounds=len(found))


def _of_activations(key: str, value: Any) -> Iterator[tuple[bool, float, int | None]]:
    last = key.rpartition(".")[2]
    if last == "rules":
        for rule in _listed(value):
            roles = rule.get("role") if isinstance(rule, Mapping) else None
            if any(role in _OF_ACTIVATIONS for role in (roles if isinstance(roles, list) else [roles])):
                yield from _roundings("input", rule.get("format"))
    elif last in _OF_ACTIVATIONS:
        yield from _roundings(last, value)


def counts_bits(key: str) -> bool:
    """Return True if a key of GROUPS sets a number of bits, as precision.weight_bits does."""
    last = key.rpartition(".")[2]
    return key.split(".")[0] in GROUPS and (last == "bits" or last.endswith("_bits"))


def _section(config: Mapping[str, Any], group: str) -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) for each setting of a group's section.

    For `sync` and `compressor`, these are the compressor's settings, or the run's format without a compressor.
    """
    prefix = f"{section_of(group)}."
    own = [(key, value) for key, value in config.items() if key.startswith(prefix)]
    if group in ("sync", "compressor"):
        own = [(key, value) for key, value in config.items() if key.startswith(f"{COMPRESSOR}.")]
        own = own or [(_FORMAT, config.get(_FORMAT))]
    yield from own


def _roundings(key: str, value: Any) -> Iterator[tuple[bool, float, int | None]]:
    """Yield (is_accumulator, bits, exponent_bits) for each format other than fp32 in a setting."""
    last = key.rpartition(".")[2]
    if last == "rules":
        for rule in _listed(value):
            if isinstance(rule, Mapping):
                yield from _roundings(str(rule.get("role")), rule.get("format"))
    elif counts_bits(key) or last == "bits":
        if (bits := _number_of_bits(value)) is not None:
            yield False, bits, None
    elif last == "levels" and isinstance(value, int):
        yield False, math.ceil(math.log2(2 * value + 1)), None
    elif (
        isinstance(value, str)
        and (size := formats.bits(value)) is not None
        and not formats.is_baseline(value)
    ):
        yield last == _OF_SUMS, size, formats.exponent_bits(value)


def _listed(value: Any) -> Sequence[Any]:
    """Return a list from a config, or () for other values. `collect` stores lists as JSON text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return ()
    return value if isinstance(value, list | tuple) else ()


def _number_of_bits(value: Any) -> int | float | None:
    if not is_number(value) or not 0 < value < math.inf:
        return None
    return int(value) if value == int(value) else value


def _has_no_bit_width(row: Mapping[str, Any], group: str) -> bool:
    """Return True if the compressor drops some values, or if its settings do not tell how many bits it sends."""
    settings = {
        key.rpartition(".")[2]
        for key, value in _section(row, group)
        if key.startswith(f"{COMPRESSOR}.") and value is not None and value == value
    }
    return "keep" in settings or bool(settings and settings.isdisjoint(_BIT_SETTINGS))


def of_rows(rows: Sequence[Mapping[str, Any]], names: Sequence[str], group: str) -> list[Choice] | None:
    """Return the choice of each run, or None if the choices are not an axis of bits.

    They are not if all of them round in the same way, if a compressor sends only some of the values, or if
    its settings do not tell how many bits it sends.

    Args:
        rows: The settings of each run, keyed by dotted key.
        names: The name of each run's choice.
        group: The config group of the choices.
    """
    if len(set(names)) < 2 or any(_has_no_bit_width(row, group) for row in rows):
        return None
    held = _held(rows, names, group)
    found = [choice(name, row, group, held) for name, row in zip(names, rows, strict=True)]
    return found if len({(one.bits, one.exponent_bits, one.rounds) for one in found}) > 1 else None


# ---- the choices of recorded runs


def with_choices(runs: pd.DataFrame) -> pd.DataFrame:
    """Add columns for the choices of config groups to the table of runs.

    A group gets a column of Choices if its choices differ in what they round. Varying numbers of bits become Choices,
    too.
    """
    if runs.empty:
        return runs
    readable = runs[runs["run:problem"].isna()]
    rows = as_rows(readable)
    for group in GROUPS:
        names = _names(rows, group)
        if names is not None and (found := of_rows(rows, names, group)) is not None:
            runs = runs.assign(**{group: pd.Series(found, index=readable.index, dtype=object)})
    for key in [key for key in runs.columns if counts_bits(key)]:
        if readable[key].notna().any() and readable[key].nunique(dropna=False) > 1 and _has_all(rows, key):
            found = [bits_choice(value) for value in readable[key]]
            runs = runs.assign(**{key: pd.Series(found, index=readable.index, dtype=object)})
    return runs


def _names(rows: Sequence[Mapping[str, Any]], group: str) -> list[str] | None:
    """Return the name of each run's choice, or None if there is nothing to distinguish.

    The name is the choice that the user typed for this run, or for another run with the same settings. If there is
    none, a run that rounds nothing is named fp32. The result is None if all runs have the same settings, if the user
    typed no choice, or if some run cannot be named.
    """
    sections = [tuple(sorted((k, repr(v)) for k, v in _section(row, group))) for row in rows]
    if len(set(sections)) == 1:
        return None
    typed = [_typed(row, group) for row in rows]
    if not any(typed):
        return None
    known = {section: name for section, name in zip(sections, typed, strict=True) if name}
    names: list[str] = []
    for row, section, name in zip(rows, sections, typed, strict=True):
        name = name or known.get(section)
        if name is None and formats.is_baseline(choice("", row, group)):
            name = "fp32"
        if name is None:
            return None
        names.append(name)
    return names


def _typed(row: Mapping[str, Any], group: str) -> str | None:
    """Return the choice that was typed for a run, or None.

    A recipe's name is in the config. Choices of other groups are in overrides.txt, where the last one counts.
    """
    if group == RECIPE:
        return row[RECIPE] if isinstance(row.get(RECIPE), str) else None
    return last_typed(read_overrides(RunDir(Path(row["run:path"]))), group)


def last_typed(words: Sequence[str], group: str) -> str | None:
    """Return the last typed choice of a group, or None. Only the last one takes effect."""
    found = [word.partition("=")[2] for word in words if word.partition("=")[0].lstrip("+") == group]
    return found[-1] if found else None


def _held(rows: Sequence[Mapping[str, Any]], names: Sequence[str], group: str) -> list[str]:
    """Return the keys of the group's section that differ between runs with the same choice."""
    first: dict[str, Mapping[str, Any]] = {}
    held: dict[str, None] = {}
    for row, name in zip(rows, names, strict=True):
        of_name = dict(_section(first.setdefault(name, row), group))
        held |= {key: None for key, value in _section(row, group) if repr(of_name.get(key)) != repr(value)}
    return list(held)


def _has_all(rows: Sequence[Mapping[str, Any]], key: str) -> bool:
    """Return True if every run has the same `_target_` in the section that contains `key`."""
    target = f"{key.rpartition('.')[0]}._target_"
    return len({row.get(target) for row in rows}) == 1
