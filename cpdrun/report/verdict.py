"""The answer in a sentence: the smallest format that trains as well as fp32, and how sure that is.

A format is within tolerance when its mean is at most `tolerance` worse than fp32's. The seeds then say
whether that is settled: the interval of the difference (paired by seed where both ran the same seeds,
Welch's otherwise) lies on one side of the tolerance, or it does not.
"""

import math
from dataclasses import dataclass
from statistics import fmean, stdev

from cpdrun.report import formats
from cpdrun.report.intervals import mean_interval, t_quantile
from cpdrun.report.study import Facet, Group, Study


@dataclass(frozen=True)
class Difference:
    """How much better a group is than the baseline, in the metric's unit; positive is better."""

    mean: float
    half_width: float  # NaN with too few seeds
    method: str  # "paired", "Welch", or "one seed"

    def settled(self, tolerance: float) -> bool:
        """Whether the interval lies wholly above or wholly below `-tolerance`."""
        if not math.isfinite(self.half_width):
            return False
        return self.mean - self.half_width >= -tolerance or self.mean + self.half_width < -tolerance


def difference(group: Group, baseline: Group, *, ci: float, higher_is_better: bool = True) -> Difference:
    """`group` less `baseline`, with its `ci` per cent interval.

    Paired over the seeds when both ran the same ones (a seed fixes data order and initial weights), Welch's
    interval otherwise; with a single seed on either side there is no interval.
    """
    sign = 1.0 if higher_is_better else -1.0
    a, b = group.by_seed, baseline.by_seed
    mean = sign * (fmean(a.values()) - fmean(b.values()))
    if a.keys() == b.keys() and len(a) > 1:
        return Difference(mean, mean_interval([a[seed] - b[seed] for seed in a], ci)[1], "paired")
    if len(a) < 2 or len(b) < 2:
        return Difference(mean, math.nan, "one seed")
    va, vb = stdev(a.values()) ** 2 / len(a), stdev(b.values()) ** 2 / len(b)
    if va + vb == 0:
        return Difference(mean, 0.0, "Welch")
    degrees = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    return Difference(mean, t_quantile(ci, degrees) * math.sqrt(va + vb), "Welch")


def sentences(study: Study) -> list[str]:
    """One for each facet (world size, model ...), the answer first."""
    facets = study.facets
    if len(facets) == 1:
        return [_sentence(study, facets[0])]
    return [f"{facet.label}: {_sentence(study, facet)}" for facet in facets]


def smallest_within(study: Study, facet: Facet, aps: bool) -> tuple[Group, Difference] | None:
    """The group with fewest bits whose mean is within tolerance of fp32's; of equal bits the best one."""
    near = [
        (group, gap)
        for group, gap in _differences(study, facet, aps)
        if gap.mean >= -_tolerance(study) - 1e-12  # a gap of exactly the tolerance is within, rounding aside
    ]
    return min(near, key=lambda pair: (formats.order(pair[0].format)[0], -pair[1].mean), default=None)


def _sentence(study: Study, facet: Facet) -> str:
    metric = study.metric
    if facet.baseline is None:
        return _without_baseline(study, facet)
    parts = [f"fp32 {metric.show(*study.interval(facet.baseline))}{metric.unit}."]
    clauses = [_clause(study, facet, aps, first) for aps, first in _strategies(facet)]
    if clauses:
        parts.append("; ".join(clauses) + ".")
    parts += _doubts(study, facet)
    return " ".join(parts)


def _strategies(facet: Facet) -> list[tuple[bool, bool]]:
    present = [aps for aps in (True, False) if facet.strategy(aps)]
    return [(aps, i == 0) for i, aps in enumerate(present)]


def _clause(study: Study, facet: Facet, aps: bool, first: bool) -> str:
    name = ("with" if aps else "without") + " APS"
    name = name.capitalize().replace("aps", "APS") if first else name
    found = smallest_within(study, facet, aps)
    within = f"within {study.tolerance:g}{' points' if study.metric.is_fraction else ''}"
    if found is None:
        group, gap = max(_differences(study, facet, aps), key=lambda pair: pair[1].mean)
        best = f"{_named(group)}, {study.metric.show(abs(gap.mean))}{_points(study)} worse"
        return f"{name} no format is {within} (the nearest is {best})"
    group, gap = found
    return (
        f"{name} the smallest format {within} is {_named(group)}"
        if first
        else f"{name} it is {_named(group)}"
    )


def _doubts(study: Study, facet: Facet) -> list[str]:
    """What the seeds leave open about the formats just named, and about smaller ones that may do as well."""
    open_ = []
    for aps, _ in _strategies(facet):
        found = smallest_within(study, facet, aps)
        most = formats.order(found[0].format)[0] if found else math.inf
        for group, gap in _differences(study, facet, aps):
            named = found is not None and group is found[0]
            smaller = formats.order(group.format)[0] < most and gap.mean < -_tolerance(study)
            if (named or smaller) and math.isfinite(gap.half_width) and not gap.settled(_tolerance(study)):
                shown = study.metric.show_difference(gap.mean, gap.half_width)
                open_.append(f"{group.format} {'with' if aps else 'without'} APS {shown}{_points(study)}")
    compared = [facet.baseline, *facet.strategy(True), *facet.strategy(False)]
    if any(len(group.values) < 2 for group in compared):
        return ["Too few seeds to tell chance from effect: some formats have a single run."]
    if open_:
        return [f"Too few seeds to be sure, against fp32: {'; '.join(open_)}."]
    return []


def _without_baseline(study: Study, facet: Facet) -> str:
    groups = [group for group in facet.groups if group.values]
    if not groups:
        return f"No finished run has a value of {study.metric.name}."
    best = (max if study.metric.higher_is_better else min)(groups, key=Group.mean)
    value = study.metric.show(*study.interval(best)) + study.metric.unit
    aps = "with" if best.aps else "without"
    return f"No finished fp32 run to compare with. The best is {_named(best)} {aps} APS: {value}."


def _differences(study: Study, facet: Facet, aps: bool) -> list[tuple[Group, Difference]]:
    better = study.metric.higher_is_better
    return [
        (group, difference(group, facet.baseline, ci=study.ci, higher_is_better=better))
        for group in facet.strategy(aps)
    ]


def _tolerance(study: Study) -> float:
    """In the metric's own unit."""
    return study.tolerance / study.metric.scale


def _named(group: Group) -> str:
    bits = formats.bits(group.format)
    return f"{group.format} ({'unknown format' if bits is None else f'{bits} bits'})"


def _points(study: Study) -> str:
    return " points" if study.metric.is_fraction else ""
