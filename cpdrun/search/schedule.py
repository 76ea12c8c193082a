"""Which runs to ask for next, from what the recorded ones say. Pure: names and numbers in, names and numbers out.

A pair is the same seed run with a candidate and with its baseline. Seeds are 0, 1, 2 ... and count in this order: a
run that ends early, as a diverging one does, tells nothing before those of the seeds below it have ended.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cpdrun.search.tune import Tuning
from cpdrun.stats.anytime import Judgement, Verdict, differences
from cpdrun.stats.chain import Width, settle

FIRST_PAIRS = 3  # the fewest that settle anything; asked for at once where there are cores

EVEN = 0.5  # a predicted chance above it: rather not

UNTUNED = Tuning()

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
    is known, `is_ordered` is false, and a width of several candidates waits for a run of the baseline."""

    label: str
    widths: tuple[tuple[Candidate, ...], ...]
    is_ordered: bool = True

    @property
    def baseline(self) -> str:
        """The cell that all of its candidates are compared with."""
        return self.widths[0][0].baseline

    def may_try(self, width: int) -> bool:
        """Whether it is known which candidate of this width to try first."""
        return self.is_ordered or len(self.widths[width]) == 1


@dataclass(frozen=True)
class Rules:
    """What is asked: the tolerance and what else the test takes, in the metric's own unit."""

    tolerance: float
    alpha: float
    most_seeds: int
    higher_is_better: bool = True
    worst: float = 0.0
    resolution: float = 0.0


@dataclass
class Ended:
    """What has ended: by cell and seed the metric, NaN for a diverged run; seeds without a value are skipped."""

    values: dict[str, dict[int, float]] = field(default_factory=dict)
    skipped: set[Ask] = field(default_factory=set)
    given_up: set[str] = field(default_factory=set)  # cells of which every run fails
    barred: set[str] = field(default_factory=set)  # of which a run of a pair diverged or gave up

    def has(self, ask: Ask) -> bool:
        return ask in self.skipped or ask[1] in self.values.get(ask[0], {})


@dataclass(frozen=True)
class Standing:
    """A chain and how each of its widths stands."""

    chain: Chain
    widths: list[Width]
    exhausted: tuple[tuple[bool, ...], ...]  # candidates of which no further pair can be had

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
        """The first width that is not certified; None where all are."""
        return next((i for i, width in enumerate(self.widths) if width.certified is None), None)

    @property
    def in_question(self) -> list[tuple[Candidate, Judgement]]:
        """The candidates at the frontier that are open and have seeds left, the likeliest first."""
        if self.frontier is None:
            return []
        width = self.widths[self.frontier]
        rows = zip(
            self.chain.widths[self.frontier], width.judgements, self.exhausted[self.frontier], strict=True
        )
        return [row[:2] for row in rows if row[1].verdict is Verdict.OPEN and not row[2]]

    @property
    def active(self) -> tuple[Candidate, Judgement] | None:
        """The candidate to seed, the first in question; None where the chain is at its end."""
        return next(iter(self.in_question), None)


def stand(chains: Sequence[Chain], ended: Ended, rules: Rules, tuning: Tuning = UNTUNED) -> list[Standing]:
    """How all candidates stand, each under the name of its arm as soon as that is chosen."""
    chosen = tuning.chosen(ended, higher_is_better=rules.higher_is_better)
    return [_stand(of_arms(chain, chosen), ended, rules, len(chains)) for chain in chains]


def of_arms(chain: Chain, chosen: Mapping[str, str]) -> Chain:
    """The chain with the arms in place of the cells of which one is chosen."""

    def of(candidate: Candidate) -> Candidate:
        name, baseline = candidate.name, candidate.baseline
        return replace(candidate, name=chosen.get(name, name), baseline=chosen.get(baseline, baseline))

    widths = tuple(tuple(map(of, width)) for width in chain.widths)
    return replace(chain, widths=widths) if chosen else chain


def _stand(chain: Chain, ended: Ended, rules: Rules, chains: int) -> Standing:
    gaps = [[_gaps(candidate, ended, rules) for candidate in width] for width in chain.widths]
    widths = settle(
        gaps,
        rules.tolerance,
        alpha=rules.alpha,
        chains=chains,
        barred=[[candidate.name in ended.barred for candidate in width] for width in chain.widths],
        resolution=rules.resolution,
        most_pairs=rules.most_seeds,
    )
    exhausted = tuple(
        tuple(
            judgement.settled_at is not None or _is_exhausted(candidate, ended, rules.most_seeds)
            for candidate, judgement in zip(candidates, width.judgements, strict=True)
        )
        for candidates, width in zip(chain.widths, widths, strict=True)
    )
    return Standing(chain, widths, exhausted)


def _is_exhausted(candidate: Candidate, ended: Ended, most: int) -> bool:
    given_up = {candidate.name, candidate.baseline} & ended.given_up
    return bool(given_up) or _counted(candidate, ended, most) == most


def _counted(candidate: Candidate, ended: Ended, most: int) -> int:
    """How many seeds have ended with both, without a gap."""
    both = (
        ended.has((candidate.name, seed)) and ended.has((candidate.baseline, seed)) for seed in range(most)
    )
    return sum(1 for _ in itertools.takewhile(bool, both))


def _gaps(candidate: Candidate, ended: Ended, rules: Rules) -> list[float]:
    seeds = range(_counted(candidate, ended, rules.most_seeds))

    def of(cell: str) -> Mapping[int, float]:
        values = ended.values.get(cell, {})
        return {seed: values[seed] for seed in seeds if seed in values}

    return differences(
        of(candidate.name),
        of(candidate.baseline),
        higher_is_better=rules.higher_is_better,
        worst=rules.worst,
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
    counted = _counted(candidate, ended, rules.most_seeds)
    skipped = counted - judgement.pairs  # failed runs, and seeds that diverged with both, take further ones
    more = 1 if judgement.more is None else math.ceil(judgement.more / 2)  # half: figures move
    upto = max(FIRST_PAIRS + skipped, counted + more)
    pairs = _pairs(candidate, range(counted, min(upto, rules.most_seeds)))
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
    below = frontier + 1
    if looks_bad:
        likely = [other for other, _ in others]
    else:
        likely = chain.widths[below] if below < len(chain.widths) and chain.may_try(below) else ()
    counted = _counted(candidate, ended, rules.most_seeds)
    own = _pairs(candidate, range(counted, min(2 * counted + FIRST_PAIRS, rules.most_seeds)))
    first = [each for each in likely[:1] if _is_tuned(each, tuning)]
    yield from itertools.chain(*(_pairs(each, range(FIRST_PAIRS)) for each in first), own)


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
