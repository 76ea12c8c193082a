"""What further pairs can do for an open question: how many are likely to settle it, or why no number can be given."""

import math
from dataclasses import dataclass
from enum import StrEnum

from cpdrun.stats.evidence import Judgement, PairsRange
from cpdrun.stats.means import is_zero

# The largest number of further pairs that is advised. Larger numbers would not help anyone.
MOST_ADVISED = 100


class Prospect(StrEnum):
    """What further pairs can do for an open question."""

    NO_PAIRS = "no pairs"  # There are no pairs yet.
    TEST_SET = "test set"  # The mean is less than one test sample from the margin: seeds cannot decide it.
    NO_SPREAD = "no spread"  # All differences are equal, so that the number of pairs cannot be computed.
    TOO_NOISY = "too noisy"  # The differences are too noisy to compute the number of pairs.
    TOO_MANY = "too many"  # More than MOST_ADVISED pairs.
    WIDER_IS_OPEN = "wider is open"  # The candidate needs no pairs, but a wider format is not certified.
    PAIRS = "pairs"  # A number of pairs is likely to settle the question.


@dataclass(frozen=True)
class Outlook:
    """What further pairs can do for an open question.

    Attributes:
        prospect: What they can do.
        more: The number of pairs that are likely to settle the question. None if it is not known.
        distance: The distance of the mean from the margin in test samples. NaN if it is unknown.
        samples: The number of test samples. NaN if it is unknown.
    """

    prospect: Prospect
    more: PairsRange | None = None
    distance: float = math.nan
    samples: float = math.nan

    @property
    def is_hopeful(self) -> bool:
        """Whether it makes sense to run further pairs."""
        return self.prospect not in (Prospect.TEST_SET, Prospect.TOO_MANY)


def outlook(judgement: Judgement, margin: float = math.nan, samples: float = math.nan) -> Outlook:
    """Return what further pairs can do for an open question.

    Args:
        judgement: What the pairs show so far. Its `more` may be that of several candidates together.
        margin: The margin in the unit of the judgement.
        samples: The number of test samples, if the metric is a share of them; otherwise NaN.
    """
    more, distance = judgement.more, abs(judgement.mean + margin) * samples
    is_beyond_advice = more is None or more.likely > MOST_ADVISED
    if not judgement.pairs:
        prospect = Prospect.NO_PAIRS
    elif is_beyond_advice and distance < 1 and judgement.pairs > 1:
        prospect = Prospect.TEST_SET
    elif judgement.pairs > 1 and is_zero(judgement.deviation):
        prospect = Prospect.NO_SPREAD
    elif more is None:
        prospect = Prospect.TOO_NOISY
    elif more.likely > MOST_ADVISED:
        prospect = Prospect.TOO_MANY
    else:
        prospect = Prospect.PAIRS if more.likely else Prospect.WIDER_IS_OPEN
    return Outlook(prospect, more, distance, samples)
