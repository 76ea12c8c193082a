"""The communication method of a run, from its config.

A method has a family, whose members share one style in plots, and the facts that the cost model needs. The keys of a
run's sync (conf/sync/*.yaml) determine the family. Names of classes do not, because the user may have defined them.
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

_COMPRESSORS = {  # the papers' names of compressor classes
    "TopK": "top-k",
    "RandomK": "random-k",
    "QSGD": "QSGD",
    "MinMax": "min-max",
    "Rounded": "rounded messages",
    "PowerSGD": "PowerSGD",
    "Sign": "sign",
}
# The compressor class that rounds messages. With local steps, the workers' updates are summed in the run's format, just
# as gradients are.
_IN_FORMAT = "Rounded"
_PLAIN = ("fp32", "bf16", "fp16")  # the formats that a platform's all_reduce can sum


@dataclass(frozen=True)
class Method:
    """The communication method of a run.

    Attributes:
        family: The name of the family, which plots and tables show.
        pattern: Which worker sends what to which other worker, one of costmodel.PATTERNS. None if the config does not
            determine it.
        format: The format of the run.
        aps: Whether the run uses APS.
        compressor: The compressor's key in a calibration. None without a compressor.
        every: The number of steps from one exchange to the next.
        gather: The format in which sharded weights are gathered. None if weights are not sharded.
    """

    family: str
    pattern: str | None = None
    format: str = "fp32"
    aps: bool = False
    compressor: str | None = None
    every: int = 1
    gather: str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the platform's all_reduce computes the same sums, except for the order of additions."""
        return self.pattern == "direct" and not self.aps and self.every == 1 and self.format in _PLAIN


def method_of(config: Mapping[str, Any]) -> Method:
    """Return the communication method of a run with these settings, given by dotted key."""
    name, aps = str(config.get("format")), bool(config.get("aps"))
    fmt = formats.parse(name)
    if fmt is not None and fmt.is_fp32:
        name = "fp32"
    kind = _last(config.get("sync._target_"))
    compressor = _settings(config, COMPRESSOR)
    of_compressor = _last(compressor.get("_target_"))
    steps = config.get("sync.inner_steps")
    if compressor and not (_is(steps) and of_compressor == _IN_FORMAT):
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
    """Return the paper's name of a compressor class, or the class name as words: `SignSGD` gives `sign SGD`."""
    if kind is None:
        return "compressed"
    known = _COMPRESSORS.get(kind)
    return known or re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind[:1].lower() + kind[1:])


def _last(target: Any) -> str | None:
    return str(target).rpartition(".")[2] if _is(target) else None


def _is(value: Any) -> bool:
    """Return whether a setting has a value. pandas stores NaN for a missing one."""
    return value is not None and not (isinstance(value, float) and math.isnan(value))
