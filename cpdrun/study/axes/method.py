"""How a run's workers exchange what they learnt, read off its config: the family that a picture gives one look, and
what a cost model must know of it.

A family is told by the keys that its sync has (conf/sync/*.yaml), not by the names of classes, which may be a user's
own.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cpdrun.costmodel import compressor_key
from cpdrun.study.axes import formats

WITH_APS, WITHOUT_APS = "with APS", "without APS"
LOCAL, SHARDED, GOSSIP = "local steps", "sharded", "gossip"
COMPRESSOR = "sync.compressor."

_COMPRESSORS = {  # names as papers have them, of classes whose name is not
    "TopK": "top-k",
    "RandomK": "random-k",
    "QSGD": "QSGD",
    "MinMax": "min-max",
    "Rounded": "rounded messages",
    "PowerSGD": "PowerSGD",
    "Sign": "sign",
}
_IN_FORMAT = "Rounded"  # of outer steps: what workers moved is summed in the format, as gradients are
_PLAIN = ("fp32", "bf16", "fp16")  # what a platform's own all_reduce sums


@dataclass(frozen=True)
class Method:
    """`pattern`: who sends what to whom, one of costmodel.PATTERNS; None where the config says too little."""

    family: str
    pattern: str | None = None
    format: str = "fp32"
    aps: bool = False
    compressor: str | None = None  # its key in a calibration
    every: int = 1  # steps from one exchange to the next
    gather: str | None = None  # of sharded weights: their format

    @property
    def is_plain(self) -> bool:
        """Whether the platform's own all_reduce does the same, but for the order of its additions."""
        return self.pattern == "direct" and not self.aps and self.every == 1 and self.format in _PLAIN


def method_of(config: Mapping[str, Any]) -> Method:
    """Of a run's settings, by their dotted keys."""
    name, aps = str(config.get("format")), bool(config.get("aps"))
    fmt = formats.parse(name)
    if fmt is not None and fmt.is_fp32:
        name = "fp32"
    kind = _last(config.get("sync._target_"))
    compressor = _settings(config, COMPRESSOR)
    of_compressor = _last(compressor.get("_target_"))
    steps = config.get("sync.inner_steps")
    if compressor and not (_is(steps) and of_compressor == _IN_FORMAT):  # else: a sum in the format
        family, pattern, key = _compressor_words(of_compressor), "messages", compressor_key(compressor)
    elif kind is not None and "powersgd" in kind.lower():
        family, pattern, key = "PowerSGD", "factors", compressor_key(_settings(config, "sync."))
    else:
        family, pattern, key = WITH_APS if aps else WITHOUT_APS, "direct", None
    if _is(steps):
        return Method(LOCAL, pattern, name, aps, key, every=max(1, int(steps)))
    if _is(gather := config.get("sync.gather")):
        return Method(SHARDED, "sharded", name, aps, gather=str(gather))
    if any(setting.startswith("sync.topology") and _is(value) for setting, value in config.items()):
        return Method(GOSSIP, "neighbours", name, aps, key)
    return Method(family, None if kind is None else pattern, name, aps, key)


def _settings(config: Mapping[str, Any], section: str) -> dict[str, Any]:
    return {k.removeprefix(section): v for k, v in config.items() if k.startswith(section) and _is(v)}


def _compressor_words(kind: str | None) -> str:
    """`SignSGD` -> `sign SGD`, where no paper's name is known."""
    if kind is None:
        return "compressed"
    known = _COMPRESSORS.get(kind)
    return known or re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind[:1].lower() + kind[1:])


def _last(target: Any) -> str | None:
    return str(target).rpartition(".")[2] if _is(target) else None


def _is(value: Any) -> bool:
    """Whether a column has a value here: pandas has NaN where it has none."""
    return value is not None and not (isinstance(value, float) and math.isnan(value))
