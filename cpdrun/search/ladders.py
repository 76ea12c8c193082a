"""Ladders of candidates, the choice of their tuned values, and the verdicts on them from the runs that have ended.

The functions are pure: they take and return names and numbers.

A pair is the same seed run with a candidate and with its baseline. Seeds are 0, 1, 2 ... and count in this order. A
run that ends early, as a diverging run does, counts only after the runs of all smaller seeds have ended.

If keys are tuned (`search.tune`), a cell of the axes has an arm for each combination of the tuned values. Every arm
runs on the tuning seeds. The arm that does best there (`cpdrun.stats.means`) represents the cell, and the test runs
seeds 0, 1, 2 ... of that arm only. Tuning costs no confidence. Tuning seeds start at FIRST_SEED (cpdrun.stats.means)
and the seeds of pairs are below it, so the choice reads no pair and is independent of every pair. Given the choice, the
pairs are those of a search that was typed with the chosen values, so the chance of a wrong certificate is at most alpha
whatever was chosen. A poor choice costs power, never validity. The certificate compares, over seeds, the candidate with
its chosen values and the baseline with its own. All seeds, tuning seeds included, are judged on the same test set. If
you change the grid of values after you have seen the verdicts, you ask the same seeds another question.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cpdrun.stats.ended_runs import EndedRuns, RunKey
from cpdrun.stats.evidence import Judgement, Verdict, differences
from cpdrun.stats.failures import Compared, FailureCounts
from cpdrun.stats.ladder import PairedLadder, Width, judge_ladders
from cpdrun.stats.ledger import AskedLadder, Ledger
from cpdrun.stats.means import choose, edges

# A candidate with a higher predicted chance of missing the tolerance is not expected to hold it.
EVEN = 0.5


@dataclass(frozen=True)
class Candidate:
    """A cell of the axes that is compared with a baseline.

    Attributes:
        name: The name of the candidate's cell.
        baseline: The name of the baseline's cell.
        label: The candidate as messages call it.
        bits: The bit width.
        chance: The predicted chance of missing the tolerance, or None if nothing is predicted.
    """

    name: str
    baseline: str
    label: str
    bits: float
    chance: float | None = None


@dataclass(frozen=True)
class Ladder:
    """Candidates that differ in their format only, grouped by bit width.

    Attributes:
        label: What all candidates of the ladder have in common, such as `with APS`.
        widths: The candidates of the ladder, most bits first. Within a width, the candidate that is likeliest to hold
            the tolerance comes first.
        is_ordered: Whether the order within each width is known. Until then, a width with several candidates waits for
            a run of the baseline.
        is_started: Whether the start is known. Until then, all candidates wait.
        start: The index of the width that is tested first.
        aside: The seed of the baseline's run that chose the start, or None. This seed is in no pair.
    """

    label: str
    widths: tuple[tuple[Candidate, ...], ...]
    is_ordered: bool = True
    is_started: bool = True
    start: int = 0
    aside: int | None = None

    @property
    def baseline(self) -> str:
        """The name of the cell with which all candidates of the ladder are compared."""
        return self.widths[0][0].baseline

    def may_try(self, width: int) -> bool:
        """Return whether it is known which candidate of this width to try first."""
        return self.is_started and (self.is_ordered or len(self.widths[width]) == 1)

    def seeds(self, most: int) -> list[int]:
        """Return the seeds of the ladder's pairs in their order."""
        return [seed for seed in range(most) if seed != self.aside]


@dataclass(frozen=True)
class Rules:
    """The tolerance and the other inputs of the test, in the metric's own unit.

    Attributes:
        tolerance: The margin.
        alpha: The error level, 1 minus the confidence.
        most_seeds: The largest number of seeds.
        higher_is_better: Whether a higher value of the metric is better.
        worst: The value that stands for a diverged run.
        resolution: The difference that a single test sample makes, or 0 if the metric does not count samples.
        metric: The name of the metric.
    """

    tolerance: float
    alpha: float
    most_seeds: int
    higher_is_better: bool = True
    worst: float = 0.0
    resolution: float = 0.0
    metric: str = ""


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

    def chosen(self, ended: EndedRuns, *, higher_is_better: bool) -> dict[str, str]:
        """Return the chosen arm of each cell whose arms have all ended on all tuning seeds or were given up.

        A cell with one arm needs no run for its choice.
        """
        return {
            cell: arms[choose([self.measured(arm, ended) for arm in arms], higher_is_better=higher_is_better)]
            for cell, arms in self.arms.items()
            if not self.missing(cell, ended)
        }

    def measured(self, arm: str, ended: EndedRuns) -> list[float]:
        """Return the values on the tuning seeds, NaN for a run that diverged or failed."""
        values = dict.fromkeys(ended.failures.get(arm, {}), math.nan) | ended.values.get(arm, {})
        return [values[seed] for seed in self.seeds if seed in values]

    def missing(self, cell: str, ended: EndedRuns) -> list[tuple[RunKey, ...]]:
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


UNTUNED = Tuning()
EMPTY_LEDGER = Ledger()


@dataclass(frozen=True)
class LadderState:
    """A ladder and the verdicts on its widths.

    Attributes:
        ladder: The ladder.
        widths: The verdict on each width.
        exhausted: The names of the candidates for which no further pair is possible.
        failures: The numbers of failed runs, by the name of the candidate.
    """

    ladder: Ladder
    widths: list[Width]
    exhausted: frozenset[str]
    failures: Mapping[str, FailureCounts]

    def __iter__(self) -> Iterator[tuple[Candidate, Judgement, Width]]:
        for candidates, width in zip(self.ladder.widths, self.widths, strict=True):
            for candidate, judgement in zip(candidates, width.judgements, strict=True):
                yield candidate, judgement, width

    @property
    def answer(self) -> tuple[Candidate, Judgement] | None:
        """The certified candidate with the fewest bits, or None."""
        found = None
        for candidates, width in zip(self.ladder.widths, self.widths, strict=True):
            if width.certified is not None:
                found = candidates[width.certified], width.judgements[width.certified]
        return found

    @property
    def frontier(self) -> int | None:
        """The index of the width in question, or None if the start and all narrower widths are certified.

        If the start is certified, this is the first narrower width that is not. If the start is not certified, this is
        the start as long as one of its candidates is in question, and then the nearest wider width with a candidate in
        question. If a certified width comes before that, this is the width just below the certified width. If no width
        has a candidate in question, the index is 0.
        """
        start, certified = self.ladder.start, [width.certified is not None for width in self.widths]
        if certified[start]:
            return next((i for i in range(start, len(certified)) if not certified[i]), None)
        for i in range(start, -1, -1):
            if certified[i]:
                return i + 1
            if self._questionable(i):
                return i
        return 0

    @property
    def in_question(self) -> list[tuple[Candidate, Judgement]]:
        """The open candidates at the frontier that have seeds left, the likeliest first."""
        return [] if self.frontier is None else self._questionable(self.frontier)

    def _questionable(self, width: int) -> list[tuple[Candidate, Judgement]]:
        rows = zip(self.ladder.widths[width], self.widths[width].judgements, strict=True)
        return [
            (candidate, judgement)
            for candidate, judgement in rows
            if judgement.verdict is Verdict.OPEN and candidate.name not in self.exhausted
        ]

    @property
    def active(self) -> tuple[Candidate, Judgement] | None:
        """The candidate that gets the next seeds, or None if the ladder has come to its end."""
        return next(iter(self.in_question), None)


def ladder_states(
    ladders: Sequence[Ladder],
    ended: EndedRuns,
    rules: Rules,
    tuning: Tuning = UNTUNED,
    ledger: Ledger = EMPTY_LEDGER,
) -> list[LadderState]:
    """Return the verdicts on all candidates. A candidate whose arm is chosen has the name of that arm.

    The caller adds the hypotheses of the widths to the ledger.
    """
    chosen = tuning.chosen(ended, higher_is_better=rules.higher_is_better)
    asked = [_as_asked(ladder) for ladder in ladders]
    ladders = [of_arms(ladder, chosen) for ladder in ladders]
    compared = [_compare(ladder, ended, tuning) for ladder in ladders]
    settled = judge_ladders(
        [_pair(*each, ended, rules) for each in zip(asked, ladders, compared, strict=True)],
        rules.metric,
        rules.tolerance,
        alpha=rules.alpha,
        ledger=ledger,
        resolution=rules.resolution,
    )
    return [
        LadderState(
            ladder,
            widths,
            frozenset(_exhausted(ladder, widths, ended, ladder.seeds(rules.most_seeds))),
            {name: found.counts for name, found in of_ladder.items()},
        )
        for ladder, widths, of_ladder in zip(ladders, settled, compared, strict=True)
    ]


def _as_asked(ladder: Ladder) -> AskedLadder:
    widths = [[candidate.name for candidate in width] for width in ladder.widths]
    return AskedLadder(ladder.baseline, widths, ladder.start, [width[0].bits for width in ladder.widths])


def of_arms(ladder: Ladder, chosen: Mapping[str, str]) -> Ladder:
    """Return the ladder with the chosen arms in place of their cells."""

    def of(candidate: Candidate) -> Candidate:
        name, baseline = candidate.name, candidate.baseline
        return replace(candidate, name=chosen.get(name, name), baseline=chosen.get(baseline, baseline))

    widths = tuple(tuple(map(of, width)) for width in ladder.widths)
    return replace(ladder, widths=widths) if chosen else ladder


def _compare(ladder: Ladder, ended: EndedRuns, tuning: Tuning) -> dict[str, Compared]:
    """Return what is compared for each candidate, by its name, without the seeds that are in no pair."""
    aside = {*tuning.seeds, *([] if ladder.aside is None else [ladder.aside])}
    candidates = itertools.chain(*ladder.widths)
    return {each.name: ended.compared(each.name, each.baseline, aside) for each in candidates}


def _pair(
    asked: AskedLadder, ladder: Ladder, compared: Mapping[str, Compared], ended: EndedRuns, rules: Rules
) -> PairedLadder:
    """Return the pairs of a ladder for the test, under the names with which the ladder was asked."""
    seeds = ladder.seeds(rules.most_seeds)
    gaps = [[_gaps(c, compared[c.name], ended, rules, seeds) for c in width] for width in ladder.widths]
    barred = [[compared[candidate.name].is_barred for candidate in width] for width in ladder.widths]
    return PairedLadder(asked, gaps, barred, len(seeds))


def _exhausted(
    ladder: Ladder, widths: Sequence[Width], ended: EndedRuns, seeds: Sequence[int]
) -> Iterator[str]:
    """Yield the names of the candidates for which no further pair is possible."""
    for candidates, width in zip(ladder.widths, widths, strict=True):
        for candidate, judgement in zip(candidates, width.judgements, strict=True):
            given_up = {candidate.name, candidate.baseline} & ended.given_up
            is_complete = counted_seeds(candidate, ended, seeds) == len(seeds)
            if judgement.settled_at is not None or given_up or is_complete:
                yield candidate.name


def counted_seeds(candidate: Candidate, ended: EndedRuns, seeds: Sequence[int]) -> int:
    """Return how many of these seeds, counted from the first without a gap, have ended on both sides."""
    both = (ended.has((candidate.name, seed)) and ended.has((candidate.baseline, seed)) for seed in seeds)
    return sum(1 for _ in itertools.takewhile(bool, both))


def _gaps(
    candidate: Candidate, found: Compared, ended: EndedRuns, rules: Rules, seeds: Sequence[int]
) -> list[float]:
    """Return the differences of a candidate's pairs, up to the first seed that has not ended on both sides."""
    counted = {*seeds[: counted_seeds(candidate, ended, seeds)]}

    def of(values: Mapping[int, float]) -> Mapping[int, float]:
        return {seed: value for seed, value in values.items() if seed in counted}

    return differences(
        of(found.ours), of(found.baseline), higher_is_better=rules.higher_is_better, worst=rules.worst
    )
