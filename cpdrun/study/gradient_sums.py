"""How a run summed its gradients, what rounding did to the sums, and the main reason why the sums are wrong.

metrics.jsonl contains, in each row, possibly `layers`: {name: {"format", "exponent_min", "exponent_max", "underflow",
"overflow", "nonfinite", "sum_error"}}, the last statistics of that epoch. `cpdrun.comm.statistics` defines each of
them. A row may also have `nonfinite_gradients`, the number of elements of the epoch's sums that were inf or NaN,
including those that the format turned into finite numbers.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from typing import Any

from custom_fp.formats.scalar import Format

from cpdrun.record import EpochRow
from cpdrun.study import formats

FLAT_UP_TO = 8  # group_size=auto adds up to this many workers in one chain


def longest_chain(sync: Mapping[str, Any], workers: int) -> int | None:
    """Return the largest number of rounded additions in series; None for an unknown order."""
    order = sync.get("order")
    if order in ("rank", "ring"):
        return workers - 1
    if order == "exact" or str(order).startswith("aligned"):
        return min(1, workers - 1)
    if order == "tree":
        return math.ceil(math.log2(workers))
    if order == "hierarchical":
        group = group_size(sync, workers)
        return group - 1 + math.ceil(workers / group) - 1
    return None


def workers_per_scale(sync: Mapping[str, Any], workers: int) -> int:
    """Return the number of workers in one chain. A scale leaves powers of two free for their sum."""
    order = sync.get("order")
    if order == "tree":
        return min(2, workers)
    return group_size(sync, workers) if order == "hierarchical" else workers


def group_size(sync: Mapping[str, Any], workers: int) -> int:
    """Return the number of workers in a group of the hierarchical order."""
    given = sync.get("group_size")
    if isinstance(given, int):
        return min(given, workers)
    if workers <= FLAT_UP_TO:
        return workers
    root = math.sqrt(workers)
    divisors = [n for n in range(2, workers) if workers % n == 0]
    return min(divisors, key=lambda n: (abs(n - root), n)) if divisors else math.ceil(root)


@dataclass(frozen=True)
class EpochStatistics:
    """Statistics of one layer at the end of one epoch. Shares are in [0, 1]; a missing figure is NaN or None.

    Attributes:
        low: floor(log2 |g|) of the smallest nonzero gradient of any worker.
        high: The same for the largest gradient.
        underflow: The share of the nonzero values that the format rounded to 0.
        overflow: The share of the values above the format's largest.
        sum_error: ||sum - S|| / ||S||, where S is the exact sum; NaN also if S is 0 or not finite.
        nonfinite: The number of elements of the sum that were not finite.
    """

    epoch: int
    low: int | None
    high: int | None
    underflow: float
    overflow: float
    sum_error: float
    nonfinite: int

    @property
    def span(self) -> int:
        """The number of powers of two from the smallest to the largest gradient; 0 if unknown."""
        return 0 if self.low is None or self.high is None else self.high - self.low + 1


@dataclass(frozen=True)
class LayerStatistics:
    """Statistics of one layer in the epochs in which its sum was rounded."""

    name: str
    format: str
    epochs: list[EpochStatistics]

    @property
    def underflow(self) -> float:
        return mean_of_known(epoch.underflow for epoch in self.epochs)

    @property
    def overflow(self) -> float:
        return mean_of_known(epoch.overflow for epoch in self.epochs)

    @property
    def sum_error(self) -> float:
        return mean_of_known(epoch.sum_error for epoch in self.epochs)

    @property
    def low(self) -> int | None:
        return min((epoch.low for epoch in self.epochs if epoch.low is not None), default=None)

    @property
    def high(self) -> int | None:
        return max((epoch.high for epoch in self.epochs if epoch.high is not None), default=None)


@dataclass(frozen=True)
class NonfiniteGradients:
    """The first epoch in which a summed gradient was not finite.

    Attributes:
        elements: The number of such elements in all steps of that epoch.
        layers: The layers that had such values in the last statistics of that epoch; possibly none.
    """

    epoch: int
    elements: int
    layers: list[str]


@dataclass(frozen=True)
class GradientStatistics:
    """Statistics of the sums of gradients of a run; figures are means over layers and epochs.

    Attributes:
        layers: The layers whose sum was rounded, in the model's order; empty if the record has none.
        exact: The layers that were summed in fp32.
        nonfinite: The first sum that was not finite; None if there was none.
    """

    layers: list[LayerStatistics]
    exact: list[str]
    nonfinite: NonfiniteGradients | None

    @property
    def underflow(self) -> float:
        return mean_of_known(layer.underflow for layer in self.layers)

    @property
    def overflow(self) -> float:
        return mean_of_known(layer.overflow for layer in self.layers)

    @property
    def sum_error(self) -> float:
        return mean_of_known(layer.sum_error for layer in self.layers)

    @property
    def low(self) -> int | None:
        return min((layer.low for layer in self.layers if layer.low is not None), default=None)

    @property
    def high(self) -> int | None:
        return max((layer.high for layer in self.layers if layer.high is not None), default=None)

    def worst(self, most: int = 3) -> list[LayerStatistics]:
        """Return the layers with the largest error of the sum, then with the most underflow, worst first."""
        return sorted(self.layers, key=lambda one: (-_known(one.sum_error), -_known(one.underflow)))[:most]

    def by_epoch(self, figure: Callable[[EpochStatistics], float]) -> dict[int, float]:
        """Return the mean of a figure over the layers for each epoch in which it is known."""
        rows = [row for layer in self.layers for row in layer.epochs]
        epochs = sorted({row.epoch for row in rows})
        means = {epoch: mean_of_known(figure(row) for row in rows if row.epoch == epoch) for epoch in epochs}
        return {epoch: value for epoch, value in means.items() if math.isfinite(value)}


def gradient_statistics(rows: Iterable[EpochRow]) -> GradientStatistics:
    """Return the statistics in the rows of a record. Damaged entries are skipped."""
    epochs: dict[str, list[EpochStatistics]] = {}
    formats_by_layer: dict[str, str] = {}
    exact: dict[str, None] = {}
    nonfinite = None
    for row in rows:
        layers = {name: one for name, one in (row.layers or {}).items() if isinstance(one, dict)}
        if nonfinite is None and (row.nonfinite_gradients or 0) > 0:
            having = [name for name, one in layers.items() if _count(one.get("nonfinite"))]
            nonfinite = NonfiniteGradients(row.epoch, row.nonfinite_gradients or 0, having)
        for name, one in layers.items():
            if formats.is_baseline(one.get("format", "")):
                exact[name] = None
                continue
            formats_by_layer[name] = str(one.get("format", ""))
            epochs.setdefault(name, []).append(_epoch_statistics(row.epoch, one))
    rounded = [LayerStatistics(name, formats_by_layer[name], of_layer) for name, of_layer in epochs.items()]
    return GradientStatistics(rounded, [name for name in exact if name not in formats_by_layer], nonfinite)


def mean_of_known(values: Iterable[float]) -> float:
    """Return the mean of the finite values; NaN if there are none."""
    known = [value for value in values if math.isfinite(value)]
    return fmean(known) if known else math.nan


def _epoch_statistics(epoch: int, entry: Mapping[str, Any]) -> EpochStatistics:
    return EpochStatistics(
        epoch,
        low=_exponent(entry.get("exponent_min")),
        high=_exponent(entry.get("exponent_max")),
        underflow=_number(entry.get("underflow")),
        overflow=_number(entry.get("overflow")),
        sum_error=_number(entry.get("sum_error")),
        nonfinite=_count(entry.get("nonfinite")),
    )


def _number(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else math.nan


def _exponent(value: Any) -> int | None:
    return int(value) if math.isfinite(_number(value)) else None


def _count(value: Any) -> int:
    return int(value) if _number(value) > 0 else 0


# Below this error of the sum (relative to its norm) rounding does not spoil a run. For comparison, e4m3 with APS and 8
# workers has 0.056 and equals fp32.
HARMFUL_SUM_ERROR = 0.05
MANY_UNDERFLOW = 0.2  # if a larger share of the gradients becomes 0, underflow is the main reason
SOME_OVERFLOW = 1e-4  # a single infinity spoils a whole step of its layer
NEARLY_ALL = 0.9


class Cause(StrEnum):
    OVERFLOW = "overflow"  # values above the format's largest
    UNDERFLOW = "underflow"  # values that become 0
    ADDITIONS = "additions"  # rounded partial sums
    SMALL = "small"  # the sum is hardly wrong
    UNSEEN = "unseen"  # the record has no layers
    EXACT = "exact"  # gradients are summed in fp32


@dataclass(frozen=True)
class Reason:
    """The main cause, the statistics behind it, and the layers that suffer most from it, worst first."""

    cause: Cause
    statistics: GradientStatistics
    worst: list[LayerStatistics]


def find_reason(statistics: GradientStatistics) -> Reason:
    """Return the main reason why the sums of gradients are wrong."""
    if not statistics.layers:
        return Reason(Cause.EXACT if statistics.exact else Cause.UNSEEN, statistics, [])
    if statistics.overflow > SOME_OVERFLOW:
        worst = sorted(statistics.layers, key=lambda one: -_known(one.overflow))[:3]
        return Reason(Cause.OVERFLOW, statistics, worst)
    if not statistics.sum_error > HARMFUL_SUM_ERROR and not statistics.underflow > NEARLY_ALL:
        return Reason(Cause.SMALL, statistics, statistics.worst())
    cause = Cause.UNDERFLOW if statistics.underflow > MANY_UNDERFLOW else Cause.ADDITIONS
    return Reason(cause, statistics, statistics.worst())


def exponent_range(name: str) -> tuple[int, int] | None:
    """Return the exponents of a format's smallest subnormal and of its largest value.

    None for formats without a fixed range, such as those with scales, and for formats of the user's own.
    """
    fmt = formats.parse(name)
    if not isinstance(fmt, Format):
        return None
    return fmt.emin - fmt.mantissa_bits, fmt.emax


def represented_binades(
    statistics: GradientStatistics, name: str, workers: int, *, scaled: bool
) -> tuple[float, float] | None:
    """Return how many of the powers of two that a layer's gradients span a format represents, and how many there are.

    Both are means over layers and epochs; None if they are unknown.

    Args:
        statistics: Those of a run.
        name: The format.
        workers: The number of workers whose sum the scale leaves room for.
        scaled: Whether APS puts the format's largest exponent above the largest sum.
    """
    limits = exponent_range(name)
    found = []
    for layer in statistics.layers:
        for epoch in layer.epochs:
            if limits is None or epoch.low is None or epoch.high is None:
                continue
            top = epoch.high + math.ceil(math.log2(workers)) + 1 if scaled else limits[1]
            low = max(epoch.low, top - (limits[1] - limits[0]))
            inside = max(0, min(epoch.high, top) - low + 1)
            found.append((inside, epoch.span))
    if not found:
        return None
    return tuple(sum(each) / len(found) for each in zip(*found, strict=True))


def _known(value: float) -> float:
    return value if math.isfinite(value) else -1.0
