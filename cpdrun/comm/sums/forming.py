"""Which kind of summation forms a Sum."""

from cpdrun.comm.sums.decoded import Decoded
from cpdrun.comm.sums.platform import PlatformSum
from cpdrun.comm.sums.rounded import Rounded
from cpdrun.comm.sums.scaling import Shifts
from cpdrun.comm.sums.sum import Sum
from cpdrun.comm.sums.summation import Summation
from cpdrun.comm.workers import Workers


def summation_of(what: Sum, workers: Workers, shifts: Shifts | None = None) -> Summation:
    """What forms the sum of these workers' gradients. Raises ValueError where it cannot."""
    if what.again:
        kind: type[Summation] = Decoded
    else:
        kind = Rounded if what.ordering.is_stated else PlatformSum
    return kind(what, workers, shifts or Shifts())
