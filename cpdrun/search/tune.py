"""A fair comparison tunes: which value of the tuned keys each candidate, and the baseline, is certified with. Pure.

A cell of the axes has an arm for each combination of the tuned values (`search.tune`, several keys: their product).
Every arm runs on the tuning seeds, and the arm that did best there (`cpdrun.stats.tuning`) is the cell's. Then the test
runs on seeds 0, 1, 2 ... of that arm alone.

Why this costs the confidence nothing: tuning seeds are from FIRST_SEED on (cpdrun.stats.tuning) and those of pairs
below it, so that the two sets never meet. The choice looks at tuning seeds only and is therefore independent of every
pair; given the choice, the pairs are those of a search that was typed with these values, and its wrong certificates are
at most alpha whatever was chosen. A poor choice costs power, never validity. What is certified is the candidate with
its value against the baseline with its own, over seeds; all seeds are judged on the same test set, the tuning ones too.
A grid of values that is changed after a look at the verdict asks another question of the same seeds.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cpdrun.stats.tuning import choose, edges

if TYPE_CHECKING:
    from cpdrun.search.schedule import Ask, Ended


@dataclass(frozen=True)
class Tuning:
    """`arms`: by a cell's name the names of its arms, cells themselves, in the order in which values are listed. A cell
    has a name that is no arm's. Without arms nothing is tuned."""

    keys: Mapping[str, list[Any]] = field(default_factory=dict)  # the values of each tuned key
    seeds: tuple[int, ...] = ()
    arms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by arm, then by key

    def __bool__(self) -> bool:
        return bool(self.arms)

    def chosen(self, ended: "Ended", *, higher_is_better: bool) -> dict[str, str]:
        """By cell its arm, of the cells of which every arm has ended on all tuning seeds or was given up. Where there
        is one arm there is nothing to choose, and it takes no run."""
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
        """The runs without which the cell's arm cannot be chosen: all arms of a seed, then those of the next."""
        arms = self.arms.get(cell, ())
        if len(arms) < 2:
            return []
        left = [arm for arm in arms if arm not in ended.given_up]
        turns = (tuple((arm, seed) for arm in left if not ended.has((arm, seed))) for seed in self.seeds)
        return [turn for turn in turns if turn]

    def runs(self, cell: str) -> int:
        """How many it takes to choose the cell's arm."""
        arms = len(self.arms.get(cell, ()))
        return arms * len(self.seeds) if arms > 1 else 0

    def edges(self, arm: str) -> Iterator[tuple[str, str]]:
        """The keys of which the arm has the largest or the smallest of several numbers tried, and which."""
        return edges(self.values.get(arm, {}), self.keys)
