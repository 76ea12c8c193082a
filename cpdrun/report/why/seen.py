"""What the sum of gradients lost in a run, layer by layer and epoch by epoch, as its metrics.jsonl has it.

Reads `layers` of each row: {name: {"format", "exponent_min", "exponent_max", "underflow", "overflow", "nonfinite",
"sum_error"}}, the last statistics of that epoch (cpdrun.comm.statistics says what each is), and `nonfinite_gradients`,
the elements of the sums of that epoch that were inf or NaN, those among them that the format made numbers of.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from cpdrun.record import EpochRow
from cpdrun.study.axes import formats


@dataclass(frozen=True)
class Moment:
    """One layer at the end of one epoch. Shares are 0..1; what the record lacks is NaN, an exponent None."""

    epoch: int
    low: int | None  # floor(log2 |g|) of the smallest gradient of a worker other than 0
    high: int | None
    underflow: float  # of the values other than 0, those that the format made 0
    overflow: float
    sum_error: float  # ||sum - S|| / ||S||; NaN too where S is 0 or not finite
    nonfinite: int

    @property
    def span(self) -> int:
        """Powers of two from the smallest to the largest; 0 where there are none."""
        return 0 if self.low is None or self.high is None else self.high - self.low + 1


@dataclass(frozen=True)
class RoundedLayer:
    """One layer in the epochs in which its sum was rounded."""

    name: str
    format: str
    moments: list[Moment]

    @property
    def underflow(self) -> float:
        return mean(moment.underflow for moment in self.moments)

    @property
    def overflow(self) -> float:
        return mean(moment.overflow for moment in self.moments)

    @property
    def sum_error(self) -> float:
        return mean(moment.sum_error for moment in self.moments)

    @property
    def low(self) -> int | None:
        return min((m.low for m in self.moments if m.low is not None), default=None)

    @property
    def high(self) -> int | None:
        return max((m.high for m in self.moments if m.high is not None), default=None)


@dataclass(frozen=True)
class Nonfinite:
    """The first epoch in which a summed gradient was not finite."""

    epoch: int
    elements: int  # in all its steps
    layers: list[str]  # that had such values when they were last looked at; may be none


@dataclass(frozen=True)
class Seen:
    """`layers`: those whose sum was rounded, in the model's order; empty where the record has none."""

    layers: list[RoundedLayer]
    exact: list[str]  # layers that were summed in fp32
    nonfinite: Nonfinite | None
    epochs: int  # rows there are

    @property
    def underflow(self) -> float:
        """Mean over layers and epochs, as the others."""
        return mean(layer.underflow for layer in self.layers)

    @property
    def overflow(self) -> float:
        return mean(layer.overflow for layer in self.layers)

    @property
    def sum_error(self) -> float:
        return mean(layer.sum_error for layer in self.layers)

    @property
    def low(self) -> int | None:
        return min((layer.low for layer in self.layers if layer.low is not None), default=None)

    @property
    def high(self) -> int | None:
        return max((layer.high for layer in self.layers if layer.high is not None), default=None)

    def worst(self, most: int = 3) -> list[RoundedLayer]:
        """The layers whose sum is furthest off, then those that lost most; the worst first."""
        return sorted(self.layers, key=lambda one: (-_known(one.sum_error), -_known(one.underflow)))[:most]

    def by_epoch(self, figure: Callable[[Moment], float]) -> dict[int, float]:
        """The mean of a figure over the layers, by epoch; without epochs in which no layer has it."""
        epochs = sorted({moment.epoch for layer in self.layers for moment in layer.moments})
        found = {
            epoch: mean(figure(m) for layer in self.layers for m in layer.moments if m.epoch == epoch)
            for epoch in epochs
        }
        return {epoch: value for epoch, value in found.items() if math.isfinite(value)}


def seen(rows: Iterable[EpochRow]) -> Seen:
    """What these rows say; one that is damaged says nothing."""
    moments: dict[str, list[Moment]] = {}
    names: dict[str, str] = {}
    exact: dict[str, None] = {}
    nonfinite, count = None, 0
    for row in rows:
        count += 1
        layers = {name: one for name, one in (row.layers or {}).items() if isinstance(one, dict)}
        if nonfinite is None and (row.nonfinite_gradients or 0) > 0:
            having = [name for name, one in layers.items() if _count(one.get("nonfinite"))]
            nonfinite = Nonfinite(row.epoch, row.nonfinite_gradients or 0, having)
        for name, one in layers.items():
            if formats.is_baseline(one.get("format", "")):
                exact[name] = None
                continue
            names[name] = str(one.get("format", ""))
            moments.setdefault(name, []).append(_moment(row.epoch, one))
    rounded = [RoundedLayer(name, names[name], of) for name, of in moments.items()]
    return Seen(rounded, [name for name in exact if name not in names], nonfinite, count)


def mean(values: Iterable[float]) -> float:
    """Of those that are finite; NaN for none."""
    known = [value for value in values if math.isfinite(value)]
    return fmean(known) if known else math.nan


def _moment(epoch: int, one: Mapping[str, Any]) -> Moment:
    low, high = (_exponent(one.get(key)) for key in ("exponent_min", "exponent_max"))
    shares = (_number(one.get(key)) for key in ("underflow", "overflow", "sum_error"))
    return Moment(epoch, low, high, *shares, _count(one.get("nonfinite")))


def _number(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else math.nan


def _exponent(value: Any) -> int | None:
    return int(value) if math.isfinite(_number(value)) else None


def _count(value: Any) -> int:
    return int(value) if _number(value) > 0 else 0


def _known(value: float) -> float:
    return value if math.isfinite(value) else -1.0
