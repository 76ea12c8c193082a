"""How N gradients become one: the order and rounding of a sum, its scaling, in one process and between ranks.

Who forms a sum: every partial sum in the format (rounded.py), decoded and quantized again, or the platform.
"""

from cpdrun.comm.sums.requantized import RequantizedSum
from cpdrun.comm.sums.rounded import NativeSum, RoundedSum
from cpdrun.comm.sums.scaling import Shifts
from cpdrun.comm.sums.sum import Sum
from cpdrun.comm.sums.summation import Summation
from cpdrun.comm.workers import Workers


def summation_of(
    what: Sum, workers: Workers, shifts: Shifts | None = None, agreeing: Workers | None = None
) -> Summation:
    """What forms the sum of these workers' gradients. agreeing: whose largest magnitudes decide on shifts, where
    they are not these workers' alone. Raises ValueError where it cannot."""
    if what.again:
        kind: type[Summation] = RequantizedSum
    else:
        kind = RoundedSum if what.ordering.is_defined else NativeSum
    return kind(what, workers, shifts or Shifts(), agreeing)
