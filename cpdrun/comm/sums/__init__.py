"""Sums of N gradients: order, rounding and scaling, in one process and between ranks."""

from cpdrun.comm.sums.requantized_sum import RequantizedSum
from cpdrun.comm.sums.rounded_sum import NativeSum, RoundedSum
from cpdrun.comm.sums.scaling import Shifts
from cpdrun.comm.sums.sum import Sum
from cpdrun.comm.sums.summation import Summation
from cpdrun.comm.workers import Workers


def summation_of(
    what: Sum, workers: Workers, shifts: Shifts | None = None, agreeing: Workers | None = None
) -> Summation:
    """Return the object that computes a sum of workers' gradients.

    Args:
        what: The description of the sum.
        workers: The workers whose gradients are added.
        shifts: The scaling rule with its state. None means no scaling.
        agreeing: The workers whose largest magnitudes determine the shifts, by default `workers`.

    Raises:
        ValueError: The settings do not fit together.
    """
    if what.requantization:
        kind: type[Summation] = RequantizedSum
    else:
        kind = RoundedSum if what.ordering.is_defined else NativeSum
    return kind(what, workers, shifts or Shifts(), agreeing)
