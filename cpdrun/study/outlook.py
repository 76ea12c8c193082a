"""Estimate how many further pairs are likely to decide an open verdict."""

import math
from dataclasses import dataclass
from enum import StrEnum

from cpdrun.stats.evidence import Judgment, PairsRange
from cpdrun.stats.means import is_zero

# The largest number of additional pairs to recommend, because hardly anyone can run more.
MOST_ADVISED = 100
# With fewer pairs, their spread is too uncertain to conclude that the verdict needs many more.
FEWEST_PAIRS = 10


class Prospect(StrEnum):
    """Whether further pairs are likely to decide an open verdict, and if not, why."""

    NO_PAIRS = "no pairs"  # There are no pairs yet.
    # The mean is less than one test sample away from the margin, so further seeds cannot decide the verdict.
    TEST_SET = "test set"
    NO_SPREAD = "no spread"  # All differences are equal, so the number of pairs cannot be computed.
    TOO_NOISY = "too noisy"  # The differences are too noisy to compute the number of pairs.
    TOO_MANY = "too many"  # More than MOST_ADVISED further pairs are needed.
    WIDER_IS_OPEN = "wider is open"  # No further pairs are needed, but a wider format is not certified.
    PAIRS = "pairs"  # A known number of further pairs is likely to decide the verdict.


@dataclass(frozen=True)
class Outlook:
    """What to expect from further pairs for an open verdict.

    Attributes:
        prospect: Whether further pairs are likely to decide the verdict, and if not, why.
        more: The number of further pairs. None if unknown.
        distance: The distance between the mean and the margin, in test samples. NaN if unknown.
        samples: The number of test samples. NaN if unknown.
    """

    prospect: Prospect
    more: PairsRange | None = None
    distance: float = math.nan
    samples: float = math.nan

    @property
    def is_hopeful(self) -> bool:
        """Whether running further pairs makes sense."""
        return self.prospect not in (Prospect.TEST_SET, Prospect.TOO_MANY)


def outlook(judgment: Judgment, margin: float = math.nan, samples: float = math.nan) -> Outlook:
    """Return the outlook of an open verdict.

    Args:
        judgment: The judgment of the pairs so far. Its `more` may be what several candidates need together.
        margin: The margin in the unit of the judgment.
        samples: The number of test samples if the metric is a share of them, otherwise NaN.
    """
    more, distance = judgment.more, abs(judgment.mean + margin) * samples
    is_beyond_advice = more is None or more.likely > MOST_ADVISED
    if not judgment.pairs:
        prospect = Prospect.NO_PAIRS
    elif is_beyond_advice and distance < 1 and judgment.pairs > 1:
        prospect = Prospect.TEST_SET
    elif judgment.pairs > 1 and is_zero(judgment.deviation):
        prospect = Prospect.NO_SPREAD
    elif more is None and judgment.pairs < FEWEST_PAIRS:
        prospect = Prospect.TOO_NOISY
    elif more is None or more.likely > MOST_ADVISED:
        prospect = Prospect.TOO_MANY
    else:
        prospect = Prospect.PAIRS if more.likely else Prospect.WIDER_IS_OPEN
    return Outlook(prospect, more, distance, samples)
