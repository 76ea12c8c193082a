"""Judge ladders of candidates, and choose tuned values. The functions are pure.

A ladder holds the candidates that differ only in their format, grouped into widths by their number of bits, widest
first. A pair is a candidate run and a baseline run with the same seed. The seeds of pairs are 0, 1, 2 ... and count in
this order: a run that ends early, as diverging runs do, counts only after all runs with smaller seeds have ended.

With tuned keys (`search.tune`), each cell of the axes is replaced by its arms: one cell for each combination of the
tuned values. Every arm runs on the tuning seeds. The best arm there (`cpdrun.stats.means`) is chosen, and only this arm
runs on the seeds of pairs.

Tuning costs no confidence. Tuning seeds start at FIRST_SEED (`cpdrun.stats.means`), above all seeds of pairs, so the
choice is independent of every pair. For any choice, the pairs are those of a search for which the user typed the chosen
values, so a wrong certificate has at most probability alpha. A poor choice costs power, never validity.

A certificate compares a candidate and a baseline, each at its own chosen values. It generalizes over seeds, not over
data: all seeds, including tuning seeds, are judged on the same test set. Changing the values to try after the verdicts
are known reuses the same seeds for another comparison.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cpdrun.stats.ended_runs import EndedRuns, RunKey
from cpdrun.stats.evidence import Judgment, Verdict, differences
from cpdrun.stats.failures import Compared, FailureCounts
from cpdrun.stats.ladder import PairedLadder, Width, judge_ladders
from cpdrun.stats.ledger import AskedLadder, Ledger
from cpdrun.stats.means import choose, edges

# A candidate with a higher predicted chance of failing is not expected to be good enough.
EVEN = 0.5


@dataclass(frozen=True)
class Candidate:
    """A cell of the axes that is compared with a baseline.

    Attributes:
        name: The name of the candidate's cell.
        baseline: The name of the baseline's cell.
        label: The name of the candidate in messages.
        bits: The bit width.
        chance: The predicted chance that the candidate is worse than the baseline by more than the margin, if
            predicted.
    """

    name: str
    baseline: str
    label: str
    bits: float
    chance: float | None = None


@dataclass(frozen=True)
class Ladder:
    """Candidates that differ only in their format, grouped by bit width.

    Attributes:
        label: The values that all candidates share, such as `with APS`.
        widths: The candidates of each width, most bits first. Within a width, the most promising comes first.
        is_ordered: Whether the order within each width is known. Until then, widths with several formats wait.
        is_started: Whether `start` is known. Until then, all candidates wait.
        start: The index of the width that is tested first.
        aside: The seed of the baseline run from which the start was predicted. It is in no pair. None if
            there was no prediction, or if the start is the widest width.
    """

    label: str
    widths: tuple[tuple[Candidate, ...], ...]
    is_ordered: bool = True
    is_started: bool = True
    start: int = 0
    aside: int | None = None

    @property
    def baseline(self) -> str:
        """The name of the baseline's cell."""
        return self.widths[0][0].baseline

    def may_try(self, width: int) -> bool:
        """Return True if candidates of this width may run.

        The start of the ladder must be known, and if the width has several candidates, their order.
        """
        return self.is_started and (self.is_ordered or len(self.widths[width]) == 1)

    def seeds(self, most: int) -> list[int]:
        """Return the seeds of the ladder's pairs in ascending order. All are below `most`."""
        return [seed for seed in range(most) if seed != self.aside]


@dataclass(frozen=True)
class Rules:
    """The inputs of the test, in the metric's stored unit.

    Attributes:
        tolerance: The margin.
        alpha: The error level, 1 minus the confidence.
        most_seeds: The maximum number of seeds.
        higher_is_better: Whether a higher value of the metric is better.
        worst: The value that replaces the metric of a diverged run.
        resolution: The change of the metric for one more correct test sample; 0 if the metric does not count samples.
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
        arms: The arms of each cell, in the order of the values. Only arms have runs, and no arm has the name of a cell.
        values: The values of the tuned keys for each arm.
    """

    keys: Mapping[str, list[Any]] = field(default_factory=dict)
    seeds: tuple[int, ...] = ()
    arms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.arms)

    def chosen(self, ended: EndedRuns, *, higher_is_better: bool) -> dict[str, str]:
        """Return the chosen arm of each cell whose choice is possible.

        All arms must have ended on all tuning seeds or have been given up. A single arm needs no runs.
        """
        return {
            cell: arms[choose([self.measured(arm, ended) for arm in arms], higher_is_better=higher_is_better)]
            for cell, arms in self.arms.items()
            if not self.missing(cell, ended)
        }

    def measured(self, arm: str, ended: EndedRuns) -> list[float]:
        """Return an arm's metric on the tuning seeds. NaN for runs that diverged or failed."""
        values = dict.fromkeys(ended.failures.get(arm, {}), math.nan) | ended.values.get(arm, {})
        return [values[seed] for seed in self.seeds if seed in values]

    def missing(self, cell: str, ended: EndedRuns) -> list[tuple[RunKey, ...]]:
        """Return the runs, by seed, that the cell's choice still needs."""
        arms = self.arms.get(cell, ())
        if len(arms) < 2:
            return []
        left = [arm for arm in arms if arm not in ended.given_up]
        turns = (tuple((arm, seed) for arm in left if not ended.has((arm, seed))) for seed in self.seeds)
        return [turn for turn in turns if turn]

    def runs(self, cell: str) -> int:
        """Return the number of runs that the cell's choice needs in total."""
        arms = len(self.arms.get(cell, ()))
        return arms * len(self.seeds) if arms > 1 else 0

    def runs_ended(self, ended: EndedRuns) -> int:
        """Return the number of runs on tuning seeds that have ended."""
        arms = (arm for arms in self.arms.values() if len(arms) > 1 for arm in arms)
        return sum(ended.has((arm, seed)) for arm in arms for seed in self.seeds)

    def edges(self, arm: str) -> Iterator[tuple[str, str]]:
        """Yield (key, "largest" or "smallest") for each value at an end of the values tried.

        Keys with one value or with values that are not numbers are left out.
        """
        return edges(self.values.get(arm, {}), self.keys)


UNTUNED = Tuning()
EMPTY_LEDGER = Ledger()


@dataclass(frozen=True)
class LadderState:
    """A ladder and the verdicts on its widths.

    Attributes:
        ladder: The ladder.
        widths: The verdict on each width, most bits first.
        exhausted: The candidates that get no further pairs.
        failures: The number of failed runs of each candidate.
    """

    ladder: Ladder
    widths: list[Width]
    exhausted: frozenset[str]
    failures: Mapping[str, FailureCounts]

    def __iter__(self) -> Iterator[tuple[Candidate, Judgment, Width]]:
        for candidates, width in zip(self.ladder.widths, self.widths, strict=True):
            for candidate, judgment in zip(candidates, width.judgments, strict=True):
                yield candidate, judgment, width

    @property
    def answer(self) -> tuple[Candidate, Judgment] | None:
        """The certified candidate with the fewest bits and its judgment, if any."""
        found = None
        for candidates, width in zip(self.ladder.widths, self.widths, strict=True):
            if width.certified is not None:
                found = candidates[width.certified], width.judgments[width.certified]
        return found

    @property
    def frontier(self) -> int | None:
        """The index of the width that is tested now; None if all widths from the start on are certified.

        A candidate is in question if it is open and may get further pairs.

        - If the start is certified, this is the first narrower width that is not.
        - Otherwise, go from the start to wider widths. At a width with a candidate in question, this is that width. At
        a certified width, this is the next narrower one. If there is neither, this is 0.
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
    def in_question(self) -> list[tuple[Candidate, Judgment]]:
        """The candidates in question at the frontier, most promising first."""
        return [] if self.frontier is None else self._questionable(self.frontier)

    def _questionable(self, width: int) -> list[tuple[Candidate, Judgment]]:
        rows = zip(self.ladder.widths[width], self.widths[width].judgments, strict=True)
        return [
            (candidate, judgment)
            for candidate, judgment in rows
            if judgment.verdict is Verdict.OPEN and candidate.name not in self.exhausted
        ]

    @property
    def active(self) -> tuple[Candidate, Judgment] | None:
        """The candidate that gets the next pairs, and its judgment. None if the ladder is over."""
        return next(iter(self.in_question), None)


def ladder_states(
    ladders: Sequence[Ladder],
    ended: EndedRuns,
    rules: Rules,
    tuning: Tuning = UNTUNED,
    ledger: Ledger = EMPTY_LEDGER,
) -> list[LadderState]:
    """Return each ladder with the verdicts on its candidates.

    Candidates of `ladders` have the names of their cells, and those of the result have the names of their chosen arms.
    The caller adds the hypotheses to the ledger.
    """
    chosen = tuning.chosen(ended, higher_is_better=rules.higher_is_better)
    asked = [_as_asked(ladder) for ladder in ladders]
    ladders = [renamed(ladder, chosen) for ladder in ladders]
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


def renamed(ladder: Ladder, names: Mapping[str, str]) -> Ladder:
    """Return the ladder with new names of cells, keyed by the present names."""

    def of(candidate: Candidate) -> Candidate:
        name, baseline = candidate.name, candidate.baseline
        return replace(candidate, name=names.get(name, name), baseline=names.get(baseline, baseline))

    widths = tuple(tuple(map(of, width)) for width in ladder.widths)
    return replace(ladder, widths=widths) if names else ladder


def _compare(ladder: Ladder, ended: EndedRuns, tuning: Tuning) -> dict[str, Compared]:
    """Return the values and failures to compare for each candidate. Seeds that are in no pair are left out."""
    aside = {*tuning.seeds, *([] if ladder.aside is None else [ladder.aside])}
    candidates = itertools.chain(*ladder.widths)
    return {each.name: ended.compared(each.name, each.baseline, aside) for each in candidates}


def _pair(
    asked: AskedLadder, ladder: Ladder, compared: Mapping[str, Compared], ended: EndedRuns, rules: Rules
) -> PairedLadder:
    """Return the ladder with the paired differences of its candidates, for the test.

    `asked` and `ladder` are the same ladder with different names. `asked` has the names of cells, under which
    the ledger stores hypotheses. `ladder` has the names of chosen arms, under which runs are stored.
    """
    seeds = ladder.seeds(rules.most_seeds)
    gaps = [[_gaps(c, compared[c.name], ended, rules, seeds) for c in width] for width in ladder.widths]
    barred = [[compared[candidate.name].is_barred for candidate in width] for width in ladder.widths]
    return PairedLadder(asked, gaps, barred, len(seeds))


def _exhausted(
    ladder: Ladder, widths: Sequence[Width], ended: EndedRuns, seeds: Sequence[int]
) -> Iterator[str]:
    """Yield the candidates that get no further pairs.

    They are certified or refuted, have used all seeds, or were given up because their runs or their baseline's runs
    failed.
    """
    for candidates, width in zip(ladder.widths, widths, strict=True):
        for candidate, judgment in zip(candidates, width.judgments, strict=True):
            given_up = {candidate.name, candidate.baseline} & ended.given_up
            is_complete = counted_seeds(candidate, ended, seeds) == len(seeds)
            if judgment.settled_at is not None or given_up or is_complete:
                yield candidate.name


def counted_seeds(candidate: Candidate, ended: EndedRuns, seeds: Sequence[int]) -> int:
    """Count the seeds, in order, up to the first that has not ended for both candidate and baseline."""
    both = (ended.has((candidate.name, seed)) and ended.has((candidate.baseline, seed)) for seed in seeds)
    return sum(1 for _ in itertools.takewhile(bool, both))


def _gaps(
    candidate: Candidate, found: Compared, ended: EndedRuns, rules: Rules, seeds: Sequence[int]
) -> list[float]:
    """Return the differences of the candidate's pairs on the counted seeds."""
    counted = {*seeds[: counted_seeds(candidate, ended, seeds)]}

    def of(values: Mapping[int, float]) -> Mapping[int, float]:
        return {seed: value for seed, value in values.items() if seed in counted}

    return differences(
        of(found.ours), of(found.baseline), higher_is_better=rules.higher_is_better, worst=rules.worst
    )
