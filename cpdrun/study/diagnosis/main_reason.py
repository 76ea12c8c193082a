"""The main reason why the sums of a run's gradients are wrong, from the statistics in its record."""

import math
from dataclasses import dataclass
from enum import StrEnum

from cpdrun.study.axes import formats
from cpdrun.study.diagnosis.gradient_statistics import GradientStatistics, LayerStatistics

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
    if fmt is None or fmt.exponent_bits is None or fmt.has_scales:
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
