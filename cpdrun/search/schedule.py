"""Choose the runs to start next, most useful first. The functions are pure.

A run is useful if its pair helps to certify or refute a candidate.
"""

import itertools
import math
from collections.abc import Iterator, Sequence

from cpdrun.search.ladders import EVEN, UNTUNED, Candidate, Ladder, LadderState, Rules, Tuning, counted_seeds
from cpdrun.stats.ended_runs import EndedRuns, RunKey
from cpdrun.stats.evidence import Judgment

# The fewest pairs that can decide a candidate, which may run at the same time.
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
    """Yield the runs to start next, most useful first, each run once.

    Ladders take turns, pair by pair. Each has one active candidate. Its pairs come first: FIRST_PAIRS, then as many as
    the results so far suggest.

    With `ahead`, further runs keep idle cores busy: the first pairs of the next narrower format, and further seeds of
    the active candidate. If the active candidate looks bad, another format of the same width replaces the narrower one,
    or else a format of the next wider width. A candidate looks bad if its mean difference is worse than the margin or,
    with fewer than two pairs, if it is predicted to fail.

    With tuned keys, a cell first runs its arms on the tuning seeds, but only when the ladder has reached the cell.
    Tuning a narrower format ahead of time would be wasted if the active candidate is refuted.

    Runs that have ended or are in flight (`asked`) are not yielded.
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
    candidate, judgment = state.active
    if not _is_tuned(candidate, tuning):
        yield from tuning.missing(candidate.baseline, ended)
        if state.ladder.may_try(state.frontier):
            yield from tuning.missing(candidate.name, ended)
        else:
            yield from _of_baseline(candidate, tuning)
        return
    seeds = state.ladder.seeds(rules.most_seeds)
    counted = counted_seeds(candidate, ended, seeds)
    # A further seed replaces each seed that has ended without a pair.
    skipped = counted - judgment.pairs
    # The estimate changes with every pair, so request only half of the likely number.
    more = 1 if judgment.more is None else math.ceil(judgment.more.likely / 2)
    upto = max(FIRST_PAIRS + skipped, counted + more)
    pairs = _pairs(candidate, seeds[counted:upto])
    yield from pairs if state.ladder.may_try(state.frontier) else (pair[:1] for pair in pairs)


def _further(
    state: LadderState, ended: EndedRuns, rules: Rules, tuning: Tuning
) -> Iterator[tuple[RunKey, ...]]:
    """Yield the runs that only keep idle cores busy.

    The active candidate gets at most as many further seeds as it already has, plus FIRST_PAIRS, because idle cores are
    no reason to waste compute.
    """
    ladder, frontier = state.ladder, state.frontier
    if state.active is None or frontier is None or not ladder.may_try(frontier):
        return
    (candidate, judgment), *others = state.in_question
    if not _is_tuned(candidate, tuning):
        yield from _of_baseline(candidate, tuning)
        return
    looks_bad = _looks_bad(candidate, judgment, rules)
    beside = [other for other, _ in others]
    likely = beside if looks_bad and beside else _next_width(ladder, frontier, looks_bad=looks_bad)
    seeds = ladder.seeds(rules.most_seeds)
    counted = counted_seeds(candidate, ended, seeds)
    own = _pairs(candidate, seeds[counted : 2 * counted + FIRST_PAIRS])
    first = [each for each in likely[:1] if _is_tuned(each, tuning)]
    yield from itertools.chain(*(_pairs(each, seeds[:FIRST_PAIRS]) for each in first), own)


def _next_width(ladder: Ladder, frontier: int, *, looks_bad: bool) -> Sequence[Candidate]:
    """Return the candidates that will likely be tested after `frontier`.

    This is the next wider width if the present one looks bad and is not below the start, or the next narrower width if
    it looks good and is not above the start.
    """
    if looks_bad:
        following = frontier - 1 if frontier <= ladder.start else -1
    else:
        following = frontier + 1 if frontier >= ladder.start else -1
    is_there = 0 <= following < len(ladder.widths) and ladder.may_try(following)
    return ladder.widths[following] if is_there else ()


def _looks_bad(candidate: Candidate, judgment: Judgment, rules: Rules) -> bool:
    if judgment.pairs >= 2:
        return judgment.mean + rules.tolerance < 0
    return candidate.chance is not None and candidate.chance > EVEN


def _is_tuned(candidate: Candidate, tuning: Tuning) -> bool:
    return not {candidate.name, candidate.baseline} & tuning.arms.keys()


def _of_baseline(candidate: Candidate, tuning: Tuning) -> Iterator[tuple[RunKey, ...]]:
    """Yield the baseline's runs for the first pairs, unless it is still being tuned.

    They are needed for any values that tuning chooses for the candidate.
    """
    if candidate.baseline not in tuning.arms:
        yield from (((candidate.baseline, seed),) for seed in range(FIRST_PAIRS))


def _pairs(candidate: Candidate, seeds: Sequence[int]) -> Iterator[tuple[RunKey, RunKey]]:
    for seed in seeds:
        yield (candidate.baseline, seed), (candidate.name, seed)
