"""Name the axes that runs differ in, and find the axis of bits with its baseline.

An axis is a config key with several values. On an axis of bits, all values have a known bit width. It is one of

- `format`, the number format of what workers send;
- a key whose values name formats, such as `precision.weights`;
- a key whose values are numbers of bits, such as `precision.weight_bits`;
- a config group whose choices name formats, such as `precision`.

One axis of bits is compared: the one that the requested baseline names, or else `format` if it varies, or else the one
with the most values. Groups that differ on the others are not compared. The default baseline is the value that rounds
nothing, or the widest value if every value rounds.
"""

import math
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from cpdrun.study import choices, formats
from cpdrun.study.collect import CASE, FORMAT, RECIPE, SCALING, config_keys, identity, settles
from cpdrun.study.formats import Choice

SWEEP = "run:sweep"  # The column with the sweep's name. If a report covers several sweeps, it is an axis.
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.\w+)+")


def is_scaling(axis: str) -> bool:
    """Return True if an axis is the scaling rule for gradients or one of its settings."""
    return axis.split(".")[0] == SCALING


def is_strategy(axis: str) -> bool:
    """Return True if a plot shows runs with different values on this axis in one panel."""
    return is_scaling(axis) or axis == CASE


def plain(text: str) -> str:
    """Return the text without control characters, which affect terminals and are forbidden in XML."""
    return "".join(
        c if unicodedata.category(c) not in ("Cc", "Cs") else " " if c.isspace() else "?" for c in text
    )


def short(name: object, most: int = 14) -> str:
    """Shorten a name to `most` characters by removing its middle. Long names often differ at their ends."""
    text = plain(str(name))
    head = most // 2
    return text if len(text) <= most else f"{text[:head]}\N{HORIZONTAL ELLIPSIS}{text[head + 1 - most :]}"


def noun_of(key: str) -> str:
    """Return what a value of an axis of bits is called: "recipe", "format", or "choice" of another config group."""
    return "recipe" if key == RECIPE else "choice" if key in choices.GROUPS else "format"


def axis_title(name: str) -> str:
    """Return the title of an axis, such as `workers`, `sweep`, or `model`."""
    known = {"world_size": "workers", SWEEP: "sweep", "aps": "APS"}
    return known.get(name, plain(name.removesuffix("._target_")))


def short_titles(keys: Collection[str]) -> dict[str, str]:
    """Return a short title for each key, such as `lr` for `optim.lr`.

    Keys that share their last part keep their whole name.
    """
    last = {key: key.removesuffix("._target_").rpartition(".")[2] for key in keys}
    words = list(last.values())
    return {key: plain(word if words.count(word) == 1 else key) for key, word in last.items()}


def axis_text(value: Any) -> str:
    """Return a short text for a config value.

    Example: a dotted `_target_` gives the class name, a flag `yes` or `no`, and a missing value `-`.
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    text = plain(str(value))
    return text.rsplit(".", 1)[-1] if _DOTTED.fullmatch(text) else text


def hybrid(config: Mapping[str, Any]) -> str:
    """Describe the layers and epochs whose gradients are exchanged in fp32 (`full_precision`).

    Example: `the first 2 epochs`. The text is empty if there are none.
    """
    layers = str(config.get("full_precision.layers") or "")
    first, last = (config.get(f"full_precision.{which}_epochs") for which in ("first", "last"))
    named = plain(layers.strip("[] ")).replace('"', "")
    # With "*", all gradients are exchanged in fp32. The format then applies to something else, such as what the workers
    # that share a model exchange.
    if named == "*":
        return ""
    parts = [f"layers {named}"] if named not in ("", "nan") else []
    for which, count in (("first", first), ("last", last)):
        if isinstance(count, int | float) and count > 0:
            parts.append(f"the {which} {f'{count:.0f} epochs' if count > 1 else 'epoch'}")
    return " and ".join(parts)


FP32 = "fp32"
APS = "aps"
USUAL = {FORMAT: FP32, APS: False}  # This is the default baseline.


@dataclass(frozen=True)
class BitsAxis:
    """The axis along which formats are compared, and its baseline.

    Attributes:
        key: The config key of the axis.
        what: The tensors that have these formats, such as `weights and activations`. Empty for the axis `format`.
        against: The baseline's value on this axis. None for fp32.
        is_widest: Whether the baseline is only the widest value, because no value is fp32.
        of_choices: Whether the values are choices of a config group, such as `precision=pure_fp8`.
        of_cases: Whether named cases are compared instead of single settings.
        elsewhere: The baseline's values on other axes.
        has_value: Whether the baseline has a value on this axis. If not, it has its candidates' format, and differs
            only in `elsewhere`.
        others: The other axes of bits, which are held fixed.
    """

    key: str = FORMAT
    what: str = ""
    against: Any = None
    is_widest: bool = False
    of_choices: bool = False
    of_cases: bool = False
    elsewhere: Mapping[str, Any] = field(default_factory=dict)
    has_value: bool = True
    others: tuple[str, ...] = ()

    @property
    def is_of_gradients(self) -> bool:
        """Whether the axis is `format`, the format of the gradients that workers send."""
        return self.key == FORMAT

    @property
    def noun(self) -> str:
        """What a value of this axis is called: "recipe", "choice" or "format"."""
        return noun_of(self.key) if self.of_choices else "format"

    @property
    def baseline_name(self) -> str:
        """The baseline's name, such as `fp32`, `fp32 with optim.lr 0.1`, or `without APS`."""
        name = FP32 if self.against is None else str(self.against)
        words = [_in_words(key, value) for key, value in self.elsewhere.items()]
        if not self.has_value:
            return " and ".join(words)
        if not words:
            return name
        text = " and ".join(words)
        return f"{name} {text}" if text.startswith("with") else f"{name} with {text}"

    def is_baseline(self, keys: Mapping[str, Any], name: Any, *, is_case: bool) -> bool:
        """Return True if a group with these values is the baseline.

        `name` is the group's value on this axis, or the name of its case.
        """
        if any(not formats.same(keys[key], value) for key, value in self.elsewhere.items()):
            return False
        if not self.has_value:
            return True
        if keys.get(APS) and self.is_of_gradients and not is_case and APS not in self.elsewhere:
            return False  # A group with APS is the baseline only if APS was requested.
        return formats.is_baseline(name) if self.against is None else formats.same(name, self.against)


def bits_axis(
    runs: pd.DataFrame, axes: Sequence[str], baseline: Mapping[str, Any], along: str | None = None
) -> BitsAxis:
    """Return the axis of bits of some runs, with its baseline.

    Args:
        runs: The compared runs, as `collect` returns them.
        axes: The keys that the runs differ in, except format, aps, and world size.
        baseline: The baseline's requested values, keyed by config key. May be empty.
        along: The axis that was searched. None if it was `format` or is unknown.
    """
    baseline = _known(runs, baseline)
    values = {key: _values(runs, key) for key in (FORMAT, *axes) if key in runs.columns}
    named = [key for key in values if key not in (FORMAT, CASE) and all(map(is_of_bits, values[key]))]
    has_fp32 = any(formats.is_baseline(name) for name in values.get(CASE, ()))
    is_beside = bool(named) or (
        len(values[FORMAT]) > 1 and CASE in axes and not settles(runs, [CASE], FORMAT)
    )
    if CASE in axes and (CASE in baseline or has_fp32 or not is_beside):
        beside = {key: value for key, value in baseline.items() if key != CASE and USUAL.get(key) != value}
        against = _unless_fp32(baseline.get(CASE))
        return BitsAxis(against=against, of_cases=True, elsewhere=_elsewhere(beside, runs))
    of_bits = {key: values[key] for key in (FORMAT, *named) if key in values}
    key = along if along in named else chosen_axis(of_bits, baseline)
    others = tuple(other for other in of_bits if other != key and len(values[other]) > 1)
    if key == FORMAT:
        return _gradients_axis(runs, baseline, others)
    return _tensors_axis(runs, key, values[key], baseline, others)


def _gradients_axis(runs: pd.DataFrame, baseline: Mapping[str, Any], others: tuple[str, ...]) -> BitsAxis:
    """Return the axis `format` with its baseline.

    `aps: true` of the requested baseline becomes part of `BitsAxis.elsewhere`. `aps: false` does so only without a
    requested format, because it is the default.
    """
    beside = {key: value for key, value in baseline.items() if key not in (FORMAT, APS)}
    if baseline.get(APS) or (FORMAT not in baseline and baseline.get(APS) is not None):
        beside[APS] = baseline[APS]
    return BitsAxis(
        against=_unless_fp32(baseline.get(FORMAT)),
        elsewhere=_elsewhere(beside, runs),
        has_value=FORMAT in baseline or not beside,
        others=others,
    )


def _tensors_axis(
    runs: pd.DataFrame, key: str, values: Sequence[Any], baseline: Mapping[str, Any], others: tuple[str, ...]
) -> BitsAxis:
    """Return an axis of tensors other than gradients, such as `precision.weights` or `recipe`."""
    beside = {other: value for other, value in baseline.items() if other != key}
    # The default baseline is about gradients and does not restrict this axis.
    if all(baseline.get(k) == v for k, v in USUAL.items()):
        beside = {other: value for other, value in beside.items() if other not in USUAL}
    found, is_widest = baseline_value(values, baseline.get(key))
    return BitsAxis(
        key=key,
        what=axis_title(key) if key in choices.GROUPS else _what(runs, key),
        against=found if isinstance(found, Choice) else _unless_fp32(found),
        is_widest=is_widest,
        of_choices=any(isinstance(value, Choice) for value in values),
        elsewhere=_elsewhere(beside, runs),
        others=others,
    )


def _unless_fp32(name: Any) -> Any:
    return None if name is None or formats.is_baseline(name) else name


def chosen_axis(values: Mapping[str, Sequence[Any]], baseline: Mapping[str, Any]) -> str:
    """Return the key of the axis of bits along which formats are compared.

    1. An axis other than `format` that the baseline names, unless the baseline also names a format and `format` varies.
    2. `format`, if it varies or if the baseline names no axis of bits.
    3. The axis with the most values.

    Args:
        values: The values of each axis of bits, including `format`, keyed by the axis.
        baseline: The baseline's requested values, keyed by config key. Ignored if empty.
    """
    asked = [key for key in values if key in baseline and key != FORMAT]
    if asked and (FORMAT not in baseline or len(values.get(FORMAT, ())) < 2):
        return max(asked, key=lambda key: len(values[key]))
    if len(values.get(FORMAT, ())) > 1 or (baseline and not baseline.keys() & values.keys()):
        return FORMAT
    return max((key for key in values if key != FORMAT), key=lambda key: len(values[key]), default=FORMAT)


def baseline_value(values: Sequence[Any], asked: Any = None) -> tuple[Any, bool]:
    """Return the baseline's value on an axis, and whether it is merely the widest value.

    If no value is asked for, it is the value that rounds nothing, or the widest value if every value rounds.
    """
    if asked is not None:
        return next((value for value in values if formats.same(value, asked)), asked), False
    unrounded = [value for value in values if formats.is_baseline(value)]
    if not unrounded:
        return min(values, key=formats.widest_first), True
    return next((value for value in unrounded if value == FP32), unrounded[0]), False


def is_of_bits(value: Any) -> bool:
    """Return True if a value names a format or a choice with a known bit width."""
    return isinstance(value, str) and formats.bits(value) is not None


def last_words(key: str) -> str:
    """Return the last part of a key as words, such as `optimizer state` or `compressor bits`."""
    *before, last = key.split(".")
    return (f"{before[-1]} {last}" if last == "bits" and before else last).replace("_", " ")


def _what(runs: pd.DataFrame, key: str) -> str:
    """Return the tensors that an axis rounds, such as `weights and activations`.

    These are the last words of `key` and of the keys in its section that equal it in every run.
    """
    group = key.rpartition(".")[0]
    same = [
        other
        for other in config_keys(runs)
        if other.rpartition(".")[0] == group and (runs[other] == runs[key]).all()
    ]
    words = [last_words(other) for other in same]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _known(runs: pd.DataFrame, baseline: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of `baseline` that have a value and a column in `runs`."""
    return {key: value for key, value in baseline.items() if value is not None and key in runs.columns}


def _elsewhere(values: Mapping[str, Any], runs: pd.DataFrame) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key == APS or len(_values(runs, key)) > 1}


def _values(runs: pd.DataFrame, key: str) -> list[Any]:
    return list({identity(value): value for value in runs[key]}.values())


def _in_words(key: str, value: Any) -> str:
    if key == APS:
        return "with APS" if value else "without APS"
    return f"{axis_title(key)} {axis_text(value)}"
