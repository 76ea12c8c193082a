"""Compute the smallest margins that a study's seeds and test set can certify.

They follow from the noise of the paired differences, for candidates that are as good as the baseline.
"""

import math
from statistics import NormalDist

from cpdrun.stats.evidence import Verdict, half_width, pairs_needed
from cpdrun.stats.seed_power import MOST_PAIRS, SeedPower
from cpdrun.study.group import Group
from cpdrun.study.study import Study
from cpdrun.study.test_set import finite_test_set
from cpdrun.study.verdicts import Judged


def seed_power(study: Study) -> SeedPower | None:
    """Return the smallest margins that a study's seeds and its test set can certify.

    The noise of all candidates that trained is pooled. Refuted candidates are left out because they are noisier, and
    candidates identical to the baseline because they show no noise. Candidates differ in their share of the error
    probability and in their prior. The results are the largest over candidates, so they hold for all.

    Returns:
        The margins, or None if no candidate has two pairs with different differences.
    """
    found = {group: judged for group, judged in study.judged.items() if _shows_noise(study, group, judged)}
    judgments = [judged.judgment for judged in found.values()]
    degrees = sum(judgment.pairs - 1 for judgment in judgments)
    if not degrees:
        return None
    squares = math.fsum((judgment.pairs - 1) * judgment.deviation**2 for judgment in judgments)
    spread, pairs = math.sqrt(squares / degrees), min(judgment.pairs for judgment in judgments)
    if not spread > 0:
        return None
    margin = study.tolerance / study.metric.scale
    tests = {(judged.enough, judged.judgment.prior) for judged in found.values()}
    settles, needed = [], []
    for enough, prior in tests:
        certify, refute = (10**-log for log in enough)
        effect = None if math.isnan(margin) else prior.effect(margin)
        settles.append(half_width(pairs, spread, certify, prior, effect))
        needed.append(
            pairs_needed(
                margin,
                spread,
                certify=certify,
                refute=refute,
                fewest=2,
                most=MOST_PAIRS,
                prior=prior,
                equal_effect=effect,
            )
        )
    most = [count for count in needed if count is not None]
    return SeedPower(
        study.metric.name,
        pairs,
        len(found),
        spread,
        max(settles),
        margin,
        max(most) if len(most) == len(needed) else None,
        study.samples(*found),
        _test_set_settles(study, list(found)),
    )


def _shows_noise(study: Study, group: Group, judged: Judged) -> bool:
    trained = judged.verdict is not Verdict.REFUTED and study.may_be_within(group)
    return trained and judged.judgment.pairs > 1 and not judged.is_identical


def _test_set_settles(study: Study, groups: list[Group]) -> float:
    """Return the smallest margin that a one-sided test can certify for other test sets.

    It assumes any number of seeds, so only the error that remains with more seeds counts.
    """
    found = [each.error for group in groups if (each := finite_test_set(study, group)) is not None]
    if len(found) < len(groups):
        return math.nan
    squares = math.fsum(error.lasting**2 for error in found) / len(found)
    return NormalDist().inv_cdf(study.ci / 100) * math.sqrt(squares)
