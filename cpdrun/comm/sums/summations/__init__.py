"""Who forms a sum: every partial sum in the format (rounded.py), decoded and quantized again, or the platform."""

from cpdrun.comm.sums.scaling import Shifts
from cpdrun.comm.sums.sum import Sum
from cpdrun.comm.sums.summations.base import Summation
from cpdrun.comm.sums.summations.decoded import Decoded
from cpdrun.comm.sums.summations.platform import PlatformSum
from cpdrun.comm.sums.summations.rounded import Rounded
from cpdrun.comm.workers import Workers


def summation_of(
    what: Sum, workers: Workers, shifts: Shifts | None = None, agreeing: Workers | None = None
) -> Summation:
    """What forms the sum of these workers' gradients. agreeing: whose largest magnitudes decide on shifts, where
    they are not these workers' alone. Raises ValueError where it cannot."""
    if what.again:
        kind: type[Summation] = Decoded
    else:
        kind = Rounded if what.ordering.is_stated else PlatformSum
    return kind(what, workers, shifts or Shifts(), agreeing)
