"""Draw the methods of one panel: the metric against a cost on a logarithmic axis, with the Pareto front.

Each family of methods has its own look. The name of each point is written at its height on the right.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from matplotlib.axes import Axes

from cpdrun.report.cost.front import front
from cpdrun.report.methods.comparison import label
from cpdrun.report.plots._metric_axis import MetricAxis, apart
from cpdrun.report.result_text import describe_group
from cpdrun.report.style import FIGURE_SIZE, FP32, NAME, Style, ink
from cpdrun.report.svg import part_of
from cpdrun.stats.evidence import Verdict
from cpdrun.study.axes.titles import short
from cpdrun.study.groups.group import Group

LEGEND_COLUMNS = 4
FRONT_TEXT = "grey line: the Pareto front"
_FRONT = Style("the front", "#999999", "", "solid")
Cost = Callable[[Group], float]


def panel(
    axis: MetricAxis,
    groups: Sequence[Group],
    against: Group | None,
    cost: Cost,
    looks: dict[str, Style],
    verdicts: Mapping[Group, Verdict],
) -> Axes:
    """Draw the groups, their names and the front, and return the axes that have the x axis.

    The front holds the groups that no other group beats in both metric and cost. Groups that diverged or did not learn
    are not part of the front.

    Args:
        axis: The axes of the panel.
        groups: The groups to draw. They must have values and costs above 0.
        against: The baseline, which is also drawn as a band, or None.
        cost: Return the cost of a group.
        looks: The look of each family of methods.
        verdicts: The verdict of each group. Groups without a verdict are drawn as open.
    """
    study = axis.study
    low, high = min(map(cost, groups)), max(map(cost, groups))
    room = max((high / low) ** 0.06, 1.1)
    if against is not None:
        axis.band(against, (low / room, high * room))
    sign = 1.0 if study.metric.higher_is_better else -1.0
    trained = [group for group in groups if study.may_be_within(group)]
    chosen = [trained[i] for i in front([(cost(group), sign * group.mean) for group in trained])]
    for here, there in pairwise(chosen):
        corner = (cost(there), axis.y(here))  # Between two costs, the cheaper group is the best choice.
        axis.segment((cost(here), axis.y(here)), corner, _FRONT, (here, there))
        axis.segment(corner, (cost(there), axis.y(there)), _FRONT, (here, there))
    for group in groups:
        look = FP32 if group is against else looks[group.method.family]
        axis.point(cost(group), group, look, verdicts.get(group, Verdict.OPEN))
    bottom = axis.parts[-1]
    bottom.set_xscale("log")
    bottom.set_xlim(low / room, high * room)
    _name_points(axis, groups, against, cost, looks)
    return bottom


def _name_points(
    axis: MetricAxis, groups: Sequence[Group], against: Group | None, cost: Cost, looks: dict[str, Style]
) -> None:
    """Write the name of each point on the right of the panel at the height of the point, with a thin line to the point.

    Names are moved apart if they would overlap.
    """
    for axes in axis.parts:
        here = sorted(
            (group for group in groups if axis.at(axis.y(group)) is axes), key=lambda group: -axis.y(group)
        )
        if not here:
            continue
        to_axes = (axes.transData + axes.transAxes.inverted()).transform
        share = axes.get_subplotspec().get_position(axes.figure).height or 1.0
        least = 0.034 / share
        heights = [float(to_axes((cost(group), axis.y(group)))[1]) for group in here]
        for group, y in zip(here, apart(heights, least, 0.0), strict=True):
            look = FP32 if group is against else looks[group.method.family]
            name = axes.annotate(
                short(label(axis.study, group), 26), (cost(group), axis.y(group)), (1.03, y),
                xycoords="data", textcoords="axes fraction", va="center", fontsize=FIGURE_SIZE + 0.5,
                color=ink(look.color), annotation_clip=False,
                arrowprops={"arrowstyle": "-", "color": look.color, "linewidth": 0.35, "alpha": 0.5, "shrinkB": 2},
            )  # fmt: skip
            part_of(name, describe_group(axis.study, group))


def legend(axes: Axes, looks: list[Style]) -> None:
    """Draw the legend of families and their markers above the panel."""
    handles = [
        axes.plot([], [], linestyle="none", marker=look.marker, color=look.color, label=look.label)[0]
        for look in looks
    ]
    axes.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=LEGEND_COLUMNS, frameon=False,
        fontsize=NAME["fontsize"], handletextpad=0.2, columnspacing=0.9, borderaxespad=0.1,
    )  # fmt: skip


def rows_of_legend(looks: dict[str, Style]) -> int:
    """Return the number of rows of the legend."""
    return math.ceil(len(looks) / LEGEND_COLUMNS)
