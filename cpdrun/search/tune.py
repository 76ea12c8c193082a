"""Choose the values of the tuned keys for each candidate and for the baseline, so that the comparison is fair.

The functions are pure. A cell of the axes has an arm for each combination of the tuned values (`search.tune`; the
product, if several keys are tuned). Every arm runs on the tuning seeds. The arm that does best there
(`cpdrun.stats.means`) represents the cell, and the test runs seeds 0, 1, 2 ... of that arm only.

Tuning costs no confidence. Tuning seeds start at FIRST_SEED (cpdrun.stats.means) and the seeds of pairs are below it,
so the two sets never meet. The choice reads tuning seeds only and is therefore independent of every pair. Given the
choice, the pairs are those of a search that was typed with the chosen values, so the chance of a wrong certificate is
at most alpha whatever was chosen. A poor choice costs power, never validity. The certificate compares, over seeds, the
candidate with its chosen values and the baseline with its own. All seeds, tuning seeds included, are judged on the same
test set. If you change the grid of values after you have seen the verdicts, you ask the same seeds another question.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cpdrun.stats.means import choose, edges

if TYPE_CHECKING:
    from cpdrun.search.schedule import Ask, Ended


@dataclass(frozen=True)
class Tuning:
    """The tuned keys and the arms of each cell. Without arms, nothing is tuned.

    Attributes:
        keys: The values to try for each tuned key.
        seeds: The tuning seeds.
        arms: The names of the arms of each cell, in the order in which the values are listed. Every arm is itself a
            cell with runs. The name of the cell differs from the names of all arms.
        values: The values of the tuned keys, by arm and then by key.
    """

    keys: Mapping[str, list[Any]] = field(default_factory=dict)
    seeds: tuple[int, ...] = ()
    arms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.arms)

    def chosen(self, ended: "Ended", *, higher_is_better: bool) -> dict[str, str]:
        """Return the chosen arm of each cell whose arms have all ended on all tuning seeds or were given up.

        A cell with one arm needs no run for its choice.
        """
        return {
            cell: arms[choose([self.measured(arm, ended) for arm in arms], higher_is_better=higher_is_better)]
            for cell, arms in self.arms.items()
            if not self.missing(cell, ended)
        }

    def measured(self, arm: str, ended: "Ended") -> list[float]:
        """Return the values on the tuning seeds, NaN for a run that diverged or failed."""
        values = dict.fromkeys(ended.failures.get(arm, {}), math.nan) | ended.values.get(arm, {})
        return [values[seed] for seed in self.seeds if seed in values]

    def missing(self, cell: str, ended: "Ended") -> "list[tuple[Ask, ...]]":
        """Return the runs that are still needed to choose the cell's arm.

        The runs are grouped by seed: all arms of one seed, then all arms of the next seed.
        """
        arms = self.arms.get(cell, ())
        if len(arms) < 2:
            return []
        left = [arm for arm in arms if arm not in ended.given_up]
        turns = (tuple((arm, seed) for arm in left if not ended.has((arm, seed))) for seed in self.seeds)
        return [turn for turn in turns if turn]

    def runs(self, cell: str) -> int:
        """Return the number of runs that it takes to choose the cell's arm."""
        arms = len(self.arms.get(cell, ()))
        return arms * len(self.seeds) if arms > 1 else 0

    def edges(self, arm: str) -> Iterator[tuple[str, str]]:
        """Return the keys for which the arm has the largest or the smallest number tried, and which it is."""
        return edges(self.values.get(arm, {}), self.keys)
