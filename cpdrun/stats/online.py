"""Select the ideas of a stream that may be kept so that at most a share `alpha` of the kept ideas is false on average.

This is the online e-BH procedure of L. Fischer, Z. Xu and A. Ramdas, "An online generalization of the (e-)Benjamini-
Hochberg procedure", arXiv 2407.20683, section 2. It rejects at least what e-LOND rejects (Z. Xu and A. Ramdas, "Online
multiple testing with e-values", AISTATS 2024). Let E_t be the e-value of idea t, which is small if the idea is not
better, and let the shares g_1, g_2, ... sum to at most 1. With

    k* = the largest k for which at least k of the ideas have E_t >= 1 / (alpha g_t k),

the ideas with E_t >= 1 / (alpha g_t k*) are kept. The expected share of false ideas among the kept ones, the false
discovery rate, is at most alpha under any dependence between the ideas, because every kept idea that is false adds
1 / (kept ideas) <= alpha g_t E_t, and E_t has a mean of at most 1. The number of kept ideas never falls: a later
success lowers the evidence that all others need, so an earlier idea may be kept afterwards.

An idea that is judged again with more pairs replaces its own e-value until it is kept. Then its e-value is frozen. Each
e-value is therefore the evidence at a stopping time, for which a mean of at most 1 holds if the decision to stop looks
at the evidence only. The largest evidence over time is not a valid e-value.
"""

import math
from collections.abc import Mapping

# The share of the error probability that the planned ideas have. Each further lot of ideas has half of what is left.
PLANNED_SHARE = 0.8


def share(number: int, planned: int) -> float:
    """Return the share of the error probability that an idea has.

    The first `planned` ideas divide PLANNED_SHARE equally. Every further lot of `planned` ideas divides half of what is
    left, so the shares of any number of ideas sum to less than 1.

    Args:
        number: The number of the idea. The first idea has number 1.
        planned: The number of planned ideas.
    """
    lot = (number - 1) // planned
    of_lot = PLANNED_SHARE if lot == 0 else (1 - PLANNED_SHARE) * 0.5**lot
    return of_lot / planned


def required_log_evidence(number: int, kept: int, alpha: float, planned: int) -> float:
    """Return the natural logarithm of the e-value that an idea needs to be kept.

    Args:
        number: The number of the idea.
        kept: The number of kept ideas, including this one.
        alpha: The allowed false discovery rate.
        planned: The number of planned ideas.
    """
    return -math.log(alpha * share(number, planned) * kept)


def kept_ideas(log_evidence: Mapping[int, float], alpha: float, planned: int) -> set[int]:
    """Return the numbers of the ideas that online e-BH keeps.

    Args:
        log_evidence: The natural logarithm of each idea's e-value, by the idea's number.
        alpha: The allowed false discovery rate.
        planned: The number of planned ideas.
    """
    for kept in range(len(log_evidence), 0, -1):
        found = {
            number
            for number, log in log_evidence.items()
            if log >= required_log_evidence(number, kept, alpha, planned)
        }
        if len(found) >= kept:
            return found
    return set()
