"""Find the axis of bits and its baseline among planned runs, by the rules of `cpdrun.study.axes`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from custom_fp.formats.names import is_own
from custom_fp.formats.names import parse as parse_any

from cpdrun.config.errors import ConfigError
from cpdrun.config.identity import format_facts
from cpdrun.config.overrides import flatten, get_key, has_key, typed_form
from cpdrun.study import choices, formats
from cpdrun.study.axes import (
    APS,
    FP32,
    USUAL,
    BitsAxis,
    baseline_value,
    chosen_axis,
    is_of_bits,
)
from cpdrun.study.collect import CASE, FORMAT, SCALING, SEED
from cpdrun.sweep import Plan, PlannedRun


@dataclass(frozen=True)
class PlannedAxis:
    """The axis of bits of planned runs, or `case` if the runs are named cases.

    Attributes:
        key: The config key of the axis.
        baseline: The values in which a baseline differs from its candidates, keyed by config key, as typed.
        varies: The keys of the other axes with more than one value.
        held: The keys of further axes of bits, which the search holds fixed.
        is_widest: Whether the baseline is only the widest value, because every value rounds.
    """

    key: str
    baseline: dict[str, Any]
    varies: list[str]
    held: tuple[str, ...]
    is_widest: bool = False

    @property
    def own(self) -> list[str]:
        """The keys of the axes on which a baseline has its candidates' value."""
        said = [*self.baseline, *((APS, SCALING) if self.baseline.keys() & {APS, SCALING} else ())]
        return [key for key in (self.key, *self.varies) if key not in said]

    def of(self, run: PlannedRun) -> str:
        """Return a run's value on this axis, as a name with a known bit width."""
        return named_value(run, self.key)

    def is_baseline(self, run: PlannedRun) -> bool:
        """Return True if a run has the baseline's format, with or without scaling."""
        if self.key not in self.baseline or any(
            not formats.same(value_text(run, key), self.baseline[key])
            for key in self.held
            if key in self.baseline
        ):
            return False
        return formats.same(self.of(run), _as_named(self.key, self.baseline[self.key]))

    @property
    def baseline_name(self) -> str:
        """The baseline's name: a case, or a format with any further settings (`fp32 with optim.lr 0.1`)."""
        beside = {key: value for key, value in self.baseline.items() if key != self.key}
        if SCALING in beside:
            beside = {APS: beside.pop(SCALING) != "none"} | beside
        if self.key == FORMAT and FORMAT in self.baseline and not beside.get(APS):
            beside.pop(APS, None)
        against = _as_named(self.key, self.baseline[self.key]) if self.key in self.baseline else None
        return BitsAxis(against=against, elsewhere=beside, has_value=against is not None).baseline_name


def read_axis(first: Plan, asked: Mapping[str, Any], *, is_whole: bool) -> PlannedAxis:
    """Return the axis of bits of an experiment.

    Args:
        first: The plan of the runs of one seed.
        asked: The config section `search.baseline`.
        is_whole: Whether the user typed the whole section. If not, values that equal the default are ignored.

    Raises:
        ConfigError: Only some values of an axis are formats, or the baseline names none of the named cases.
    """
    given = {key: value for key, value in flatten(asked) if value is not None}
    if not is_whole:
        given = {key: value for key, value in given.items() if key not in USUAL or USUAL[key] != value}
    varies = [key for key, values in first.axes.items() if len(values) > 1 and key != SEED]
    cases = {str(name) for name in first.axes.get(CASE, ())}
    if CASE in given or FP32 in cases:
        baseline = {CASE: given.get(CASE, FP32)} | {k: v for k, v in given.items() if USUAL.get(k) != v}
        return PlannedAxis(CASE, baseline, [key for key in varies if key != CASE], ())
    values = {FORMAT: first.axes.get(FORMAT, [FP32]), **_of_bits(first, [*varies, *given])}
    key = chosen_axis(values, given)
    held = tuple(other for other in values if other != key and len(values[other]) > 1)
    if cases and key == FORMAT and len(values[FORMAT]) < 2:
        raise ConfigError(
            f"no case is called {FP32}: choose the baseline with search.baseline={{case: NAME}}, where NAME is one of "
            f"{', '.join(sorted(cases))}"
        )
    is_widest = False
    if key == FORMAT:
        baseline = given if is_whole else {**USUAL, **given}
        if FORMAT in baseline:  # A baseline {format: bf16} means bf16 without APS.
            is_scaled = {} if SCALING in baseline else {APS: False}
            fmt = formats.parse(baseline[FORMAT])
            baseline = is_scaled | baseline | ({} if fmt is None else {FORMAT: fmt.name})
    else:
        found, is_widest = baseline_value(values[key], given.get(key))
        raw = next(
            (raw for raw in first.axes.get(key, ()) if formats.same(_as_named(key, raw), found)), found
        )
        baseline = {**given, key: raw}
    return PlannedAxis(key, baseline, [other for other in varies if other != key], held, is_widest)


def named_value(run: PlannedRun, key: str) -> str:
    """Return a run's value on an axis: a format, a group's choice, or a case."""
    if key == CASE:
        return choices.of_case(str(run.config[CASE]), _flat(run))
    if key in choices.GROUPS:
        return choices.choice(value_text(run, key), _flat(run), key)
    return _as_named(key, get_key(run.config, key) if has_key(run.config, key) else None)


def value_text(run: PlannedRun, key: str) -> Any:
    """Return a run's value on an axis. A config group's value is the choice that was typed last."""
    value = get_key(run.config, key) if has_key(run.config, key) else None
    if not isinstance(value, Mapping):
        return _as_named(key, value) if key == choices.RECIPE else value
    typed = choices.last_typed(run.overrides, key)
    return value.get("_target_", key) if typed is None else typed


def values_of(axis: PlannedAxis, against: PlannedRun, others: Sequence[PlannedRun]) -> dict[str, Any]:
    """Return the settings that identify the baseline, under the keys of run records.

    Records contain the name of a group's choice only if the group is the axis of bits. For other groups, the result has
    each setting of the group's section in which the baseline's run differs from another run.
    """
    found: dict[str, Any] = {}
    ours, theirs = _flat(against), [_flat(run) for run in others]
    for key, value in axis.baseline.items():
        section, dot, rest = key.partition(".")
        if key == axis.key:
            found[f"{choices.section_of(section)}.{rest}" if dot else key] = _as_named(key, value)
        elif key in ours:
            found[key] = ours[key]
        else:
            leaves = [leaf for leaf in ours if leaf.startswith(f"{choices.section_of(key)}.")]
            # If a run does not scale its gradients, its record does not contain the chosen rule.
            if key == SCALING:
                leaves = [APS, *leaves] if ours[APS] else [APS]
            found |= {k: ours[k] for k in leaves if any(flat.get(k) != ours[k] for flat in theirs)}
    return {key: str(value) if isinstance(value, str) else value for key, value in found.items()}


def _of_bits(first: Plan, keys: Sequence[str]) -> dict[str, list[str]]:
    """Return the names of the values of each axis of bits among these keys."""
    found = {}
    for key in dict.fromkeys(keys):
        if key in (FORMAT, APS, SEED, CASE):
            continue
        if key not in first.axes:  # Only the baseline has another value on this key.
            names = [named_value(first.runs[0], key)]
        elif key in choices.GROUPS:
            names = _choices(first, key)
        else:
            names = [_as_named(key, value) for value in first.axes[key]]
            _check(key, names)
        if names and all(map(is_of_bits, names)):
            found[key] = names
    return found


def _choices(first: Plan, group: str) -> list[str]:
    """Return the distinct choices of a group. Empty if they all round the same."""
    rows = [_flat(run) for run in first.runs]
    names = [str(value_text(run, group)) for run in first.runs]
    found = choices.of_rows(rows, names, group)
    return list(dict.fromkeys(found or ()))


def _check(key: str, names: Sequence[Any]) -> None:
    """Raise a ConfigError if some values of an axis are formats and others are not."""
    wrong = [name for name in names if not is_of_bits(name)]
    if key.split(".")[0] not in choices.GROUPS or not wrong or len(wrong) == len(names):
        return
    if is_own(wrong[0]):
        raise ConfigError(
            f"{key}={wrong[0]}: a format of your own can only be searched with format=, not with {key}="
        )
    try:
        parse_any(wrong[0])
    except ValueError as error:
        raise ConfigError(f"{key}={typed_form(wrong[0])}: {error}") from None


def _as_named(key: str, value: Any) -> Any:
    """Return a value of an axis, as a name with its bit width if it has one."""
    if choices.counts_bits(key):
        return choices.bits_choice(value)
    if key == FORMAT and is_own(value):
        return formats.Recorded.of(value, format_facts(value))
    return FP32 if key == choices.RECIPE and value is None else value


def _flat(run: PlannedRun) -> dict[str, Any]:
    flat = dict(flatten(run.config))
    return flat | {FORMAT: _as_named(FORMAT, flat.get(FORMAT))}
