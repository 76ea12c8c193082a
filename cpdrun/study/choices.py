"""Compute the bit widths of config group choices, such as `precision=pure_fp8`, and of named cases.

The bit width of a choice is that of the widest format to which it rounds something:

- Values left in float32 are ignored, except that a choice that rounds nothing has 32 bits.
- The format of sums (`accumulator`) is ignored, because sums are neither stored nor sent, unless the choice rounds
  nothing else.
- A compressor has the bits of its levels (`min_max`, `qsgd`) or of its format. A `sync` without a compressor has the
  bits of the run's format.

A recipe is different, because it mixes formats on purpose: a few layers and attention may be in bf16, and the rest in
four bits. Its widest format would be uninformative. The bit width of a recipe is that of the narrowest format in which
matrix products read activations or gradients, because this format decides which hardware the recipe needs. If the
recipe rounds neither activations nor gradients, the narrowest of its other formats counts.

Choices with the same bit width are sorted by the number of settings that round, fewest first.
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
# The config section of the compressor. A run without this section uses no compressor, and the group `compressor` has no
# effect on it.
COMPRESSOR = "sync.compressor"
_OF_SUMS = "accumulator"
_OF_ACTIVATIONS = ("input", "output_gradient", "activation", "error", "activations", "errors")
_FORMAT = "format"


def section_of(group: str) -> str:
    """Return the name of the config section that a choice of `group` sets."""
    return {"compressor": COMPRESSOR, RECIPE: PRECISION}.get(group, group)


def choice(name: str, config: Mapping[str, Any], group: str, held: Sequence[str] = ()) -> Choice:
    """Return a choice of a group with its bit width.

    Args:
        name: The name of the choice.
        config: The settings of a run with this choice, keyed by dotted key.
        group: The config group of the choice.
        held: The keys of the group's section that are axes of their own. They are ignored.
    """
    values = {key: value for key, value in _section(config, group) if key not in held}
    return narrowest(name, values) if group == RECIPE else widest(name, values)


def of_case(name: str, config: Mapping[str, Any]) -> Choice:
    """Return a named case with its bit width.

    If the case has a recipe that rounds, the bit width is that of the recipe. Otherwise, it is that of the widest
    format of everything that the case rounds, including the gradients between workers.

    Args:
        name: The name of the case.
        config: The settings of a run of the case, keyed by dotted key.
    """
    recipe = choice(name, config, RECIPE)
    if isinstance(config.get(RECIPE), str) and not formats.is_baseline(recipe):
        return recipe
    found = {key: value for group in GROUPS for key, value in _section(config, group)}
    return widest(name, found | {_FORMAT: config.get(_FORMAT)})


def bits_choice(value: Any) -> Choice:
    """Return the choice for a value of a key that sets a number of bits, such as precision.weight_bits.

    Any value that is not a positive number, such as null, means float32.
    """
    bits = _number_of_bits(value)
    return Choice.made("fp32", 32, 8) if bits is None else Choice.made(str(value), bits, None)


def widest(name: str, values: Mapping[str, Any]) -> Choice:
    """Return a choice with the bits of its widest format.

    Args:
        name: The name of the choice.
        values: The settings, keyed by dotted key. Some of them may be a format or a number of bits.
    """
    found = [one for key, value in values.items() for one in _roundings(key, value)]
    kept = [one for one in found if not one[0]] or found
    if not kept:
        return Choice.made(name, 32, 8)
    _, bits, exponent_bits = max(kept, key=lambda one: (one[1], one[2] or 0))
    return Choice.made(name, bits, exponent_bits, rounds=len(found))


def narrowest(name: str, values: Mapping[str, Any]) -> Choice:
    """Return a recipe with the bits of the narrowest format in which matrix products read activations or gradients.

    Args:
        name: The name of the recipe.
        values: The settings of the recipe, keyed by dotted key.
    """
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
    """Return whether a key belongs to one of the GROUPS and sets a number of bits, as precision.weight_bits does."""
    last = key.rpartition(".")[2]
    return key.split(".")[0] in GROUPS and (last == "bits" or last.endswith("_bits"))


def _section(config: Mapping[str, Any], group: str) -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) for each setting of a group's section.

    For the groups `sync` and `compressor`, yield the compressor's settings, or the run's format if it has no
    compressor.
    """
    prefix = f"{section_of(group)}."
    own = [(key, value) for key, value in config.items() if key.startswith(prefix)]
    if group in ("sync", "compressor"):
        own = [(key, value) for key, value in config.items() if key.startswith(f"{COMPRESSOR}.")]
        own = own or [(_FORMAT, config.get(_FORMAT))]
    yield from own


def _roundings(key: str, value: Any) -> Iterator[tuple[bool, float, int | None]]:
    """Yield a tuple (is_accumulator, bits, exponent_bits) for each format other than fp32 that a setting names."""
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
    """Return a list from a config. `collect` stores a list as JSON text, which is decoded. Other values give ()."""
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


def _is_sparse(row: Mapping[str, Any], group: str) -> bool:
    """Return whether a row's compressor sends only some of the values, so that it has no bit width."""
    return any(
        key.rpartition(".")[2] == "keep" and value is not None and value == value
        for key, value in _section(row, group)
    )


def of_rows(rows: Sequence[Mapping[str, Any]], names: Sequence[str], group: str) -> list[Choice] | None:
    """Return the choice of each run, or None if the choices are not an axis of bits.

    The choices are not an axis of bits if there is only one, if all have the same bit width, exponent bits, and number
    of rounded settings, or if a compressor sends only some of the values, so that it has no bit width.

    Args:
        rows: For each run, its settings, keyed by dotted key.
        names: For each run, the name of its choice.
        group: The config group of the choices.
    """
    if len(set(names)) < 2 or any(_is_sparse(row, group) for row in rows):
        return None
    held = _held(rows, names, group)
    found = [choice(name, row, group, held) for name, row in zip(names, rows, strict=True)]
    return found if len({(one.bits, one.exponent_bits, one.rounds) for one in found}) > 1 else None


# ---- the choices of recorded runs


def with_choices(runs: pd.DataFrame) -> pd.DataFrame:
    """Add the choices of config groups to the table of runs.

    Args:
        runs: The runs, as `collect` returns them.

    Returns:
        The runs, with one more column for each group whose choices differ between runs in what they round. The column
        contains each run's Choice. If a key that sets a number of bits varies, its values are replaced by Choices too.
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
    """Return the name of each run's choice, or None if there are no choices to distinguish.

    The name is the choice that was typed for the run. If none was typed, it is the choice that was typed for another
    run with the same settings. If there is none either, it is fp32 if the settings round nothing. The result is None if
    all runs have the same settings, if no choice was typed for any run, or if any run has no name.
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
    """Return the choice that was typed for a run, or None if none was typed.

    For a recipe, this is the name in the config. For other groups, it is the last choice in the run's overrides.txt.
    """
    if group == RECIPE:
        return row[RECIPE] if isinstance(row.get(RECIPE), str) else None
    return last_typed(read_overrides(RunDir(Path(row["run:path"]))), group)


def last_typed(words: Sequence[str], group: str) -> str | None:
    """Return the choice of `group` that takes effect, which is the last one that was typed, or None if there is none.

    Args:
        words: The overrides from the command line.
        group: The config group.
    """
    found = [word.partition("=")[2] for word in words if word.partition("=")[0].lstrip("+") == group]
    return found[-1] if found else None


def _held(rows: Sequence[Mapping[str, Any]], names: Sequence[str], group: str) -> list[str]:
    """Return the keys of the group's section that differ between runs with the same choice.

    These keys are axes of their own.
    """
    first: dict[str, Mapping[str, Any]] = {}
    held: dict[str, None] = {}
    for row, name in zip(rows, names, strict=True):
        of_name = dict(_section(first.setdefault(name, row), group))
        held |= {key: None for key, value in _section(row, group) if repr(of_name.get(key)) != repr(value)}
    return list(held)


def _has_all(rows: Sequence[Mapping[str, Any]], key: str) -> bool:
    """Return whether every run has the same `_target_` class in the section that contains `key`."""
    target = f"{key.rpartition('.')[0]}._target_"
    return len({row.get(target) for row in rows}) == 1
