"""Which axis is that of bits: `format`, of what workers send, or another whose values all name formats, such as
`precision.weights`, count bits, or are choices of a group that names formats, such as `precision`; and which of its
values the others are compared with.

Of several such axes one is compared while the others are held: the one that the baseline asked for names, else
`format` where it varies, else that with most values. The baseline is the value that rounds nothing, else the widest,
unless one is asked for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from cpdrun.study.axes import choices, formats
from cpdrun.study.axes.formats import Choice
from cpdrun.study.axes.titles import axis_text, axis_title
from cpdrun.study.collect import CASE, FORMAT, config_keys, identity, settles

FP32 = "fp32"
APS = "aps"
USUAL = {FORMAT: FP32, APS: False}  # the baseline, where none is asked for


@dataclass(frozen=True)
class BitsAxis:
    key: str = FORMAT
    what: str = ""  # has these formats: `weights`, `weights and activations`; empty: what workers send
    against: Any = None  # the baseline's value; None: fp32
    is_widest: bool = False  # for want of fp32
    of_choices: bool = False
    of_cases: bool = False  # named cases are compared, rather than what each of them holds
    elsewhere: Mapping[str, Any] = field(default_factory=dict)  # values of the baseline on other axes
    has_value: bool = (
        True  # False: the baseline is told by those alone, and shares the format of what it serves
    )
    others: tuple[str, ...] = ()  # axes of bits that are held

    @property
    def is_of_gradients(self) -> bool:
        return self.key == FORMAT

    @property
    def noun(self) -> str:
        """What its values are: a number of bits is one of its choices too."""
        return "choice" if self.of_choices else "format"

    @property
    def baseline_name(self) -> str:
        """`fp32`, `bf16`; `fp32 with optim.lr 0.1` where more is asked for; `without APS` where that is all."""
        name = FP32 if self.against is None else str(self.against)
        words = [_in_words(key, value) for key, value in self.elsewhere.items()]
        if not self.has_value:
            return " and ".join(words)
        if not words:
            return name
        text = " and ".join(words)
        return f"{name} {text}" if text.startswith("with") else f"{name} with {text}"

    def is_baseline(self, keys: Mapping[str, Any], name: Any, *, is_case: bool) -> bool:
        """Of a group with these values, called `name`: by its case, or by its value on this axis."""
        if any(not formats.same(keys[key], value) for key, value in self.elsewhere.items()):
            return False
        if not self.has_value:
            return True
        if keys.get(APS) and self.is_of_gradients and not is_case and APS not in self.elsewhere:
            return False  # scaled: no baseline unless it is asked for
        return formats.is_baseline(name) if self.against is None else formats.same(name, self.against)

    @property
    def said(self) -> list[str]:
        """What the reader must know: how many bits a choice has, another baseline than fp32, what else is of bits."""
        lines = [f"{axis_title(self.key)}: {choices.rule_of(self.key)}"] if self.key in choices.GROUPS else []
        if self.is_widest:
            lines.append(
                f"{self.key} has no fp32: compared with the widest, {self.baseline_name}; "
                f"--baseline {self.key}=VALUE asks for another"
            )
        elif self.baseline_name != FP32:
            lines.append(f"compared with {self.baseline_name}")
        for key in self.others:
            lines.append(
                f"{key} names formats too, and is held here; --baseline {key}=VALUE compares along it"
            )
        return lines


def bits_axis(
    runs: pd.DataFrame, axes: Sequence[str], baseline: Mapping[str, Any], along: str | None = None
) -> BitsAxis:
    """`runs`: those that are compared; `axes`: what they differ in beyond format, aps and world size; `baseline`: the
    values that were asked for, by the report or by a search of the runs, or empty; `along`: the axis that was searched,
    where it was another than `format`."""
    baseline = _known(runs, baseline)
    values = {key: _values(runs, key) for key in (FORMAT, *axes) if key in runs.columns}
    named = [key for key in values if key not in (FORMAT, CASE) and all(map(is_of_bits, values[key]))]
    has_fp32 = any(formats.is_baseline(name) for name in values.get(CASE, ()))
    is_beside = bool(named) or (
        len(values[FORMAT]) > 1 and CASE in axes and not settles(runs, [CASE], FORMAT)
    )
    if CASE in axes and (CASE in baseline or has_fp32 or not is_beside):
        name = baseline.get(CASE)
        against = None if name is None or formats.is_baseline(name) else name
        beside = {key: value for key, value in baseline.items() if key != CASE and USUAL.get(key) != value}
        return BitsAxis(against=against, of_cases=True, elsewhere=_elsewhere(beside, runs))
    of_bits = {key: values[key] for key in (FORMAT, *named) if key in values}
    key = along if along in named else chosen_axis(of_bits, baseline)
    others = tuple(
        other for other in (FORMAT, *named) if other != key and other in values and len(values[other]) > 1
    )
    beside = {other: value for other, value in baseline.items() if other != key}
    if key == FORMAT:
        aps = beside.pop(APS, False)
        beside |= {APS: aps} if aps or (FORMAT not in baseline and baseline.get(APS) is not None) else {}
        name = baseline.get(FORMAT)
        return BitsAxis(
            against=None if name is None or formats.is_baseline(name) else name,
            elsewhere=_elsewhere(beside, runs),
            has_value=FORMAT in baseline or not beside,
            others=others,
        )
    if all(baseline.get(k) == v for k, v in USUAL.items()):  # that says nothing of this axis
        beside = {other: value for other, value in beside.items() if other not in USUAL}
    found, is_widest = baseline_value(values[key], baseline.get(key))
    against = None if formats.is_baseline(found) and not isinstance(found, Choice) else found
    of_choices = any(isinstance(value, Choice) for value in values[key])
    what = axis_title(key) if key in choices.GROUPS else _what(runs, key)
    return BitsAxis(
        key=key,
        what=what,
        against=against,
        is_widest=is_widest,
        of_choices=of_choices,
        elsewhere=_elsewhere(beside, runs),
        others=others,
    )


def chosen_axis(values: Mapping[str, Sequence[Any]], baseline: Mapping[str, Any]) -> str:
    """Of axes of bits (`format` among them) by their values: the one that `baseline` names, as that of a search does
    which says nothing of the format; else `format` where it varies; else that with most values."""
    asked = [key for key in values if key in baseline and key != FORMAT]
    if asked and (FORMAT not in baseline or len(values.get(FORMAT, ())) < 2):
        return max(asked, key=lambda key: len(values[key]))
    if len(values.get(FORMAT, ())) > 1 or (baseline and not baseline.keys() & values.keys()):
        return FORMAT
    return max((key for key in values if key != FORMAT), key=lambda key: len(values[key]), default=FORMAT)


def baseline_value(values: Sequence[Any], asked: Any = None) -> tuple[Any, bool]:
    """Which of an axis's values is the baseline: the one asked for, else the one that rounds nothing, else the widest;
    and whether it is that for want of another."""
    if asked is not None:
        return next((value for value in values if formats.same(value, asked)), asked), False
    unrounded = [value for value in values if formats.is_baseline(value)]
    if not unrounded:
        return min(values, key=formats.widest_first), True
    return next((value for value in unrounded if value == FP32), unrounded[0]), False


def is_of_bits(value: Any) -> bool:
    """Whether it names a format, however it is spelled, or is a choice of which the bits are known."""
    return isinstance(value, str) and formats.bits(value) is not None


def last_words(key: str) -> str:
    """`optimizer state` of `precision.optimizer_state`; `compressor bits` of `sync.compressor.bits`."""
    *before, last = key.split(".")
    return (f"{before[-1]} {last}" if last == "bits" and before else last).replace("_", " ")


def _what(runs: pd.DataFrame, key: str) -> str:
    """The last words of `key` and of those of its group that always have its value."""
    group = key.rpartition(".")[0]
    same = [
        other
        for other in config_keys(runs)
        if other.rpartition(".")[0] == group and (runs[other] == runs[key]).all()
    ]
    words = [last_words(other) for other in same]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _known(runs: pd.DataFrame, baseline: Mapping[str, Any]) -> dict[str, Any]:
    """What of `baseline` can tell runs apart: the values of keys that they have."""
    return {key: value for key, value in baseline.items() if value is not None and key in runs.columns}


def _elsewhere(values: Mapping[str, Any], runs: pd.DataFrame) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key == APS or len(_values(runs, key)) > 1}


def _values(runs: pd.DataFrame, key: str) -> list[Any]:
    return list({identity(value): value for value in runs[key]}.values())


def _in_words(key: str, value: Any) -> str:
    if key == APS:
        return "with APS" if value else "without APS"
    return f"{axis_title(key)} {axis_text(value)}"
