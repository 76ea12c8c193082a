"""Choose the runs to start next, the most useful first.

A run is useful if the pair to which it belongs helps to certify or refute a candidate. The functions are pure: they
take and return names and numbers.
"""

import itertools
import math
from collections.abc import Iterator, Sequence

from cpdrun.search.ladders import EVEN, UNTUNED, Candidate, Ladder, LadderState, Rules, Tuning, counted_seeds
from cpdrun.stats.ended_runs import EndedRuns, RunKey
from cpdrun.stats.evidence import Judgement

# The fewest pairs that can decide a candidate. If there are enough cores, these pairs run at the same time.
FIRST_PAIRS = 3


def wanted_runs(
    states: Sequence[LadderState],
    ended: EndedRuns,
    asked: set[RunKey],
    rules: Rules,
    tuning: Tuning = UNTUNED,
    *,
    ahead: bool = True,
) -> Iterator[RunKey]:
    """Yield the runs to start next, the most useful first, each run once.

    Ladders take turns, pair by pair. Each ladder has one active candidate, which gets the next pairs. First come the
    pairs that this candidate is likely to need: FIRST_PAIRS, and then as many as the results so far suggest.

    Further runs only keep cores busy that would be idle. These runs are the first pairs of the next narrower format,
    and further seeds of the active candidate. If the active candidate looks bad, another format of the same width takes
    the place of the narrower format. If there is none, a format of the next wider width does. A candidate looks bad if
    it is worse than the baseline by more than the margin, averaged over its pairs. With fewer than two pairs, it looks
    bad if it is predicted to fail.

    If keys are tuned, a cell runs its arms on the tuning seeds first. This starts only when the ladder has reached the
    cell, because tuning a narrower format ahead of time would be wasted if the active candidate is refuted.

    Args:
        states: The verdicts on all ladders.
        ended: The runs that have ended. They are not yielded.
        asked: The runs that are in flight. They are not yielded.
        rules: The inputs of the test.
        tuning: The tuned keys and the arms.
        ahead: Whether to include the runs that only keep idle cores busy.
    """
    seen = set(asked)
    needed = [list(_needed(state, ended, rules, tuning)) for state in states]
    further = [list(_further(state, ended, rules, tuning)) for state in states] if ahead else []
    for turns in (needed, further):
        for turn in itertools.zip_longest(*turns, fillvalue=()):
            for key in itertools.chain(*turn):
                if key not in seen and not ended.has(key):
                    seen.add(key)
                    yield key


def _needed(
    state: LadderState, ended: EndedRuns, rules: Rules, tuning: Tuning
) -> Iterator[tuple[RunKey, ...]]:
    if state.active is None or state.frontier is None:
        return
    candidate, judgement = state.active
    if not _is_tuned(candidate, tuning):
        yield from tuning.missing(candidate.baseline, ended)
        if state.ladder.may_try(state.frontier):
            yield from tuning.missing(candidate.name, ended)
        else:
            yield from _of_baseline(candidate, tuning)
        return
    seeds = state.ladder.seeds(rules.most_seeds)
    counted = counted_seeds(candidate, ended, seeds)
    # Some seeds have ended without a pair. Each of them is replaced by a further seed.
    skipped = counted - judgement.pairs
    # Request only half of the likely number of pairs, because the estimate changes with every pair.
    more = 1 if judgement.more is None else math.ceil(judgement.more.likely / 2)
    upto = max(FIRST_PAIRS + skipped, counted + more)
    pairs = _pairs(candidate, seeds[counted:upto])
    yield from pairs if state.ladder.may_try(state.frontier) else (pair[:1] for pair in pairs)


def _further(
    state: LadderState, ended: EndedRuns, rules: Rules, tuning: Tuning
) -> Iterator[tuple[RunKey, ...]]:
    """Yield the runs that only keep idle cores busy.

    The number of seeds of the active candidate is limited to twice the number that has ended, plus FIRST_PAIRS, because
    idle cores are no reason to waste compute.
    """
    ladder, frontier = state.ladder, state.frontier
    if state.active is None or frontier is None or not ladder.may_try(frontier):
        return
    (candidate, judgement), *others = state.in_question
    if not _is_tuned(candidate, tuning):
        yield from _of_baseline(candidate, tuning)
        return
    looks_bad = _looks_bad(candidate, judgement, rules)
    beside = [other for other, _ in others]
    likely = beside if looks_bad and beside else _next_width(ladder, frontier, looks_bad=looks_bad)
    seeds = ladder.seeds(rules.most_seeds)
    counted = counted_seeds(candidate, ended, seeds)
    own = _pairs(candidate, seeds[counted : 2 * counted + FIRST_PAIRS])
    first = [each for each in likely[:1] if _is_tuned(each, tuning)]
    yield from itertools.chain(*(_pairs(each, seeds[:FIRST_PAIRS]) for each in first), own)


def _next_width(ladder: Ladder, frontier: int, *, looks_bad: bool) -> Sequence[Candidate]:
    """Return the candidates of the width that is likely to be tested after the width at the index `frontier`.

    If the present width looks bad and is not below the start, the next wider width is likely. If the present width does
    not look bad and is not above the start, the next narrower width is likely. Otherwise, or if the ladder ends there,
    the result is empty.
    """
    if looks_bad:
        following = frontier - 1 if frontier <= ladder.start else -1
    else:
        following = frontier + 1 if frontier >= ladder.start else -1
    is_there = 0 <= following < len(ladder.widths) and ladder.may_try(following)
    return ladder.widths[following] if is_there else ()


def _looks_bad(candidate: Candidate, judgement: Judgement, rules: Rules) -> bool:
    if judgement.pairs >= 2:
        return judgement.mean + rules.tolerance < 0
    return candidate.chance is not None and candidate.chance > EVEN


def _is_tuned(candidate: Candidate, tuning: Tuning) -> bool:
    return not {candidate.name, candidate.baseline} & tuning.arms.keys()


def _of_baseline(candidate: Candidate, tuning: Tuning) -> Iterator[tuple[RunKey, ...]]:
    """Yield the baseline's runs for the first pairs, unless the baseline itself is still being tuned.

    These runs are needed for any values that tuning chooses for the candidate.
    """
    if candidate.baseline not in tuning.arms:
        yield from (((candidate.baseline, seed),) for seed in range(FIRST_PAIRS))


def _pairs(candidate: Candidate, seeds: Sequence[int]) -> Iterator[tuple[RunKey, RunKey]]:
    for seed in seeds:
        yield (candidate.baseline, seed), (candidate.name, seed)
