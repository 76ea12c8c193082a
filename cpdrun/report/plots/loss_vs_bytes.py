"""The metric against what a worker sends, every method of a sweep in one picture: formats, sparse and sign codes, local
steps, sharding; with the Pareto front.

What is sent is in bits a parameter a step (Group.bits_a_parameter: 32 for a plain sum in fp32, for any number of
workers), or in bytes where records do not say how many parameters there are. On the front are the runs that no other
beats in both; what diverged or did not learn is no choice. A point is filled where the test certifies that it is as
good as the baseline, within the tolerance (cpdrun.report.read.certified).
"""

import math
from collections.abc import Callable
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from cpdrun.report.look.style import COLUMN_IN, FIGURE_SIZE, FP32, NAME, Look, ink, method_looks
from cpdrun.report.methods.compared import by_setting, label, reference
from cpdrun.report.plots import NotDrawnError
from cpdrun.report.plots._grid import caption, grid, title
from cpdrun.report.plots._metric_axis import MetricAxis, apart
from cpdrun.report.plots.accuracy_vs_bytes import front
from cpdrun.report.read.group import Facet, Group
from cpdrun.report.read.study import Study
from cpdrun.report.read.words import short
from cpdrun.report.tables import show_bits, show_bytes
from cpdrun.report.verdict import tolerance
from cpdrun.stats.anytime import Verdict

TITLE = "What a worker sends, by method"
ALT = (
    "The metric of each method against the bits that a worker sends for each parameter and step; a line through those "
    "that no other beats in both."
)
OF_CASES = None  # of cases and of axes alike

_FRONT = Look("the front", "#999999", "", "solid")
_LEGEND_COLUMNS = 4
Sent = Callable[[Group], float]


def draw(study: Study) -> Figure:
    if not study.bits_axis.is_of_gradients:
        raise NotDrawnError(f"all send the same: {study.bits_axis.key} says nothing of the wire")
    facets = [facet for facet in by_setting(study) if len(_points(facet)) > 1]
    if not facets:
        raise NotDrawnError("no runs to compare that recorded the bytes they sent")
    families = {group.method.family for facet in facets for group in _points(facet) if not group.is_baseline}
    if len(families) < 2 and not any(facet.has_cases for facet in facets):
        raise NotDrawnError("all runs exchange by one method, accuracy_vs_bytes shows them")
    looks = method_looks(families | {g.method.family for facet in facets for g in _points(facet)})
    figure, parts = grid(facets, COLUMN_IN * 1.5, 3.2)
    broken = False
    for part, facet in parts:
        axis = MetricAxis(part, study)
        _panel(axis, facet, looks)
        title(part, facet, facets, above=math.ceil(len(looks) / _LEGEND_COLUMNS))
        broken |= len(axis.parts) > 1
    caption(
        figure,
        facets,
        "grey line: the Pareto front",
        f"filled: certified within {tolerance(study)} of {study.baseline_name}",
        "y axis broken" if broken else "",
        study.interval_title,
    )
    return figure


def _points(facet: Facet) -> list[Group]:
    return [group for group in facet.groups if group.values and group.wire_bytes > 0]


def _panel(axis: MetricAxis, facet: Facet, looks: dict[str, Look]) -> None:
    study, groups, against = axis.study, _points(facet), reference(facet)
    in_bits = all(group.bits_a_parameter > 0 for group in groups)
    sent: Sent = (lambda group: group.bits_a_parameter) if in_bits else (lambda group: group.wire_bytes)
    low, high = min(map(sent, groups)), max(map(sent, groups))
    room = max((high / low) ** 0.06, 1.1)
    if against is not None:
        axis.band(against, (low / room, high * room))
    sign = 1.0 if study.metric.higher_is_better else -1.0
    trained = [group for group in groups if study.may_be_within(group)]
    chosen = [trained[i] for i in front([(sent(group), sign * group.mean) for group in trained])]
    for here, there in pairwise(chosen):
        corner = (sent(there), axis.y(here))  # between two sizes the smaller one is what can be had
        axis.segment((sent(here), axis.y(here)), corner, _FRONT)
        axis.segment(corner, (sent(there), axis.y(there)), _FRONT)
    for group in groups:
        look = FP32 if group is against else looks[group.method.family]
        judged = study.judged.get(group)
        certified = judged is not None and judged.verdict is Verdict.CERTIFIED
        axis.point(sent(group), group, look, filled=group is against or certified)
    _label_x(axis.parts[-1], in_bits, against, wide=high / low > 128)
    axis.parts[-1].set_xlim(low / room, high * room)
    _name_points(axis, groups, against, sent, looks)
    _legend(axis.parts[0], [looks[name] for name in looks if any(g.method.family == name for g in groups)])


def _label_x(axes: Axes, in_bits: bool, against: Group | None, wide: bool) -> None:
    axes.set_xscale("log", base=2 if in_bits else 10)
    axes.xaxis.set_major_locator(LogLocator(base=(4 if wide else 2) if in_bits else 10, numticks=12))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: show_bits(x) if in_bits else show_bytes(x)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.minorticks_off()
    known = f" ({against.name}: {show_bytes(against.wire_bytes)})" if in_bits and against is not None else ""
    axes.set_xlabel(
        f"sent by a worker, bits a parameter a step{known}" if in_bits else "sent by a worker each step"
    )


def _name_points(
    axis: MetricAxis, groups: list[Group], against: Group | None, sent: Sent, looks: dict[str, Look]
) -> None:
    """Each point's name at the right of the panel, at its height, with a thread to its point; moved apart."""
    for axes in axis.parts:
        here = sorted(
            (group for group in groups if axis.at(axis.y(group)) is axes), key=lambda group: -axis.y(group)
        )
        if not here:
            continue
        to_axes = (axes.transData + axes.transAxes.inverted()).transform
        share = axes.get_subplotspec().get_position(axes.figure).height or 1.0
        least = 0.034 / share
        heights = [float(to_axes((sent(group), axis.y(group)))[1]) for group in here]
        for group, y in zip(here, apart(heights, least, 0.0), strict=True):
            look = FP32 if group is against else looks[group.method.family]
            axes.annotate(
                short(label(axis.study, group), 26), (sent(group), axis.y(group)), (1.03, y),
                xycoords="data", textcoords="axes fraction", va="center", fontsize=FIGURE_SIZE + 0.5,
                color=ink(look.color), annotation_clip=False,
                arrowprops={"arrowstyle": "-", "color": look.color, "linewidth": 0.35, "alpha": 0.5, "shrinkB": 2},
            )  # fmt: skip


def _legend(axes: Axes, looks: list[Look]) -> None:
    """Families with their markers, above the panel."""
    handles = [
        axes.plot([], [], linestyle="none", marker=look.marker, color=look.color, label=look.label)[0]
        for look in looks
    ]
    axes.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=_LEGEND_COLUMNS, frameon=False,
        fontsize=NAME["fontsize"], handletextpad=0.2, columnspacing=0.9, borderaxespad=0.1,
    )  # fmt: skip
