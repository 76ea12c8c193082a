"""The main reason why the sum of a run's gradients is off, from what its record has seen."""

import math
from dataclasses import dataclass
from enum import StrEnum

from cpdrun.report.why.seen import RoundedLayer, Seen
from cpdrun.study.axes import formats

MATTERS = 0.05  # of ||S||: below, a sum is not what spoils a run (e4m3 with APS, 8 workers: 0.056, and equal to fp32)
MANY = 0.2  # of the gradients: where so many become 0, that is what takes the sum away
SOME = 1e-4  # of the gradients: an infinity spoils its layer's whole step


class Cause(StrEnum):
    OVERFLOW = "overflow"  # values above the format's largest
    UNDERFLOW = "underflow"  # values that become 0
    ADDITIONS = "additions"  # partial sums that are rounded
    SMALL = "small"  # the sum is not the reason
    UNSEEN = "unseen"  # the record has no layers
    EXACT = "exact"  # gradients are summed in fp32


@dataclass(frozen=True)
class Reason:
    """`worst`: the layers that lose most by it, the worst first."""

    cause: Cause
    seen: Seen
    worst: list[RoundedLayer]


def reason(seen: Seen) -> Reason:
    if not seen.layers:
        return Reason(Cause.EXACT if seen.exact else Cause.UNSEEN, seen, [])
    if seen.overflow > SOME:
        worst = sorted(seen.layers, key=lambda one: -_known(one.overflow))[:3]
        return Reason(Cause.OVERFLOW, seen, worst)
    if not seen.sum_error > MATTERS and not seen.underflow > 0.9:
        return Reason(Cause.SMALL, seen, seen.worst())
    return Reason(Cause.UNDERFLOW if seen.underflow > MANY else Cause.ADDITIONS, seen, seen.worst())


def reach(name: str) -> tuple[int, int] | None:
    """The powers of two of a format's smallest subnormal and of its largest value; None where it has no such range of
    its own: scales, codebooks, a format of the user's own."""
    fmt = formats.parse(name)
    if fmt is None or fmt.exponent_bits is None or fmt.has_scales:
        return None
    return fmt.emin - fmt.mantissa_bits, fmt.emax


def reached(seen: Seen, name: str, together: int, *, scaled: bool) -> tuple[float, float] | None:
    """Of the powers of two that a layer's gradients span, how many the format reaches, and how many there are: means
    over layers and epochs. `scaled` by APS: emax stands above the largest sum of so many workers `together`. None
    where that is not known."""
    limits = reach(name)
    found = []
    for layer in seen.layers:
        for moment in layer.moments:
            if limits is None or moment.low is None or moment.high is None:
                continue
            top = moment.high + math.ceil(math.log2(together)) + 1 if scaled else limits[1]
            low = max(moment.low, top - (limits[1] - limits[0]))
            inside = max(0, min(moment.high, top) - low + 1)
            found.append((inside, moment.span))
    if not found:
        return None
    return tuple(sum(each) / len(found) for each in zip(*found, strict=True))


def _known(value: float) -> float:
    return value if math.isfinite(value) else -1.0
