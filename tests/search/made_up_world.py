"""A made-up world to search in: cells with true gaps, runs that end in any order, and a search that is fed by hand."""

import math
import random
from dataclasses import dataclass, field

from cpdrun.search.ladders import Candidate, Ladder, LadderState, Rules, Tuning, ladder_states
from cpdrun.search.schedule import wanted_runs
from cpdrun.stats.ended_runs import EndedRuns, RunKey

BASELINE = "fp32"
RULES = Rules(tolerance=1.0, alpha=0.05, most_seeds=30)


def ladder(label: str, *widths: list[str]) -> Ladder:
    """Widths of names, most bits first; bits count down from 8."""
    return Ladder(
        label,
        tuple(
            tuple(Candidate(name, BASELINE, name, 8 - i) for name in names) for i, names in enumerate(widths)
        ),
    )


@dataclass
class World:
    """`gaps`: how much better than the baseline each candidate truly is; NaN diverges always. Values of a seed share
    what the seed does, and deviate by `noise` for themselves."""

    gaps: dict[str, float]
    noise: float = 0.35
    seed: int = 0
    ran: list[RunKey] = field(default_factory=list)

    def value(self, ask: RunKey) -> float:
        name, seed = ask
        shared = random.Random(f"{self.seed} {seed}").gauss(98, 1)
        own = random.Random(f"{self.seed} {name} {seed}").gauss(0, self.noise)
        return shared + own + self.gaps.get(name, 0.0)

    def search(
        self,
        ladders: list[Ladder],
        rules: Rules = RULES,
        slots: int = 2,
        ended: EndedRuns | None = None,
        most: float = math.inf,
        tuning: Tuning = Tuning(),  # noqa: B008  it is frozen
    ) -> list[LadderState]:
        """Keep so many slots busy, let runs end in any order, and go on until nothing is wanted, or after `most`."""
        rng, ended, flying = random.Random(self.seed), ended or EndedRuns(), []
        while len(self.ran) < most:
            standings = ladder_states(ladders, ended, rules, tuning)
            for ask in wanted_runs(standings, ended, set(flying), rules, tuning):
                if len(flying) == slots:
                    break
                flying.append(ask)
            if not flying:
                break
            ask = flying.pop(rng.randrange(len(flying)))
            self.ran.append(ask)
            ended.values.setdefault(ask[0], {})[ask[1]] = self.value(ask)
        return ladder_states(ladders, ended, rules, tuning)

    def pairs(self, name: str) -> int:
        return sum(cell == name for cell, _ in self.ran)
