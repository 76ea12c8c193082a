"""Record how the runs of an experiment ended, keyed by cell and seed.

A cell is one combination of values on the experiment's axes. Its runs differ only in their seed.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from cpdrun.stats.failures import Compared, Failure, Runs, compare_runs

# A run is identified by the name of its cell and its seed.
RunKey = tuple[str, int]


@dataclass
class EndedRuns:
    """The results of the runs that have ended.

    A cell is given up, and no further runs of it are started, if GIVE_UP_AFTER of its runs failed and none has a value.

    Attributes:
        values: The metric of each run, keyed by cell name and seed. A diverged run has NaN.
        failures: The reasons why runs have no metric, keyed by cell name and seed.
        given_up: The names of the cells that were given up.
        lengths: As `Runs.lengths`, keyed by cell name and seed.
        gave_up: The seeds of the runs that ended early because they did not learn, keyed by cell name.
    """

    values: dict[str, dict[int, float]] = field(default_factory=dict)
    failures: dict[str, dict[int, Failure]] = field(default_factory=dict)
    given_up: set[str] = field(default_factory=set)
    lengths: dict[str, dict[int, int]] = field(default_factory=dict)
    gave_up: dict[str, set[int]] = field(default_factory=dict)

    def has(self, key: RunKey) -> bool:
        """Return True if a run has ended, with a value or a failure."""
        name, seed = key
        return seed in self.values.get(name, {}) or seed in self.failures.get(name, {})

    def runs(self, name: str) -> Runs:
        """Return the runs of a cell, for `compare_runs`."""
        values, failures = self.values.get(name, {}), self.failures.get(name, {})
        return Runs(values, failures, self.lengths.get(name, {}), self.gave_up.get(name, set()))

    def compared(self, name: str, baseline: str, aside: Collection[int] = ()) -> Compared:
        """Pair the runs of a candidate's cell with a baseline's cell. Seeds in `aside` are ignored."""
        sides = (self.runs(name), self.runs(baseline))
        return compare_runs(*(runs.without(aside) if aside else runs for runs in sides))
