"""Plot the accuracy against the bytes that a worker sends each step, with the Pareto front.

The front holds the groups that no other group beats in both accuracy and bytes. Groups that diverged or did not learn
are not part of the front.
"""

import math
from itertools import pairwise

from matplotlib.figure import Figure

from cpdrun.report.cost.axes import COSTS, show_bytes
from cpdrun.report.cost.front import front
from cpdrun.report.pareto import front_of
from cpdrun.report.plots import NotDrawnError
from cpdrun.report.plots._costs import ring
from cpdrun.report.plots._grid import caption, grid, title
from cpdrun.report.plots._metric_axis import MetricAxis, bars_text, markers_text
from cpdrun.report.result_text import describe_group
from cpdrun.report.style import COLUMN_IN, FP32, NAME, Style, strategy_styles
from cpdrun.report.svg import name_of
from cpdrun.study.axes.titles import short
from cpdrun.study.groups.group import Facet, Group
from cpdrun.study.study import Study

TITLE = "Accuracy against bytes on the wire"
QUESTION = "cost"
ALT = (
    "The metric of each format against the bytes that a worker sends a step; a line through those that "
    "no other beats in both."
)

# The distance between points that send the same number of bytes, as a share of the axis.
_DODGE = 0.018
# Two groups whose bytes differ by at most this share are drawn as if they sent the same number of bytes.
_SAME = 0.02
_FRONT = Style("the front", "#999999", "", "solid")


def draw(study: Study) -> Figure:
    """Return the figure, with a panel for each facet in which at least two groups recorded the bytes they sent.

    Raises:
        NotDrawnError: There is no such facet, or the bytes do not depend on the compared formats.
    """
    if why := study.sends_alike:
        raise NotDrawnError(why)
    facets = [facet for facet in study.facets if len(_points(facet)) > 1]
    if not facets:
        raise NotDrawnError("no runs to compare that recorded the bytes they sent")
    figure, parts = grid(facets, COLUMN_IN, 2.6)
    ringed = False
    for part, facet in parts:
        axis = MetricAxis(part, study)
        _panel(axis, facet)
        ringed |= _ring_knee(axis, facet)
        title(part, facet, facets)
    caption(
        figure,
        facets,
        "grey line: the Pareto front, its formats named",
        "ring: its knee" if ringed else "",
        markers_text(study),
        bars_text(study, has_band=False),
        "y axis broken" if len(axis.parts) > 1 else "",
    )
    return figure


def _points(facet: Facet) -> list[Group]:
    return [group for group in facet.groups if group.values and group.wire_bytes > 0]


def _place(group: Group, groups: list[Group]) -> float:
    """Return the offset of a point among the points that send the same number of bytes: -1, 0 or 1 for three points.

    The bytes spent on agreeing on APS shifts are too few to separate points on this axis.
    """
    same = [other for other in groups if math.isclose(other.wire_bytes, group.wire_bytes, rel_tol=_SAME)]
    return same.index(group) - (len(same) - 1) / 2


def _ring_knee(axis: MetricAxis, facet: Facet) -> bool:
    groups = _points(facet)
    found = front_of(axis.study, COSTS["bytes"], groups)
    return ring(axis, found, None if found.knee is None else _x(found.knee, groups))


def _x(group: Group, groups: list[Group]) -> float:
    sizes = [one.wire_bytes for one in groups]
    return group.wire_bytes * (max(sizes) / min(sizes)) ** (_DODGE * _place(group, groups))


def _panel(axis: MetricAxis, facet: Facet) -> None:
    study, groups = axis.study, _points(facet)
    sign = 1.0 if study.metric.higher_is_better else -1.0
    trained = [group for group in groups if study.may_be_within(group)]
    on_front = [trained[i] for i in front([(group.wire_bytes, sign * group.mean) for group in trained])]
    for here, there in pairwise(on_front):
        corner = (there.wire_bytes, axis.y(here))  # Between two sizes, the cheaper group is the best choice.
        axis.segment((here.wire_bytes, axis.y(here)), corner, _FRONT, (here, there))
        axis.segment(corner, (there.wire_bytes, axis.y(there)), _FRONT, (here, there))
    low, high = min(g.wire_bytes for g in groups), max(g.wire_bytes for g in groups)
    for group in groups:
        look = FP32 if group.is_baseline else strategy_styles(study)[group.strategy]
        axis.point(_x(group, groups), group, look)
    for size in dict.fromkeys(group.wire_bytes for group in on_front):
        here = [group for group in on_front if group.wire_bytes == size]
        for row, group in enumerate(here[:3]):
            look = FP32 if group.is_baseline else strategy_styles(study)[group.strategy]
            axis.write(size, here[0], short(group.name), look.color, above=True, row=row)
    # The names keep away from fp32, which sends the most bytes and is among the best groups.
    top = 0.14 if study.metric.higher_is_better else 0.94
    for i, (strategy, of) in enumerate(facet.strategies.items()):
        axes, look = axis.parts[0], strategy_styles(study)[strategy]
        name = axes.text(
            0.98, top - 0.08 * i, look.label, transform=axes.transAxes, ha="right", color=look.ink, **NAME
        )
        name_of(name, *(describe_group(study, group) for group in of))
    axes = axis.parts[-1]
    axes.set_xscale("log")
    room = max((high / low) ** 0.08, 1.1)
    axes.set_xlim(low / room, high * room)
    ticks: list[float] = []
    for size in sorted({group.wire_bytes for group in groups}):
        if not ticks or size > ticks[-1] * (high / low) ** 0.2:
            ticks.append(size)
    axes.set_xticks(ticks, [show_bytes(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("sent by a worker each step")
