"""Describe the Pareto front of the means and its knee for each cost, and which differences the seeds do not resolve."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cpdrun.costmodel.costs import front, knee
from cpdrun.report.cost import COSTS, Cost
from cpdrun.report.methods.comparison import label
from cpdrun.report.render import join_first
from cpdrun.report.result_text import gap_text
from cpdrun.study.group import Facet, Group
from cpdrun.study.study import Study

# The largest number of facets that get sentences. The pictures show all facets.
MOST_FACETS = 3


@dataclass(frozen=True)
class Front:
    """The groups of a facet that no other group beats in both cost and metric.

    Attributes:
        groups: The groups of the front, cheapest first. The last group has the best metric.
        cost: The cost of each group of the facet whose cost is known.
        knee: The knee of the front, or None if the front has no knee or `is_told` is False.
        is_told: Whether any cheaper group of the front differs from the best group by more than the spread of the
            seeds, so that the interval of their difference excludes 0.
    """

    groups: list[Group]
    cost: dict[Group, float]
    knee: Group | None
    is_told: bool


def front_of(study: Study, cost: Cost, groups: Sequence[Group]) -> Front:
    """Return the front of the groups that trained. Groups that diverged or did not learn are left out."""
    costs, _ = cost.find(groups)
    trained = [group for group in groups if group in costs and study.may_be_within(group)]
    sign = 1.0 if study.metric.higher_is_better else -1.0
    points = [(costs[group], sign * group.mean) for group in trained]
    chosen = front(points)
    found = [trained[i] for i in chosen]
    at = knee([points[i] for i in chosen])
    is_told = any(tells_apart(study, group, found[-1]) for group in found[:-1])
    return Front(found, costs, found[at] if at is not None and is_told else None, is_told)


def tells_apart(study: Study, one: Group, other: Group) -> bool:
    """Return whether the interval of the difference of two groups, computed from their own pairs, excludes 0."""
    found = study.compare(one, other)
    return found.low > 0 or found.high < 0


def sentences(study: Study, asked: Sequence[str] = ()) -> list[str]:
    """Return a sentence for each facet and each cost whose front may have a knee.

    Args:
        study: The study to describe.
        asked: The keys in `COSTS` of the costs that the user named. For these costs, the sentence also says why there
            is no knee. By default all costs are described.
    """
    lines = []
    for facet in study.facets[:MOST_FACETS]:
        for cost in [COSTS[key] for key in asked] or COSTS.values():
            said = sentence(study, facet, cost, also_why_not=bool(asked))
            lines += [f"{facet.label}: {said}" if facet.label else said] if said else []
    return lines


def numbers(study: Study) -> list[dict[str, Any]]:
    """Return the front, cheapest first, and its knee for each facet and each cost that varies within the facet."""
    rows = []
    for facet in study.facets:
        groups = [group for group in facet.all_groups if group.values]
        for cost in COSTS.values():
            if len(set(cost.find(groups)[0].values())) < 2:
                continue
            found = front_of(study, cost, groups)
            points = [
                {"name": _named(study, g), "cost": found.cost[g], study.metric.name: g.mean}
                for g in found.groups
            ]
            knee_ = None if found.knee is None else _named(study, found.knee)
            rows.append({"facet": facet.label, "cost": cost.key, "front": points, "knee": knee_})
    return rows


def sentence(study: Study, facet: Facet, cost: Cost, also_why_not: bool = False) -> str | None:
    """Return a sentence about the front of one cost.

    Args:
        study: The study to describe.
        facet: The facet whose groups are compared.
        cost: The cost.
        also_why_not: Whether to return a sentence even if there is no knee.

    Returns:
        The sentence. Unless `also_why_not`, it is None if all groups cost the same, and also if the front has fewer
        than three groups and another sentence of the report mentions the cost.
    """
    groups = [group for group in facet.all_groups if group.values]
    costs, why = cost.find(groups)
    if len(set(costs.values())) < 2:
        reason = "; ".join(why) or "all that ran cost the same"
        return f"For {cost.name}, no answer: {reason}." if also_why_not else None
    found = front_of(study, cost, groups)
    if len(found.groups) < 3 and not (
        also_why_not or cost.has_no_other
    ):  # A front of two points has no knee.
        return None
    return f"For {cost.name}, {_describe(study, cost, found)}."


def _describe(study: Study, cost: Cost, found: Front) -> str:
    if not found.groups:
        return "no answer: nothing trained"
    best, cheapest, several = found.groups[-1], found.groups[0], len(found.groups)
    if several == 1:
        return f"{_named(study, best)} is the front by itself: nothing costs less or does better"
    names = join_first([_named(study, group) for group in found.groups], most=6)
    if not found.is_told:
        return (
            f"no knee can be told: the seeds tell no point of the front ({names}) from its best; its cheapest is "
            f"{_with_cost(study, cost, found, cheapest)}"
        )
    if several == 2:
        both = f"{_with_cost(study, cost, found, cheapest)} and {_named(study, best)}"
        return f"the front has two points and no knee: {both}"
    if found.knee is None:
        return f"there is no knee: no point of the front ({names}) lies above the line between its ends"
    chosen = found.knee
    said = f"{_with_cost(study, cost, found, chosen)} is the knee of the front of {several} means: {names}"
    alike = [group for group in found.groups if group is not chosen and not tells_apart(study, group, chosen)]
    names = join_first([_named(study, group) for group in alike])
    return f"{said}; the seeds do not tell it from {names}" if alike else said


def _with_cost(study: Study, cost: Cost, found: Front, group: Group) -> str:
    """Return a group with its cost, its gap to the baseline and its verdict.

    An example is `e4m3fn (11,232 transistors a unit, 4.2 times less than bf16; −0.10 points against bf16, open)`.
    """
    dearest = max(found.groups, key=lambda one: found.cost[one])
    said = f"{cost.show(found.cost[group])} {cost.says}"
    if group is not dearest:
        said += f", {found.cost[dearest] / found.cost[group]:.3g} times less than {_named(study, dearest)}"
    if gap := study.against_baseline(group):
        verdict = study.judged[group].verdict
        said += f"; {gap_text(study.metric, gap)} against {study.baseline_name}, {verdict}"
    return f"{_named(study, group)} ({said})"


def _named(study: Study, group: Group) -> str:
    """Return the name of a group without commas, such as `e3m2 with APS`, because names are listed with commas."""
    name = study.baseline_name if group.is_baseline else label(study, group)
    return name.replace(", APS", " with APS").replace(", ", " ")
