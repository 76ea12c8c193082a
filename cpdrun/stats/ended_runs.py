"""The runs of an experiment that have ended, by cell and seed.

A cell is a point of the experiment's axes without its seed.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from cpdrun.stats.failures import Compared, Failure, Runs, compare_runs

# The name of a cell and a seed.
RunKey = tuple[str, int]


@dataclass
class EndedRuns:
    """The runs that have ended, by cell and seed.

    A cell is given up after a number of failures if none of its runs ended well.

    Attributes:
        values: The metric, NaN for a diverged run.
        failures: Why a run has no metric.
        given_up: The cells that were given up.
        lengths: The epochs, steps or rows of the runs whose program decides when to stop
            (`cpdrun.stats.failures.Runs`).
        gave_up: The seeds of the runs that ended early because they did not learn.
    """

    values: dict[str, dict[int, float]] = field(default_factory=dict)
    failures: dict[str, dict[int, Failure]] = field(default_factory=dict)
    given_up: set[str] = field(default_factory=set)
    lengths: dict[str, dict[int, int]] = field(default_factory=dict)
    gave_up: dict[str, set[int]] = field(default_factory=dict)

    def has(self, key: RunKey) -> bool:
        """Return whether a run has ended, well or not."""
        name, seed = key
        return seed in self.values.get(name, {}) or seed in self.failures.get(name, {})

    def runs(self, name: str) -> Runs:
        """Return the runs of a cell, for a comparison."""
        values, failures = self.values.get(name, {}), self.failures.get(name, {})
        return Runs(values, failures, self.lengths.get(name, {}), self.gave_up.get(name, set()))

    def compared(self, name: str, baseline: str, aside: Collection[int] = ()) -> Compared:
        """Return the values and the failures of all pairs of two cells, without the seeds in `aside`."""
        sides = (self.runs(name), self.runs(baseline))
        return compare_runs(*(runs.without(aside) if aside else runs for runs in sides))
