"""Define the margins that the seeds and the test set of a study can certify.

`cpdrun.study.seed_power` computes them. This module imports no pandas, because the schema of a dry run needs it.
"""

from dataclasses import dataclass, field

MOST_PAIRS = 1000  # `SeedPower.pairs_needed` is not computed above this number of pairs.


@dataclass(frozen=True)
class SeedPower:
    """The smallest margins that certify a candidate exactly as good as its baseline.

    All margins are in the unit of the stored metric.

    Attributes:
        metric: The name of the compared metric.
        pairs: The smallest number of seeds that a candidate shares with its baseline.
        comparisons: The number of candidates whose noise is pooled.
        deviation: The pooled standard deviation of single paired differences.
        settles: The smallest margin that `pairs` pairs certify. Infinite if there is none.
        margin: The margin of the study. NaN if it is unknown.
        pairs_needed: The number of pairs that certify the study's margin. None if the margin is unknown or MOST_PAIRS
            pairs are not enough.
        test_samples: The number of examples in the test set. NaN if unknown, or if the metric is not a share of
            examples.
        test_set_settles: The smallest margin that any number of seeds can certify for other test sets of this size. NaN
            if the runs did not record their answers, or if a candidate has a single pair.
        limited_by_test_set: Whether the study's margin is below `test_set_settles`, so that more seeds do not help for
            other test sets.
    """

    metric: str
    pairs: int
    comparisons: int
    deviation: float
    settles: float
    margin: float
    pairs_needed: int | None
    test_samples: float
    test_set_settles: float
    limited_by_test_set: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "limited_by_test_set", self.margin < self.test_set_settles)
