"""Which axis is that of bits: `format`, of what workers send, or another whose values all name formats, such as
`precision.weights`; and which of its values the others are compared with.

Of several such axes one is compared while the others are held: `format` where it varies, else that with most values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from cpdrun.report.read import formats
from cpdrun.report.read.collect import CASE, FORMAT, config_keys, identity

FP32 = "fp32"


@dataclass(frozen=True)
class BitsAxis:
    key: str = FORMAT
    what: str = ""  # has these formats: `weights`, `weights and activations`; empty: what workers send
    against: Any = None  # the baseline's value; None: fp32
    is_widest: bool = False  # for want of fp32

    @property
    def is_of_gradients(self) -> bool:
        return self.key == FORMAT

    @property
    def baseline_name(self) -> str:
        return FP32 if self.against is None else str(self.against)

    def is_baseline(self, value: Any) -> bool:
        return (
            formats.is_baseline(value) if self.against is None else identity(value) == identity(self.against)
        )

    @property
    def said(self) -> str:
        """That another format than fp32 is the baseline; "" where none is."""
        if self.is_widest:
            return f"{self.key} has no fp32: compared with the widest, {self.baseline_name}"
        return "" if self.against is None else f"compared with {self.baseline_name}"


def bits_axis(runs: pd.DataFrame, axes: Sequence[str], baseline: Mapping[str, Any]) -> BitsAxis:
    """`runs`: those that are compared; `axes`: what they differ in beyond format, aps and world size; `baseline`: what
    a search of them named so, or empty."""
    if CASE in axes:
        name = baseline.get(CASE)
        return BitsAxis(against=None if name is None or formats.is_baseline(name) else name)
    values = {key: _values(runs, key) for key in axes}
    named = [key for key in axes if all(_is_format(value) for value in values[key])]
    if len(_values(runs, FORMAT)) > 1 or not named:
        name = None if baseline.get("aps") else baseline.get(FORMAT)
        return BitsAxis(against=None if name is None or formats.is_baseline(name) else name)
    key = max(named, key=lambda key: len(values[key]))
    what = _what(runs, key)
    if any(map(formats.is_baseline, values[key])):
        return BitsAxis(key, what)
    if baseline.get(key) in values[key]:
        return BitsAxis(key, what, baseline[key])
    return BitsAxis(key, what, min(values[key], key=_widest_first), is_widest=True)


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


def last_words(key: str) -> str:
    """`optimizer state` of `precision.optimizer_state`."""
    return key.rpartition(".")[2].replace("_", " ")


def _values(runs: pd.DataFrame, key: str) -> list[Any]:
    return list({identity(value): value for value in runs[key]}.values())


def _is_format(value: Any) -> bool:
    return isinstance(value, str) and formats.parse(value) is not None


def _widest_first(value: Any) -> tuple:
    bits, *rest = formats.order(value)
    return (-bits, *rest)
