"""A simulated world for searches: cells with known gaps, runs that end in random order, and a search loop."""

import math
import random
from dataclasses import dataclass, field

from cpdrun.search.ladders import Candidate, Ladder, LadderState, Rules, Tuning, ladder_states
from cpdrun.search.schedule import wanted_runs
from cpdrun.stats.ended_runs import EndedRuns, RunKey

BASELINE = "fp32"
RULES = Rules(tolerance=1.0, alpha=0.05, most_seeds=30)


def ladder(label: str, *widths: list[str]) -> Ladder:
    """Return a ladder with these names per width, most bits first. Bits count down from 8."""
    return Ladder(
        label,
        tuple(
            tuple(Candidate(name, BASELINE, name, 8 - i) for name in names) for i, names in enumerate(widths)
        ),
    )


@dataclass
class World:
    """Cells with known differences from the baseline, which are `gaps`. A gap of NaN always diverges.

    All values of a seed share a random offset. Each value also has its own noise with standard deviation
    `noise`.
    """

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
        """Keep the slots busy, let runs end in random order, and stop when nothing is wanted or after `most` runs."""
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
