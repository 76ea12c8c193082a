"""Find the Pareto front of metric against cost, and its knee."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cpdrun.study.group import Facet, Group
from cpdrun.study.methods import label
from cpdrun.study.study import Study, compare

# The costs of the groups whose cost is known, and the reasons why the cost of the other groups is unknown.
Found = tuple[dict[Group, float], list[str]]
# A point consists of a cost, which is above 0, and a quality. More quality is better.
Point = tuple[float, float]

# The knee must lie further above the chord than this. A smaller distance may be a rounding error.
_ABOVE = 1e-9


@dataclass(frozen=True)
class Front:
    """The groups of a facet that no other group beats in both cost and metric.

    Attributes:
        groups: The groups of the front, cheapest first. The last one has the best metric.
        cost: The known costs of the facet's groups.
        knee: The knee. None if there is none, or if `is_told` is False.
        is_told: Whether the seeds distinguish a cheaper group of the front from its last group.
        like_knee: The other groups of the front that the seeds do not distinguish from the knee.
    """

    groups: list[Group]
    cost: Mapping[Group, float]
    knee: Group | None
    is_told: bool
    like_knee: list[Group] = field(default_factory=list)

    def times_less(self, group: Group) -> tuple[float, Group]:
        """Return how many times less a group costs than the dearest group, and the latter."""
        dearest = max(self.groups, key=lambda each: self.cost[each])
        return self.cost[dearest] / self.cost[group], dearest


def front_of(study: Study, costs: Mapping[Group, float]) -> Front:
    """Return the Pareto front of the groups that trained successfully, given all known costs."""
    trained = [group for group in costs if study.may_be_within(group)]
    sign = 1.0 if study.metric.higher_is_better else -1.0
    points = [(costs[group], sign * group.mean) for group in trained]
    chosen = front(points)
    found = [trained[i] for i in chosen]
    at = knee([points[i] for i in chosen])
    is_told = any(differs(study, group, found[-1]) for group in found[:-1])
    at_knee = found[at] if at is not None and is_told else None
    others = [group for group in found if at_knee is not None and group is not at_knee]
    like_knee = [group for group in others if at_knee is not None and not differs(study, group, at_knee)]
    return Front(found, costs, at_knee, is_told, like_knee)


def differs(study: Study, one: Group, other: Group) -> bool:
    """Return True if the confidence interval of two groups' paired difference excludes 0."""
    found = compare(study, one, other)
    return found.low > 0 or found.high < 0


def find_costs(facet: Facet, find: Callable[[Sequence[Group]], Found]) -> Found:
    """Return the known costs of a facet's groups, and why others are unknown.

    Groups without a value of the metric are ignored.
    """
    return find([group for group in facet.all_groups if group.values])


def front_rows(study: Study, costs: Mapping[str, Callable[[Sequence[Group]], Found]]) -> list[dict[str, Any]]:
    """Return the Pareto front and its knee for each facet and kind of cost, as plain values.

    `costs` contains a function that finds costs for each kind. A facet whose groups all cost the same has no entry.
    """
    rows: list[dict[str, Any]] = []
    for facet in study.facets:
        for key, find in costs.items():
            known, _ = find_costs(facet, find)
            if len(set(known.values())) < 2:
                continue
            found = front_of(study, known)
            points = [
                {"name": name_of(study, group), "cost": known[group], study.metric.name: group.mean}
                for group in found.groups
            ]
            knee_name = None if found.knee is None else name_of(study, found.knee)
            rows.append({"facet": facet.label, "cost": key, "front": points, "knee": knee_name})
    return rows


def name_of(study: Study, group: Group) -> str:
    """Return a group's name without commas, such as `e3m2 with APS`, for lists."""
    name = study.baseline_name if group.is_baseline else label(study, group)
    return name.replace(", APS", " with APS").replace(", ", " ")


def front(points: Sequence[Point]) -> list[int]:
    """Return the indices of the points that no other point beats, cheapest first.

    A point beats another if it costs no more and has at least the same quality. Equal points do not beat each other.
    """
    order = sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1]))
    best = float("-inf")
    chosen: list[int] = []
    for i in order:
        if points[i][1] > best or (chosen and points[i] == points[chosen[-1]]):
            best = points[i][1]
            chosen.append(i)
    return chosen


def knee(points: Sequence[Point]) -> int | None:
    """Return the index of the front's knee, or None if no point lies above the chord.

    The points are sorted, cheapest first. The chord connects the ends of the front, and the knee is furthest above it.
    Quality and the logarithm of the cost are scaled to 0 to 1. Costs are compared as ratios, so their logarithm is
    used.

    This is the maximum of the difference curve of Satopaa, Albrecht, Irwin, and Raghavan, "Finding a 'Kneedle' in a
    Haystack" (ICDCS workshops 2011, section III), without smoothing. It is also the point with the greatest distance
    from the chord, as in Das, "On characterizing the 'knee' of the Pareto curve" (Structural Optimization 18, 1999).
    """
    if len(points) < 3 or points[0][0] == points[-1][0] or points[0][1] == points[-1][1]:
        return None
    (first, low), (last, high) = points[0], points[-1]
    above = [
        (quality - low) / (high - low) - math.log(cost / first) / math.log(last / first)
        for cost, quality in points
    ]
    best = max(range(len(points)), key=lambda i: above[i])
    return best if above[best] > _ABOVE else None
