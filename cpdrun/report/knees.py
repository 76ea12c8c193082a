"""Of each cost the knee of its Pareto front, in a sentence: a front of point means, so that what the seeds do not tell
apart is said with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cpdrun.report.cost.axes import COSTS, Cost
from cpdrun.report.cost.front import front, knee
from cpdrun.report.methods.compared import label
from cpdrun.report.verdict import some
from cpdrun.study.groups.compare import difference
from cpdrun.study.groups.group import Facet, Group
from cpdrun.study.study import Study

MOST_FACETS = 3  # the pictures have all


@dataclass(frozen=True)
class Front:
    """Of a facet and a cost: the groups that no other beats in both, the cheapest first, and the knee among them."""

    groups: list[Group]
    cost: dict[Group, float]
    knee: Group | None


def front_of(study: Study, cost: Cost, groups: Sequence[Group]) -> Front:
    """Of those that trained; what diverged or did not learn is no choice."""
    costs, _ = cost.find(groups)
    trained = [group for group in groups if group in costs and study.may_be_within(group)]
    sign = 1.0 if study.metric.higher_is_better else -1.0
    points = [(costs[group], sign * group.mean) for group in trained]
    chosen = front(points)
    found = knee([points[i] for i in chosen])
    return Front([trained[i] for i in chosen], costs, None if found is None else trained[chosen[found]])


def sentences(study: Study, asked: Sequence[str] = ()) -> list[str]:
    """A sentence for each facet and each cost whose front may have a knee; of `asked`, keys of COSTS, also why it
    has none."""
    lines = []
    for facet in study.facets[:MOST_FACETS]:
        for cost in [COSTS[key] for key in asked] or COSTS.values():
            said = sentence(study, facet, cost, also_why_not=bool(asked))
            lines += [f"{facet.label}: {said}" if facet.label else said] if said else []
    return lines


def numbers(study: Study) -> list[dict[str, Any]]:
    """For programs, of each facet and each cost that varies in it: the front, the cheapest first, and its knee."""
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
    """None where nothing can be chosen by this cost, and that was not asked."""
    groups = [group for group in facet.all_groups if group.values]
    costs, why = cost.find(groups)
    if len(set(costs.values())) < 2:
        reason = "; ".join(why) or "all that ran cost the same"
        return f"For {cost.name}, no answer: {reason}." if also_why_not else None
    found = front_of(study, cost, groups)
    if len(found.groups) < 3 and not (also_why_not or cost.has_no_other):  # of two points none is a knee
        return None
    return f"For {cost.name}, {_said(study, cost, found)}."


def _said(study: Study, cost: Cost, found: Front) -> str:
    if not found.groups:
        return "no answer: nothing trained"
    best, cheapest, several = found.groups[-1], found.groups[0], len(found.groups)
    if several == 1:
        return f"{_named(study, best)} is the front by itself: nothing costs less or does better"
    names = some([_named(study, group) for group in found.groups], most=6)
    if not any(tells_apart(study, group, best) for group in found.groups[:-1]):
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
    return (
        f"{said}; the seeds do not tell it from {some([_named(study, g) for g in alike])}" if alike else said
    )


def tells_apart(study: Study, one: Group, other: Group) -> bool:
    """Whether the interval of their difference, by seed where it can be, leaves out 0; single seeds tell nothing."""
    found = difference(
        one.by_seed,
        other.by_seed,
        ci=study.ci,
        higher_is_better=study.metric.higher_is_better,
        samples=study.samples(one, other),
    )
    return abs(found.mean) > found.half_width  # NaN is no interval


def _with_cost(study: Study, cost: Cost, found: Front, group: Group) -> str:
    """`e4m3fn (11,232 transistors a unit, 4.2 times less than bf16; -0.1 points against bf16, open)`."""
    dearest = max(found.groups, key=lambda one: found.cost[one])
    said = f"{cost.show(found.cost[group])} {cost.says}"
    if group is not dearest:
        said += f", {found.cost[dearest] / found.cost[group]:.3g} times less than {_named(study, dearest)}"
    if gap := study.against_baseline(group):
        judged = study.judged.get(group)
        shown = study.metric.show_difference(gap.mean, gap.half_width) + study.metric.points
        said += (
            f"; {shown} against {study.baseline_name}{f', {judged.verdict}' if judged is not None else ''}"
        )
    return f"{_named(study, group)} ({said})"


def _named(study: Study, group: Group) -> str:
    """Without commas, for it stands in lists: `e3m2 with APS`."""
    name = study.baseline_name if group.is_baseline else label(study, group)
    return name.replace(", APS", " with APS").replace(", ", " ")
