"""How many bits a choice of a group has, such as `precision=pure_fp8`, and so does a named case.

As many as the widest of the formats that it rounds to. What it leaves in float32 does not count, and neither does the
format of sums (`accumulator`), which nothing keeps and nobody sends, unless it rounds nothing else. A choice that
rounds nothing has 32. A compressor has the bits of its levels (`min_max`, `qsgd`), or those of its format; a `sync`
without one, those of the run's format.

A recipe mixes formats on purpose, a few layers and attention in bf16 beside the rest in four bits, so the widest would
say nothing: it has the bits of the narrowest format in which products read activations or gradients, which decides the
hardware that it needs; of weights, where it rounds no others.

A choice differs from another of as many bits in how much it rounds: the one that rounds less stands first.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from cpdrun.record import RunDir, read_overrides
from cpdrun.study.axes import formats
from cpdrun.study.axes.formats import Choice

RULE = "a choice has the bits of the widest format that it rounds to, sums aside; 32 where it rounds nothing"
OF_RECIPES = (
    "a recipe has the bits of the narrowest format in which products read activations or gradients; 32 where it rounds "
    "nothing"
)
GROUPS = ("precision", "recipe", "sync", "compressor")  # whose choices may name formats
RECIPE, PRECISION = "recipe", "precision"
COMPRESSOR = "sync.compressor"  # where a run has it: the group alone changes none
_OF_SUMS = "accumulator"
_OF_ACTIVATIONS = ("input", "output_gradient", "activation", "error", "activations", "errors")
_FORMAT = "format"


def section_of(group: str) -> str:
    """Where a run's config has what a choice of `group` sets."""
    return {"compressor": COMPRESSOR, RECIPE: PRECISION}.get(group, group)


def rule_of(group: str) -> str:
    """How many bits a choice of it has, in words."""
    return OF_RECIPES if group == RECIPE else RULE


def choice(name: str, config: Mapping[str, Any], group: str, held: Sequence[str] = ()) -> Choice:
    """What `config` (dotted keys) makes of this choice of `group`; `held`: keys that say something of their own."""
    values = {key: value for key, value in _section(config, group) if key not in held}
    return narrowest(name, values) if group == RECIPE else widest(name, values)


def of_case(name: str, config: Mapping[str, Any]) -> Choice:
    """The same of a named case: of all that it rounds, the gradients between workers too; of one that has a recipe, the
    recipe's."""
    recipe = choice(name, config, RECIPE)
    if isinstance(config.get(RECIPE), str) and not formats.is_baseline(recipe):
        return recipe
    found = {key: value for group in GROUPS for key, value in _section(config, group)}
    return widest(name, found | {_FORMAT: config.get(_FORMAT)})


def bits_choice(value: Any) -> Choice:
    """Of a key that is itself a number of bits, such as precision.weight_bits; null leaves float32."""
    bits = _number_of_bits(value)
    return Choice.made("fp32", 32, 8) if bits is None else Choice.made(str(value), bits, None)


def widest(name: str, values: Mapping[str, Any]) -> Choice:
    """`values`: those that may say a format or a number of bits, by their dotted keys."""
    found = [one for key, value in values.items() for one in _roundings(key, value)]
    kept = [one for one in found if not one[0]] or found
    if not kept:
        return Choice.made(name, 32, 8)
    _, bits, exponent_bits = max(kept, key=lambda one: (one[1], one[2] or 0))
    return Choice.made(name, bits, exponent_bits, rounds=len(found))


def narrowest(name: str, values: Mapping[str, Any]) -> Choice:
    """Of what products read: `values` as `widest` has them, of a recipe."""
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
    """Whether this key of one of the groups counts bits: precision.weight_bits, sync.compressor.bits."""
    last = key.rpartition(".")[2]
    return key.split(".")[0] in GROUPS and (last == "bits" or last.endswith("_bits"))


def _section(config: Mapping[str, Any], group: str) -> Iterator[tuple[str, Any]]:
    """Of a sync that compresses its compressor; of one that does not, the run's format."""
    prefix = f"{section_of(group)}."
    own = [(key, value) for key, value in config.items() if key.startswith(prefix)]
    if group in ("sync", "compressor"):
        own = [(key, value) for key, value in config.items() if key.startswith(f"{COMPRESSOR}.")]
        own = own or [(_FORMAT, config.get(_FORMAT))]
    yield from own


def _roundings(key: str, value: Any) -> Iterator[tuple[bool, float, int | None]]:
    """(whether it is of sums, bits, exponent bits) of each format other than fp32 that `key` names."""
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
    elif isinstance(value, str) and formats.bits(value) is not None and not formats.is_baseline(value):
        yield last == _OF_SUMS, formats.bits(value), formats.exponent_bits(value)


def _listed(value: Any) -> Sequence[Any]:
    """A list of a config, or as `collect` has it: in JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return ()
    return value if isinstance(value, list | tuple) else ()


def _number_of_bits(value: Any) -> int | float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return (int(value) if value == int(value) else value) if is_number and value > 0 else None


def _is_sparse(row: Mapping[str, Any], group: str) -> bool:
    """Whether it sends some of the values alone: then its width is no number of bits."""
    return any(
        key.rpartition(".")[2] == "keep" and value is not None and value == value
        for key, value in _section(row, group)
    )


def of_rows(rows: Sequence[Mapping[str, Any]], names: Sequence[str], group: str) -> list[Choice] | None:
    """The choices of `group`, called `names`, that configs (by dotted keys) have made; None where they are no axis of
    bits: one alone, none that rounds otherwise than another, or one that sends some of the values alone, whose width is
    no number of bits."""
    if len(set(names)) < 2 or any(_is_sparse(row, group) for row in rows):
        return None
    held = _held(rows, names, group)
    found = [choice(name, row, group, held) for name, row in zip(names, rows, strict=True)]
    return found if len({(one.bits, one.exponent_bits, one.rounds) for one in found}) > 1 else None


# ---- the choices of recorded runs


def with_choices(runs: pd.DataFrame) -> pd.DataFrame:
    """`runs` (of `collect`) with a column for each group of which they have several choices that differ in what they
    round: the name of the choice, as a Choice; and with numbers of bits that differ as Choices."""
    if runs.empty:
        return runs
    readable = runs[runs["run:problem"].isna()]
    rows = readable.to_dict("records")
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
    """The choice of each run: as it was typed, else as that of another run with the same values, else fp32 where they
    round nothing. None where one stays without."""
    sections = [tuple(sorted((k, repr(v)) for k, v in _section(row, group))) for row in rows]
    if len(set(sections)) == 1:
        return None
    typed = [_typed(row, group) for row in rows]
    if not any(typed):
        return None
    known = {section: name for section, name in zip(sections, typed, strict=True) if name}
    names: list[str | None] = []
    for row, section, name in zip(rows, sections, typed, strict=True):
        name = name or known.get(section)
        if name is None and formats.is_baseline(choice("", row, group)):
            name = "fp32"
        names.append(name)
    return names if all(names) else None


def _typed(row: Mapping[str, Any], group: str) -> str | None:
    """The last choice of `group` in the run's overrides.txt; of a recipe, the name that the config has."""
    if group == RECIPE:
        return row[RECIPE] if isinstance(row.get(RECIPE), str) else None
    return last_typed(read_overrides(RunDir(Path(row["run:path"]))), group)


def last_typed(words: Sequence[str], group: str) -> str | None:
    """The choice of `group` that counts, of what was typed."""
    found = [word.partition("=")[2] for word in words if word.partition("=")[0].lstrip("+") == group]
    return found[-1] if found else None


def _held(rows: Sequence[Mapping[str, Any]], names: Sequence[str], group: str) -> list[str]:
    """Keys of the group's section that differ between runs of one choice: they are axes of their own."""
    first: dict[str, Mapping[str, Any]] = {}
    held = {}
    for row, name in zip(rows, names, strict=True):
        of_name = dict(_section(first.setdefault(name, row), group))
        held |= {key: None for key, value in _section(row, group) if repr(of_name.get(key)) != repr(value)}
    return list(held)


def _has_all(rows: Sequence[Mapping[str, Any]], key: str) -> bool:
    """Whether the section of `key` has a class that takes it in every run."""
    target = f"{key.rpartition('.')[0]}._target_"
    return len({row.get(target) for row in rows}) == 1
