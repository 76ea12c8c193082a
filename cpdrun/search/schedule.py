"""Which runs to ask for next, from what the recorded ones say. Pure: names and numbers in, names and numbers out.

A pair is the same seed run with a candidate and with its baseline. Seeds are 0, 1, 2 ... and count in this order: a
run that ends early, as a diverging one does, tells nothing before those of the seeds below it have ended.
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

FIRST_PAIRS = 3  # the fewest that settle anything; asked for at once where there are cores

EVEN = 0.5  # a predicted chance above it: rather not

UNTUNED = Tuning()
EMPTY_LEDGER = Ledger()

Ask = tuple[str, int]  # a cell's name and a seed


@dataclass(frozen=True)
class Candidate:
    """A cell of the axes that is compared with a baseline; both by the names of their cells."""

    name: str
    baseline: str
    label: str
    bits: float
    chance: float | None = None  # predicted, of missing the tolerance; None where nothing is


@dataclass(frozen=True)
class Chain:
    """Candidates that differ in their format alone: `widths`, most bits first; in each the likeliest first. Until that
    is known, `is_ordered` is false, and a width of several candidates waits for a run of the baseline; all wait
    until `is_started`. `start`: the width asked first; `aside`: the seed of the run that chose it, in no pair."""

    label: str
    widths: tuple[tuple[Candidate, ...], ...]
    is_ordered: bool = True
    is_started: bool = True
    start: int = 0
    aside: int | None = None

    @property
    def baseline(self) -> str:
        """The cell that all of its candidates are compared with."""
        return self.widths[0][0].baseline

    def may_try(self, width: int) -> bool:
        """Whether it is known which candidate of this width to try first."""
        return self.is_started and (self.is_ordered or len(self.widths[width]) == 1)

    def seeds(self, most: int) -> list[int]:
        """Those of its pairs, in their order."""
        return [seed for seed in range(most) if seed != self.aside]


@dataclass(frozen=True)
class Rules:
    """The tolerance and the other inputs of the test, in the metric's own unit."""

    tolerance: float
    alpha: float
    most_seeds: int
    higher_is_better: bool = True
    worst: float = 0.0
    resolution: float = 0.0
    metric: str = ""


@dataclass
class Ended:
    """The runs that have ended, by cell and seed: the metric (NaN for a diverged run), or why there is none.

    `lengths` and `gave_up` are those of `cpdrun.stats.failures.Runs`. A cell is given up after a number of failures if
    none of its runs ended well.
    """

    values: dict[str, dict[int, float]] = field(default_factory=dict)
    failures: dict[str, dict[int, Failure]] = field(default_factory=dict)
    given_up: set[str] = field(default_factory=set)
    lengths: dict[str, dict[int, int]] = field(default_factory=dict)
    gave_up: dict[str, set[int]] = field(default_factory=dict)

    def has(self, ask: Ask) -> bool:
        name, seed = ask
        return seed in self.values.get(name, {}) or seed in self.failures.get(name, {})

    def runs(self, name: str) -> Runs:
        """Return the runs of a cell, for a comparison."""
        of_cell = (self.values, self.failures, self.lengths, self.gave_up)
        return Runs(*(found.get(name, {}) for found in of_cell))

    def compared(self, candidate: Candidate, aside: Collection[int] = ()) -> Compared:
        """Return the values and the failures of all pairs of a candidate, without the seeds set `aside`."""
        sides = (self.runs(candidate.name), self.runs(candidate.baseline))
        return compare_runs(*(runs.without(aside) if aside else runs for runs in sides))


@dataclass(frozen=True)
class Standing:
    """A chain and how each of its widths stands."""

    chain: Chain
    widths: list[Width]
    exhausted: tuple[tuple[bool, ...], ...]  # candidates of which no further pair can be had
    failures: tuple[tuple[FailureCounts, ...], ...]  # of each candidate

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
        """The certified candidate of fewest bits."""
        found = None
        for candidates, width in zip(self.chain.widths, self.widths, strict=True):
            if width.certified is not None:
                found = candidates[width.certified], width.judgements[width.certified]
        return found

    @property
    def frontier(self) -> int | None:
        """The width in question: the first from the start down that is not certified, None where all are. Where that
        is the start and it has come to its end, the next wider one that has not, and below one that is certified."""
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
        """The candidates at the frontier that are open and have seeds left, the likeliest first."""
        return [] if self.frontier is None else self._questionable(self.frontier)

    def _questionable(self, width: int) -> list[tuple[Candidate, Judgement]]:
        judgements, exhausted = self.widths[width].judgements, self.exhausted[width]
        rows = zip(self.chain.widths[width], judgements, exhausted, strict=True)
        return [row[:2] for row in rows if row[1].verdict is Verdict.OPEN and not row[2]]

    @property
    def active(self) -> tuple[Candidate, Judgement] | None:
        """The candidate to seed, the first in question; None where the chain is at its end."""
        return next(iter(self.in_question), None)


def stand(
    chains: Sequence[Chain],
    ended: Ended,
    rules: Rules,
    tuning: Tuning = UNTUNED,
    ledger: Ledger = EMPTY_LEDGER,
) -> list[Standing]:
    """Return how all candidates stand, each under the name of its arm as soon as that is chosen.

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
    """The chain with the arms in place of the cells of which one is chosen."""

    def of(candidate: Candidate) -> Candidate:
        name, baseline = candidate.name, candidate.baseline
        return replace(candidate, name=chosen.get(name, name), baseline=chosen.get(baseline, baseline))

    widths = tuple(tuple(map(of, width)) for width in chain.widths)
    return replace(chain, widths=widths) if chosen else chain


@dataclass(frozen=True)
class _Paired:
    """A chain with the runs of its candidates: what is compared, and the differences, width by width."""

    chain: Chain
    seeds: list[int]
    compared: list[list[Compared]]
    gaps: list[list[list[float]]]

    def as_asked(self, asked: AskedChain) -> PairedChain:
        """Return the pairs for the test, under the names with which the chain is asked."""
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
    """How many of these seeds have ended with both, without a gap."""
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
    """The runs that would settle most, the best first, each once; without those that have ended or are `asked` for.

    Chains take turns, pair by pair. First come the pairs that the candidate in question is likely to need: three, then
    as many as the figures so far say. Those beyond, `ahead`, keep cores busy that would stand idle: the first pairs of
    the next narrower format unless the present one looks bad, and further seeds of the present one. Before its own
    pairs say, it looks as bad as is predicted.

    A cell of which the arm is still to be chosen runs on its tuning seeds first, and none does before its chain has
    reached it: what is tuned ahead would be lost where the present format is refuted.
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
    skipped = counted - judgement.pairs  # seeds without a pair take further ones
    more = 1 if judgement.more is None else math.ceil(judgement.more.likely / 2)  # half: figures move
    upto = max(FIRST_PAIRS + skipped, counted + more)
    pairs = _pairs(candidate, seeds[counted:upto])
    yield from pairs if standing.chain.may_try(standing.frontier) else (pair[:1] for pair in pairs)


def _further(standing: Standing, ended: Ended, rules: Rules, tuning: Tuning) -> Iterator[tuple[Ask, ...]]:
    """At most twice the seeds that have ended, and three: compute is not to be wasted because it is there."""
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
    """What is asked after the frontier: the next narrower width, or, at the start and above it, where that looks bad
    the next wider one; there is none beyond the chain's ends."""
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
    """What the first pairs will want of it, whatever is chosen for the candidate."""
    if candidate.baseline not in tuning.arms:
        yield from (((candidate.baseline, seed),) for seed in range(FIRST_PAIRS))


def _pairs(candidate: Candidate, seeds: Sequence[int]) -> Iterator[tuple[Ask, Ask]]:
    for seed in seeds:
        yield (candidate.baseline, seed), (candidate.name, seed)
