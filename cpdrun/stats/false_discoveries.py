"""Decide which ideas of a growing list to keep, and control the false discovery rate.

An idea is a change whose runs are compared with a baseline. It is false if it is not better than the boundary. The
false discovery rate, the expected share of false ideas among the kept ones, is at most `alpha`.

This is the online e-BH procedure (L. Fischer, Z. Xu, and A. Ramdas, "An online generalization of the
(e-)Benjamini-Hochberg procedure", arXiv 2407.20683, section 2). It keeps every idea that e-LOND keeps, and possibly
more (Z. Xu and A. Ramdas, "Online multiple testing with e-values", AISTATS 2024).

Let E_t be the e-value of idea t. Its mean is at most 1 if the idea is false. Let the shares g_1, g_2, ... of the error
probability sum to at most 1, and let

    k* = the largest k for which at least k of the ideas have E_t >= 1 / (alpha g_t k).

The ideas with E_t >= 1 / (alpha g_t k*) are kept. Every kept idea that is false adds 1 / (kept ideas) <= alpha g_t E_t
to the false discovery proportion, so the rate is at most alpha, even for dependent ideas. The number of kept ideas
never falls. A later success lowers the evidence that other ideas need, so an earlier idea may be kept afterwards.

If an idea is judged again with more pairs, its new e-value replaces the old one, until the idea is kept. Each e-value
is therefore the evidence at a stopping time, whose mean is at most 1 if the decision to stop depends only on the
evidence. The largest of the e-values that an idea has had so far is not a valid e-value.
"""

import math
from collections.abc import Mapping

# The share of the error probability that the planned ideas have together. The rest is for further ideas.
PLANNED_SHARE = 0.8


def share(number: int, planned: int) -> float:
    """Return an idea's share of the error probability. The first idea has number 1.

    The first `planned` ideas share PLANNED_SHARE equally. Every further lot of `planned` ideas shares half of what is
    left.
    """
    lot = (number - 1) // planned
    of_lot = PLANNED_SHARE if lot == 0 else (1 - PLANNED_SHARE) * 0.5**lot
    return of_lot / planned


def required_log_evidence(number: int, kept: int, alpha: float, planned: int) -> float:
    """Return the natural logarithm of the e-value that an idea needs to be kept.

    It depends on the idea's number, and on the number of kept ideas including this one. `alpha` is the allowed false
    discovery rate.
    """
    return -math.log(alpha * share(number, planned) * kept)


def kept_ideas(log_evidence: Mapping[int, float], alpha: float, planned: int) -> set[int]:
    """Return the numbers of the ideas that online e-BH keeps at the false discovery rate `alpha`.

    The evidence is the natural logarithm of each idea's e-value, keyed by the idea's number.
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
