"""The answer in a sentence: the smallest format that trains as well as fp32, and how sure that is.

A format is within tolerance when its mean is at most `tolerance` worse than fp32's, none of its runs diverged, and
it learnt. Whether that is settled the anytime-valid test over paired seeds says, with the error that all chains of the
report share (cpdrun.stats.evidence): a format is certified, refuted, or open. An fp32 that diverged or did not learn is
nothing to compare with: then there is no answer.
"""

import math

from cpdrun.stats.evidence import Verdict
from cpdrun.stats.failures import no_failure
from cpdrun.stats.identical import are_identical, describe_identical
from cpdrun.stats.intervals import is_zero
from cpdrun.study.axes import formats
from cpdrun.study.groups.compare import Difference
from cpdrun.study.groups.group import Facet, Group
from cpdrun.study.study import Study

_ROUNDING = 1e-12  # a gap of exactly the tolerance is within, rounding aside


def standing(study: Study) -> list[str]:
    """Return how many of those compared are settled, in a sentence; nothing if none is compared."""
    verdicts = [judged.verdict for judged in study.judged.values()]
    if not verdicts:
        return []
    certified, refuted, unsettled = map(verdicts.count, (Verdict.CERTIFIED, Verdict.REFUTED, Verdict.OPEN))
    within = f"{certified} are certified to be at most {tolerance(study)} worse"
    compared = f"Of {len(verdicts)} compared with {study.baseline_name}"
    mean = f"in the mean over seeds, at {study.ci:g} %"
    return [f"{compared}, {within}, {refuted} are refuted, and {unsettled} are open ({mean})."]


def smallest_within(study: Study, facet: Facet, strategy: str) -> tuple[Group, Difference] | None:
    """The group with fewest bits whose mean is within tolerance of fp32's; of equal bits the best one."""
    near = [
        (group, gap) for group, gap in _differences(study, facet, strategy) if is_within(study, group, gap)
    ]
    return min(near, key=lambda pair: (formats.order(pair[0].format)[0], -pair[1].mean), default=None)


def is_within(study: Study, group: Group, gap: Difference) -> bool:
    return study.may_be_within(group) and gap.mean >= -_tolerance(study) - _ROUNDING


def sentence(study: Study, facet: Facet) -> str:
    """The answer of one facet (world size, model ...), then how sure it is."""
    if problem := study.baseline_problem(facet):
        return _without_baseline(study, facet, problem)
    if study.margin.problem:
        return f"No answer: {study.margin.problem}."
    if facet.has_cases:
        return _of_cases(study, facet)
    fp32 = f"{study.baseline_name}: {study.metric.show_interval(study.interval(facet.baseline))}{study.metric.unit}."
    clauses = [_clause(study, facet, name, first=i == 0) for i, name in enumerate(facet.strategies)]
    answer = [f"{'; '.join(clauses)}."] if clauses else []
    return " ".join([*_failures(study, facet), *answer, fp32, *_doubts(study, facet)])


def _failures(study: Study, facet: Facet) -> list[str]:
    """Return which candidates had failed runs, and how many pairs lack a baseline, for the beginning of an answer."""
    groups = [group for groups in facet.chains.values() for group in groups if group in study.judged]
    counts = [(group, study.failures(group)) for group in groups]
    failed = [
        f"{_candidate(facet, group)}, {found.describe()}: {study.judged[group].verdict}"
        for group, found in counts
        if found.without_result
    ]
    lost = [
        f"{_candidate(facet, group)}, {found.describe_pairs()}" for group, found in counts if found.left_out
    ]
    return [
        f"{title}: {some(texts, '; ')}."
        for title, texts in (("Failures", failed), ("Fewer pairs", lost))
        if texts
    ]


def _candidate(facet: Facet, group: Group) -> str:
    return group.strategy if facet.has_cases else f"{group.name} {group.strategy}"


def _of_cases(study: Study, facet: Facet) -> str:
    """Which named cases train as well as the one named fp32, and how much worse the others are."""
    metric, near, far = study.metric, [], []
    gaps = [pair for name in facet.strategies for pair in _differences(study, facet, name)]
    for group, gap in sorted(gaps, key=lambda pair: pair[1].mean):
        shown = f"{group.strategy} ({_shown(study, group, gap)})"
        (near if is_within(study, group, gap) else far).append(shown)
    within = f"within {tolerance(study)} of {study.baseline_name} or better"
    parts = [f"{len(near)} of {len(gaps)} other cases {'is' if len(near) == 1 else 'are'} {within}."]
    parts += [f"Worse: {some(far, '; ', most=8)}."] if far else []
    parts.append(
        f"{study.baseline_name}: {metric.show_interval(study.interval(facet.baseline))}{metric.unit}."
    )
    return " ".join([*_failures(study, facet), *parts, *_doubts(study, facet)])


def _shown(study: Study, group: Group, gap: Difference) -> str:
    """Return the difference, or in words why it says nothing."""
    if study.failures(group).without_result:
        return study.failures(group).describe()
    if group.diverged:
        return f"{group.diverged} of {group.n_finished} runs diverged"
    if not study.learnt(group):
        return "did not learn"
    if group.gave_up:
        return f"{group.gave_up} of {group.n_finished} runs did not learn"
    return study.metric.show_difference(gap.mean, gap.half_width)


def _clause(study: Study, facet: Facet, strategy: str, first: bool) -> str:
    name = strategy[0].upper() + strategy[1:] if first else strategy
    within = f"within {tolerance(study)}{f' of {study.baseline_name}' if first else ''}"
    found = smallest_within(study, facet, strategy)
    if found is None:
        return f"{name} no {study.bits_axis.noun} is {within} ({_nearest(study, facet, strategy)})"
    if first:
        return f"{name} the smallest {study.bits_axis.noun} {within} is {named(found[0])}"
    return f"{name} it is {named(found[0])}"


def _nearest(study: Study, facet: Facet, strategy: str) -> str:
    gaps = _differences(study, facet, strategy)
    trained = [(group, gap) for group, gap in gaps if study.may_be_within(group)]
    if not trained:
        return "every one failed, diverged or did not learn"
    group, gap = max(trained, key=lambda pair: pair[1].mean)
    return f"the nearest is {named(group)}, {study.metric.show(abs(gap.mean))}{study.metric.points} worse"


def _doubts(study: Study, facet: Facet) -> list[str]:
    """What the seeds and the test set leave open about the formats just named, and about smaller ones that may do as
    well; of cases, about all."""
    compared = [facet.baseline, *(group for groups in facet.strategies.values() for group in groups)]
    what = "cases" if facet.has_cases else f"{study.bits_axis.noun}s"
    if any(len(group.values) < 2 for group in compared):
        return [f"Too few seeds to tell chance from effect: some {what} have a single run."]
    open_, certified, hangs = [], [], {}
    for group, gap in _decisive(study, facet):
        hangs[group] = _samples_to_turn(study, group, gap)
        name = _candidate(facet, group)
        verdict = study.judged[group].verdict
        if verdict is Verdict.OPEN:
            open_.append(
                f"{name} {study.metric.show_difference(gap.mean)}{study.metric.points}{_would_do(study, group)}"
            )
        elif verdict is Verdict.CERTIFIED:
            certified.append(group)
    lines = [*_certificates(study, facet, certified), *_identical(study, facet)]
    lines += (
        [f"Too few seeds to be sure, against {study.baseline_name}: {some(open_, '; ')}."] if open_ else []
    )
    return lines + _test_set(study, facet, hangs)


def _certificates(study: Study, facet: Facet, certified: list[Group]) -> list[str]:
    """Return the certified candidates, and how many runs may fail although none of theirs did."""
    by_pairs: dict[int, list[str]] = {}
    for group in certified:
        if are_identical(group.fingerprints, facet.baseline.fingerprints):
            continue  # said apart
        pairs = study.judged[group].judgement.pairs
        by_pairs.setdefault(pairs, []).append(_candidate(facet, group))
    texts = [f"{some(names)} ({no_failure(pairs, study.ci)})" for pairs, names in sorted(by_pairs.items())]
    return [f"Certified at {study.ci:g} %, in the mean over seeds: {some(texts, '; ')}."] if texts else []


def _identical(study: Study, facet: Facet) -> list[str]:
    """Return which of the baseline and its candidates have runs that are equal bit for bit."""
    cells = {study.baseline_name: facet.baseline.fingerprints}
    groups = [group for groups in facet.strategies.values() for group in groups]
    return describe_identical(cells | {_candidate(facet, group): group.fingerprints for group in groups})


def _decisive(study: Study, facet: Facet) -> list[tuple[Group, Difference]]:
    """The groups that the answer rests on: those named, and smaller ones that learnt and are not within."""
    chosen = []
    for name in facet.strategies:
        found = None if facet.has_cases else smallest_within(study, facet, name)
        most = formats.order(found[0].format)[0] if found else math.inf
        for group, gap in _differences(study, facet, name):
            is_named = found is not None and group is found[0]
            is_smaller = formats.order(group.format)[0] < most and not is_within(study, group, gap)
            if study.may_be_within(group) and (facet.has_cases or is_named or is_smaller):
                chosen.append((group, gap))
    return chosen


def is_open(study: Study, facet: Facet, strategy: str) -> bool:
    """Whether the seeds leave the answer open: single seeds, or what it rests on is neither certified nor refuted."""
    if any(len(group.values) < 2 for group in (facet.baseline, *facet.strategies[strategy])):
        return True
    decisive = [group for group, _ in _decisive(study, facet) if group.strategy == strategy]
    return any(study.judged[group].verdict is Verdict.OPEN for group in decisive)


def _would_do(study: Study, group: Group) -> str:
    """About how many seeds would settle it, were the figures so far the true ones."""
    judgement = study.judged[group].judgement
    if judgement.pairs < 2:
        return f" (hardly a seed in common with {study.baseline_name})"
    if judgement.verdict is not Verdict.OPEN:
        return " (a wider format is not certified)"
    if judgement.more is not None:
        return f" (about {judgement.pairs + judgement.more.likely} seeds would do)"
    if judgement.deviation > 0 and not is_zero(judgement.deviation):
        return ""
    unknown = ", on an unknown number of test samples" if study.metric.counts_samples else ""
    return f" (equal in every seed{unknown})"


def _samples_to_turn(study: Study, group: Group, gap: Difference) -> float:
    """How many test samples, over all seeds, would have to be answered otherwise to put the format on the other side
    of the tolerance; NaN where that is not known."""
    judged = gap.samples * len(group.values)
    if not math.isfinite(judged):
        return math.inf
    distance = (gap.mean + _tolerance(study)) * judged
    return math.floor(distance + 1e-6) + 1 if distance >= -1e-6 else math.ceil(-distance - 1e-6)


def _test_set(study: Study, facet: Facet, hangs: dict[Group, float]) -> list[str]:
    """Return what the tolerance is in test samples, on how few of them the answer hangs, and where the gap of the
    candidate that decides it would be on another test set. `hangs`: the samples by candidate."""
    samples = study.samples(facet.baseline)
    group = min(hangs, key=lambda each: hangs[each], default=None)
    if group is None or not (math.isfinite(samples) and math.isfinite(hangs[group])):
        return []
    share = f"{_tolerance(study) * samples:.1f} of {samples:.0f} test samples"
    times = (
        "1 answered otherwise in one run"
        if hangs[group] == 1
        else f"{hangs[group]:.0f} answered otherwise, over all seeds,"
    )
    are = "is" if study.tolerance == 1 else "are"
    lines = [f"{tolerance(study)} {are} {share}; {times} would change the answer."]
    found = study.finite_test_set(group)
    if found is not None and math.isfinite(found.low):
        ends = f"{study.metric.show_difference(found.low)} and {study.metric.show_difference(found.high)}"
        lines.append(
            f"On another test set of {found.samples} samples the gap of {_candidate(facet, group)} would be between "
            f"{ends}{study.metric.points} ({study.ci:g} %)."
        )
    return lines


def _without_baseline(study: Study, facet: Facet, problem: str) -> str:
    if facet.fp32 is not None and facet.fp32.n_finished:
        return f"No answer: {problem}, so that there is nothing to compare with."
    groups = [group for group in facet.groups if group.values]
    if not groups:
        return f"No finished run has a value of {study.metric.name}."
    best = (max if study.metric.higher_is_better else min)(groups, key=lambda group: group.mean)
    value = study.metric.show_interval(study.interval(best)) + study.metric.unit
    return f"No finished {study.baseline_name} run to compare with. The best is {named(best)} {best.strategy}: {value}."


def _differences(study: Study, facet: Facet, strategy: str) -> list[tuple[Group, Difference]]:
    pairs = [(group, study.against_baseline(group)) for group in facet.strategies[strategy]]
    return [(group, gap) for group, gap in pairs if gap is not None]


def _tolerance(study: Study) -> float:
    """In the metric's own unit."""
    return study.tolerance / study.metric.scale


def named(group: Group) -> str:
    bits = formats.bits(group.format)
    size = "unknown format" if bits is None else f"{bits} bits"
    return (
        f"{group.name} (hybrid: {size}, {group.hybrid} in fp32)" if group.hybrid else f"{group.name} ({size})"
    )


def tolerance(study: Study) -> str:
    """`0.5 points`."""
    return study.metric.show_tolerance(study.tolerance)


def some(items: list[str], separator: str = ", ", most: int = 5) -> str:
    """The first few of a list in a sentence, and how many more there are."""
    more = len(items) - most
    return separator.join(items[:most]) + (f"{separator}and {more} more" if more > 0 else "")
