"""Choose the runs to ask for next from the results of the recorded runs.

The functions are pure: they take and return names and numbers.

A pair is the same seed run with a candidate and with its baseline. Seeds are 0, 1, 2 ... and count in this order. A
run that ends early, as a diverging run does, counts only after the runs of all smaller seeds have ended.
"""

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cpdrun.search.tune import Tuning
from cpdrun.stats.chain import PairedChain, Width, judge_chains
from cpdrun.stats.evidence import Judgement, Verdict, differences
from cpdrun.stats.failures import Compared, Failure, FailureCounts, Runs, compare_runs
from cpdrun.stats.ledger import AskedChain, Ledger

# The fewest pairs that can settle a candidate. They are asked for at once if there are enough cores.
FIRST_PAIRS = 3

# A candidate with a higher predicted chance of missing the tolerance is not expected to hold it.
EVEN = 0.5

UNTUNED = Tuning()
EMPTY_LEDGER = Ledger()

# The name of a cell and a seed.
Ask = tuple[str, int]


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
class Chain:
    """Candidates that differ in their format only, grouped by bit width.

    Attributes:
        label: What all candidates of the chain have in common, such as `with APS`.
        widths: The candidates of the chain, most bits first. Within a width, the candidate that is likeliest to hold
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
        """The name of the cell with which all candidates of the chain are compared."""
        return self.widths[0][0].baseline

    def may_try(self, width: int) -> bool:
        """Return whether it is known which candidate of this width to try first."""
        return self.is_started and (self.is_ordered or len(self.widths[width]) == 1)

    def seeds(self, most: int) -> list[int]:
        """Return the seeds of the chain's pairs in their order."""
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


@dataclass
class Ended:
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

    def has(self, ask: Ask) -> bool:
        """Return whether a run has ended, well or not."""
        name, seed = ask
        return seed in self.values.get(name, {}) or seed in self.failures.get(name, {})

    def runs(self, name: str) -> Runs:
        """Return the runs of a cell, for a comparison."""
        of_cell = (self.values, self.failures, self.lengths, self.gave_up)
        return Runs(*(found.get(name, {}) for found in of_cell))

    def compared(self, candidate: Candidate, aside: Collection[int] = ()) -> Compared:
        """Return the values and the failures of all pairs of a candidate, without the seeds in `aside`."""
        sides = (self.runs(candidate.name), self.runs(candidate.baseline))
        return compare_runs(*(runs.without(aside) if aside else runs for runs in sides))


@dataclass(frozen=True)
class Standing:
    """A chain and the verdicts on its widths.

    Attributes:
        chain: The chain.
        widths: The verdict on each width.
        exhausted: For each candidate, whether no further pair is possible.
        failures: The number of failed runs of each candidate.
    """

    chain: Chain
    widths: list[Width]
    exhausted: tuple[tuple[bool, ...], ...]
    failures: tuple[tuple[FailureCounts, ...], ...]

    def failures_of(self, candidate: Candidate) -> FailureCounts:
        """Return how many runs of one of the candidates failed."""
        rows = zip(self.chain.widths, self.failures, strict=True)
        return next(
            c for width, counts in rows for one, c in zip(width, counts, strict=True) if one is candidate
        )

    def __iter__(self) -> Iterator[tuple[Candidate, Judgement, Width]]:
        for candidates, width in zip(self.chain.widths, self.widths, strict=True):
            for candidate, judgement in zip(candidates, width.judgements, strict=True):
                yield candidate, judgement, width

    @property
    def answer(self) -> tuple[Candidate, Judgement] | None:
        """The certified candidate with the fewest bits, or None."""
        found = None
        for candidates, width in zip(self.chain.widths, self.widths, strict=True):
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
        start, certified = self.chain.start, [width.certified is not None for width in self.widths]
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
        judgements, exhausted = self.widths[width].judgements, self.exhausted[width]
        rows = zip(self.chain.widths[width], judgements, exhausted, strict=True)
        return [row[:2] for row in rows if row[1].verdict is Verdict.OPEN and not row[2]]

    @property
    def active(self) -> tuple[Candidate, Judgement] | None:
        """The candidate that gets the next seeds, or None if the chain has come to its end."""
        return next(iter(self.in_question), None)


def stand(
    chains: Sequence[Chain],
    ended: Ended,
    rules: Rules,
    tuning: Tuning = UNTUNED,
    ledger: Ledger = EMPTY_LEDGER,
) -> list[Standing]:
    """Return the verdicts on all candidates. A candidate whose arm is chosen has the name of that arm.

    The caller adds the hypotheses of the widths to the ledger.
    """
    chosen = tuning.chosen(ended, higher_is_better=rules.higher_is_better)
    asked = [_as_asked(chain) for chain in chains]
    paired = [_paired(of_arms(chain, chosen), ended, rules, tuning.seeds) for chain in chains]
    settled = judge_chains(
        [each.as_asked(chain) for each, chain in zip(paired, asked, strict=True)],
        rules.metric,
        rules.tolerance,
        alpha=rules.alpha,
        ledger=ledger,
        resolution=rules.resolution,
    )
    return [_stand(each, widths, ended) for each, widths in zip(paired, settled, strict=True)]


def _as_asked(chain: Chain) -> AskedChain:
    widths = [[candidate.name for candidate in width] for width in chain.widths]
    return AskedChain(chain.baseline, widths, chain.start, [width[0].bits for width in chain.widths])


def of_arms(chain: Chain, chosen: Mapping[str, str]) -> Chain:
    """Return the chain with the chosen arms in place of their cells."""

    def of(candidate: Candidate) -> Candidate:
        name, baseline = candidate.name, candidate.baseline
        return replace(candidate, name=chosen.get(name, name), baseline=chosen.get(baseline, baseline))

    widths = tuple(tuple(map(of, width)) for width in chain.widths)
    return replace(chain, widths=widths) if chosen else chain


@dataclass(frozen=True)
class _Paired:
    """A chain with the runs of its candidates: what is compared, and the differences, by width and candidate."""

    chain: Chain
    seeds: list[int]
    compared: list[list[Compared]]
    gaps: list[list[list[float]]]

    def as_asked(self, asked: AskedChain) -> PairedChain:
        """Return the pairs for the test, under the names with which the chain was asked."""
        barred = [[found.is_barred for found in of_width] for of_width in self.compared]
        return PairedChain(asked, self.gaps, barred, len(self.seeds))


def _paired(chain: Chain, ended: Ended, rules: Rules, aside: Collection[int]) -> _Paired:
    seeds = chain.seeds(rules.most_seeds)
    left_out = {*aside, *([] if chain.aside is None else [chain.aside])}
    compared = [[ended.compared(candidate, left_out) for candidate in width] for width in chain.widths]
    gaps = [
        [
            _gaps(candidate, found, ended, rules, seeds)
            for candidate, found in zip(width, of_width, strict=True)
        ]
        for width, of_width in zip(chain.widths, compared, strict=True)
    ]
    return _Paired(chain, seeds, compared, gaps)


def _stand(paired: _Paired, widths: list[Width], ended: Ended) -> Standing:
    chain, seeds = paired.chain, paired.seeds
    exhausted = tuple(
        tuple(
            judgement.settled_at is not None or _is_exhausted(candidate, ended, seeds)
            for candidate, judgement in zip(candidates, width.judgements, strict=True)
        )
        for candidates, width in zip(chain.widths, widths, strict=True)
    )
    failures = tuple(tuple(found.counts for found in of_width) for of_width in paired.compared)
    return Standing(chain, widths, exhausted, failures)


def _is_exhausted(candidate: Candidate, ended: Ended, seeds: Sequence[int]) -> bool:
    given_up = {candidate.name, candidate.baseline} & ended.given_up
    return bool(given_up) or _counted(candidate, ended, seeds) == len(seeds)


def _counted(candidate: Candidate, ended: Ended, seeds: Sequence[int]) -> int:
    """Return how many of these seeds, counted from the first without a gap, have ended on both sides."""
    both = (ended.has((candidate.name, seed)) and ended.has((candidate.baseline, seed)) for seed in seeds)
    return sum(1 for _ in itertools.takewhile(bool, both))


def _gaps(
    candidate: Candidate, found: Compared, ended: Ended, rules: Rules, seeds: Sequence[int]
) -> list[float]:
    """Return the differences of a candidate's pairs, up to the first seed that has not ended on both sides."""
    counted = {*seeds[: _counted(candidate, ended, seeds)]}

    def of(values: Mapping[int, float]) -> Mapping[int, float]:
        return {seed: value for seed, value in values.items() if seed in counted}

    return differences(
        of(found.ours), of(found.baseline), higher_is_better=rules.higher_is_better, worst=rules.worst
    )


def wanted(
    standings: Sequence[Standing],
    ended: Ended,
    asked: set[Ask],
    rules: Rules,
    tuning: Tuning = UNTUNED,
    *,
    ahead: bool = True,
) -> Iterator[Ask]:
    """Yield the runs that would settle most, the best first, each run once.

    Chains take turns, pair by pair. First come the pairs that the candidate in question is likely to need:
    FIRST_PAIRS, then as many as the results so far suggest. The runs beyond these keep cores busy that would be idle.
    They are the first pairs of the next narrower format and further seeds of the present format. If the present format
    looks bad, another format of the same width or else of the next wider width takes the place of the narrower format.
    Before its own pairs can tell, a format looks bad if the prediction says so.

    A cell whose arm is still to be chosen runs on its tuning seeds first. It does so only when its chain has reached
    it, because tuning that was done ahead would be lost if the present format is refuted.

    Args:
        standings: The verdicts on all chains.
        ended: The runs that have ended. They are left out.
        asked: The runs that were asked for already. They are left out, too.
        rules: The inputs of the test.
        tuning: The tuned keys and the arms.
        ahead: Whether to include the runs that keep idle cores busy.
    """
    seen = set(asked)
    needed = [list(_needed(standing, ended, rules, tuning)) for standing in standings]
    further = [list(_further(standing, ended, rules, tuning)) for standing in standings] if ahead else []
    for turns in (needed, further):
        for turn in itertools.zip_longest(*turns, fillvalue=()):
            for ask in itertools.chain(*turn):
                if ask not in seen and not ended.has(ask):
                    seen.add(ask)
                    yield ask


def _needed(standing: Standing, ended: Ended, rules: Rules, tuning: Tuning) -> Iterator[tuple[Ask, ...]]:
    if standing.active is None:
        return
    candidate, judgement = standing.active
    if not _is_tuned(candidate, tuning):
        yield from tuning.missing(candidate.baseline, ended)
        if standing.chain.may_try(standing.frontier):
            yield from tuning.missing(candidate.name, ended)
        else:
            yield from _of_baseline(candidate, tuning)
        return
    seeds = standing.chain.seeds(rules.most_seeds)
    counted = _counted(candidate, ended, seeds)
    # A seed that gave no pair is replaced by a further seed.
    skipped = counted - judgement.pairs
    # Ask for half of the likely number, because the estimate changes with every pair.
    more = 1 if judgement.more is None else math.ceil(judgement.more.likely / 2)
    upto = max(FIRST_PAIRS + skipped, counted + more)
    pairs = _pairs(candidate, seeds[counted:upto])
    yield from pairs if standing.chain.may_try(standing.frontier) else (pair[:1] for pair in pairs)


def _further(standing: Standing, ended: Ended, rules: Rules, tuning: Tuning) -> Iterator[tuple[Ask, ...]]:
    """Yield the runs that keep idle cores busy.

    The present candidate gets at most twice the seeds that have ended plus FIRST_PAIRS in total, because idle cores
    are no reason to waste compute.
    """
    chain, frontier = standing.chain, standing.frontier
    if standing.active is None or not chain.may_try(frontier):
        return
    (candidate, judgement), *others = standing.in_question
    if not _is_tuned(candidate, tuning):
        yield from _of_baseline(candidate, tuning)
        return
    looks_bad = _looks_bad(candidate, judgement, rules)
    beside = [other for other, _ in others]
    likely = beside if looks_bad and beside else _next_width(chain, frontier, looks_bad=looks_bad)
    seeds = chain.seeds(rules.most_seeds)
    counted = _counted(candidate, ended, seeds)
    own = _pairs(candidate, seeds[counted : 2 * counted + FIRST_PAIRS])
    first = [each for each in likely[:1] if _is_tuned(each, tuning)]
    yield from itertools.chain(*(_pairs(each, seeds[:FIRST_PAIRS]) for each in first), own)


def _next_width(chain: Chain, frontier: int, *, looks_bad: bool) -> Sequence[Candidate]:
    """Return the candidates of the width that is tested after the frontier.

    From the starting width downward, the next narrower width is tested. If the present width looks bad, the next wider
    width is tested instead, from the starting width upward. The result is empty beyond the ends of the chain.
    """
    if looks_bad:
        following = frontier - 1 if frontier <= chain.start else -1
    else:
        following = frontier + 1 if frontier >= chain.start else -1
    is_there = 0 <= following < len(chain.widths) and chain.may_try(following)
    return chain.widths[following] if is_there else ()


def _looks_bad(candidate: Candidate, judgement: Judgement, rules: Rules) -> bool:
    if judgement.pairs >= 2:
        return judgement.mean + rules.tolerance < 0
    return candidate.chance is not None and candidate.chance > EVEN


def _is_tuned(candidate: Candidate, tuning: Tuning) -> bool:
    return not {candidate.name, candidate.baseline} & tuning.arms.keys()


def _of_baseline(candidate: Candidate, tuning: Tuning) -> Iterator[tuple[Ask, ...]]:
    """Yield the baseline's runs for the first pairs, which are needed whatever is chosen for the candidate."""
    if candidate.baseline not in tuning.arms:
        yield from (((candidate.baseline, seed),) for seed in range(FIRST_PAIRS))


def _pairs(candidate: Candidate, seeds: Sequence[int]) -> Iterator[tuple[Ask, Ask]]:
    for seed in seeds:
        yield (candidate.baseline, seed), (candidate.name, seed)
