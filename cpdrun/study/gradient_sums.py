"""Analyze how a run summed its gradients, and why the sums are wrong.

The statistics come from metrics.jsonl, with one row per epoch. `layers` in a row maps a layer's name to its last
statistics in that epoch: {"format", "exponent_min", "exponent_max", "underflow", "overflow", "nonfinite", "sum_error"}
(`cpdrun.comm.sync.statistics`). `nonfinite_gradients` counts the inf and NaN elements of the epoch's sums, including
those that the format turned into finite numbers.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from typing import Any

from custom_fp.formats.scalar import Format

from cpdrun.record import EpochRow
from cpdrun.stats.means import as_float
from cpdrun.study import formats

# With group_size=auto, up to this many workers form a single group, and their gradients are added one after the other.
FLAT_UP_TO = 8


def longest_chain(sync: Mapping[str, Any], workers: int) -> int | None:
    """Return the largest number of rounded additions in series, or None for an unknown order."""
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
    """Return the number of workers whose gradients are added in series. APS leaves room for their sum."""
    order = sync.get("order")
    if order == "tree":
        return min(2, workers)
    return group_size(sync, workers) if order == "hierarchical" else workers


def group_size(sync: Mapping[str, Any], workers: int) -> int:
    """Return the number of workers per group in the hierarchical order of summation."""
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
    """One layer's statistics at the end of one epoch. Shares are between 0 and 1.

    Attributes:
        epoch: The number of the epoch.
        low: floor(log2 |g|) of the smallest nonzero gradient of any worker. None if unknown.
        high: floor(log2 |g|) of the largest gradient of any worker. None if unknown.
        underflow: The share of nonzero values that became 0. NaN if unknown.
        overflow: The share of values above the format's largest value. NaN if unknown.
        sum_error: ||sum - S|| / ||S|| for the exact sum S. NaN if unknown, or if S is 0 or not finite.
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
        """The number of powers of two from the smallest to the largest gradient. 0 if unknown."""
        return 0 if self.low is None or self.high is None else self.high - self.low + 1


class Summary(ABC):
    """Statistics over several parts, such as layers.

    They are means, except `low` and `high`, which are the smallest and the largest exponent of any part.
    """

    @property
    @abstractmethod
    def parts(self) -> Sequence[Any]:
        """The parts, which have the same statistics."""

    @property
    def underflow(self) -> float:
        return mean_of_known(part.underflow for part in self.parts)

    @property
    def overflow(self) -> float:
        return mean_of_known(part.overflow for part in self.parts)

    @property
    def sum_error(self) -> float:
        return mean_of_known(part.sum_error for part in self.parts)

    @property
    def low(self) -> int | None:
        return min((part.low for part in self.parts if part.low is not None), default=None)

    @property
    def high(self) -> int | None:
        return max((part.high for part in self.parts if part.high is not None), default=None)


@dataclass(frozen=True)
class LayerStatistics(Summary):
    """The statistics of one layer over all epochs in which its sum was rounded."""

    name: str
    format: str
    epochs: list[EpochStatistics]

    @property
    def parts(self) -> Sequence[EpochStatistics]:
        return self.epochs


@dataclass(frozen=True)
class NonfiniteGradients:
    """The first epoch in which a summed gradient was not finite.

    Attributes:
        epoch: The number of the epoch.
        elements: The number of nonfinite elements in all steps of that epoch.
        layers: The layers with nonfinite elements in the epoch's recorded step. May be empty.
    """

    epoch: int
    elements: int
    layers: list[str]


@dataclass(frozen=True)
class GradientStatistics(Summary):
    """The statistics of a run's gradient sums over all layers.

    Attributes:
        layers: The layers whose sum was rounded, in the model's order. May be empty.
        exact: The names of the layers that were summed in fp32.
        nonfinite: The first epoch in which a sum was not finite. None if all sums were finite.
    """

    layers: list[LayerStatistics]
    exact: list[str]
    nonfinite: NonfiniteGradients | None

    @property
    def parts(self) -> Sequence[LayerStatistics]:
        return self.layers

    def worst(self, most: int = 3) -> list[LayerStatistics]:
        """Return the layers with the largest errors of the sum, worst first. Underflow breaks ties."""
        return sorted(self.layers, key=lambda one: (-_known(one.sum_error), -_known(one.underflow)))[:most]

    def by_epoch(self, figure: Callable[[EpochStatistics], float]) -> dict[int, float]:
        """Return the mean of a statistic over the layers, keyed by epoch. Unknown values are left out."""
        rows = [row for layer in self.layers for row in layer.epochs]
        epochs = sorted({row.epoch for row in rows})
        means = {epoch: mean_of_known(figure(row) for row in rows if row.epoch == epoch) for epoch in epochs}
        return {epoch: value for epoch, value in means.items() if math.isfinite(value)}


def gradient_statistics(rows: Iterable[EpochRow]) -> GradientStatistics:
    """Return the gradient statistics of a run's metrics.jsonl. Damaged entries are skipped."""
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
    """Return the mean of the finite values, or NaN if there are none."""
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
    number = as_float(value)
    return number if math.isfinite(number) else math.nan


def _exponent(value: Any) -> int | None:
    return int(value) if math.isfinite(_number(value)) else None


def _count(value: Any) -> int:
    return int(value) if _number(value) > 0 else 0


# Up to this relative error of the sum, rounding is harmless. Even e4m3 with APS and 8 workers, with an error of 0.056,
# has the results of fp32.
HARMFUL_SUM_ERROR = 0.05
MANY_UNDERFLOW = 0.2  # If a larger share of the gradients becomes 0, underflow is the main cause.
SOME_OVERFLOW = 1e-4  # The limit is small because a single infinity spoils a whole step of its layer.
NEARLY_ALL = 0.9  # If a larger share becomes 0, the sum is wrong, even if its error looks small.


class Cause(StrEnum):
    """The main cause of wrong gradient sums, or why there is none."""

    OVERFLOW = "overflow"  # Values are above the format's largest value.
    UNDERFLOW = "underflow"  # Many values become 0.
    ADDITIONS = "additions"  # Partial sums are rounded.
    SMALL = "small"  # The sums have only small errors.
    UNSEEN = "unseen"  # The record contains no statistics of layers.
    EXACT = "exact"  # The gradients are summed in fp32.


@dataclass(frozen=True)
class Reason:
    """Why a run's gradient sums are wrong.

    Attributes:
        cause: The main cause.
        statistics: The run's gradient statistics.
        worst: The layers with the largest errors, worst first.
    """

    cause: Cause
    statistics: GradientStatistics
    worst: list[LayerStatistics]


def find_reason(statistics: GradientStatistics) -> Reason:
    """Return the main reason why a run's gradient sums are wrong."""
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

    None for formats without a fixed range, as with block scales, and for those that users define.
    """
    fmt = formats.parse(name)
    if not isinstance(fmt, Format):
        return None
    return fmt.emin - fmt.mantissa_bits, fmt.emax


def represented_binades(
    statistics: GradientStatistics, name: str, workers: int, *, scaled: bool
) -> tuple[float, float] | None:
    """Return how many powers of two the gradients span, and how many the format represents.

    Both are means over layers and epochs. The represented number comes first. The result is None if they are unknown.

    Args:
        statistics: The gradient statistics of a run.
        name: The name of the format.
        workers: The number of workers whose sum must fit.
        scaled: Whether APS scales the gradients, so that the format's top lies above the largest sum.
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
