"""Plot the metric against a cost, with the Pareto front and its knee.

Each plot is an entry of `PLOTS`. Plots differ in their costs, their panels and their x axis, which is an entry of
`_axes.AXES`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cpdrun.costmodel import CalibrationError
from cpdrun.costmodel.crossover import crossover
from cpdrun.report.cost import COSTS
from cpdrun.report.plots import NotDrawnError, Plot
from cpdrun.report.plots._axes import AXES
from cpdrun.report.plots._metric_axis import MetricAxis
from cpdrun.report.plots._panels import Name, caption, grid, prediction_facts, seed_mark, title, write_names
from cpdrun.report.result_text import describe_group
from cpdrun.report.study_text import sends_alike_text
from cpdrun.report.style import COLUMN_IN, FP32, NAME, Style, method_styles
from cpdrun.report.tables import show_bytes
from cpdrun.stats.evidence import Verdict
from cpdrun.study.axes import short
from cpdrun.study.group import WITH_APS, WITHOUT_APS, Facet, Group
from cpdrun.study.methods import by_setting, has_baseline_per_case, label, method_verdicts, reference
from cpdrun.study.pareto import front_of
from cpdrun.study.study import Study

Costs = dict[Group, float]

_FRONT = Style("the front", "#999999", "", "solid")
_RING: dict[str, Any] = {
    "marker": "o", "markersize": 10, "markerfacecolor": "none", "markeredgewidth": 1.1, "linestyle": "none",
    "markeredgecolor": "#CC0000", "zorder": 5,
}  # fmt: skip
_LEGEND_COLUMNS = 4
# The distance between points that have the same cost, as a share of the x axis.
_DODGE = 0.014
# Groups whose costs differ by at most this share are drawn side by side, as if their costs were equal.
_SAME = 0.02


@dataclass(frozen=True)
class Panel:
    """A panel of a plot against a cost.

    Attributes:
        facet: The facet whose label is the panel's title.
        costs: The cost of each group, above 0.
        baseline: The group to draw as the baseline, if any.
        verdicts: The verdict on each group. Groups without one are drawn as open.
        axis: The cost's key in `AXES`.
        name: Returns a group's name.
        has_knee: Whether to mark the knee, as in plots whose knees the report describes.
    """

    facet: Facet
    costs: Costs
    baseline: Group | None
    verdicts: Mapping[Group, Verdict]
    axis: str
    name: Callable[[Group], str]
    has_knee: bool = False


def draw_cost(study: Study, key: str) -> Figure:
    """Draw the metric against a cost, with a panel per facet in which the cost varies.

    `key` is the cost's key in `COSTS`.

    Raises:
        NotDrawnError: The cost is the same within every facet, or it is unknown.
    """
    cost = COSTS[key]
    if key == "bytes" and (why := sends_alike_text(study)):
        raise NotDrawnError(why)
    verdicts = {group: judged.verdict for group, judged in study.judged.items()}
    panels = []
    for facet in study.facets:
        costs = cost.find(_with_values(facet))[0]
        if len(set(costs.values())) > 1:
            against = next((group for group in costs if group.is_baseline), None)
            panels.append(
                Panel(facet, costs, against, verdicts, key, name=partial(_short_name, study), has_knee=True)
            )
    if not panels:
        found = [cost.find(_with_values(facet))[1] for facet in study.facets]
        missing: list[str] = next(filter(None, found), [])
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        same = f"all runs that are compared have the same {COSTS[key].name}"
        raise NotDrawnError(missing[0] + more if missing else same)
    n_unknown = sum(len(_with_values(panel.facet)) - len(panel.costs) for panel in panels)
    return draw_panels(study, panels, n_unknown=n_unknown)


def draw_sent(study: Study) -> Figure:
    """Draw the metric against what a worker sends, with a panel per setting.

    The groups of a setting differ only in their method. The x axis shows `Group.bits_a_parameter`, which is 32 for a
    plain sum in fp32. If the records lack the number of parameters, it shows bytes.

    Raises:
        NotDrawnError: All runs send the same number of bytes, there are no two methods to compare, each case has its
            own baseline, or accuracy_vs_bytes already shows all methods.
    """
    if why := sends_alike_text(study):
        raise NotDrawnError(why)
    if has_baseline_per_case(study):
        raise NotDrawnError("each case has its own baseline, so the methods share no baseline")
    panels = []
    for facet in by_setting(study):
        groups = [group for group in facet.groups if group.values and group.wire_bytes > 0]
        if len(groups) > 1:
            in_bits = all(group.bits_a_parameter > 0 for group in groups)
            costs = {group: group.bits_a_parameter if in_bits else group.wire_bytes for group in groups}
            axis = "sent_bits" if in_bits else "bytes"
            judged = method_verdicts(study, facet)
            panels.append(Panel(facet, costs, reference(facet), judged, axis, partial(label, study)))
    if not panels:
        raise NotDrawnError("no runs to compare that recorded the bytes they sent")
    families = {g.method.family for panel in panels for g in panel.costs if not g.is_baseline}
    if families <= {WITH_APS, WITHOUT_APS} and not any(panel.facet.has_cases for panel in panels):
        raise NotDrawnError(
            "all runs sum gradients in a number format, and accuracy_vs_bytes compares such runs"
        )
    known = dict.fromkeys(panel.baseline for panel in panels if panel.baseline and panel.axis == "sent_bits")
    sent = [show_bytes(group.wire_bytes) for group in known]
    return draw_panels(study, panels, baseline_sends=sent[0] if len(sent) == 1 else "")


def draw_step_time(study: Study) -> Figure:
    """Draw the metric against the predicted step time, with one panel per setting and network.

    Raises:
        NotDrawnError: There is no usable calibration, or there are no two methods to compare.
    """
    try:
        found = crossover(study)
    except CalibrationError as error:
        raise NotDrawnError(str(error)) from None
    panels = []
    for of in found.panels:
        verdicts = {cell.group: cell.verdict for cell in of.cells if cell.verdict is not None}
        for network in of.networks:
            costs = {cell.group: 1e3 * cell.step_s for cell in of.on(network)}
            facet = Facet({"network": network} | of.facet.keys, [])
            if len(costs) > 1:
                panels.append(
                    Panel(facet, costs, reference(of.facet), verdicts, "step_time", partial(label, study))
                )
    if not panels:
        raise NotDrawnError("no two methods to compare")
    return draw_panels(study, panels, prediction=prediction_facts(found.calibration))


def draw_panels(
    study: Study,
    panels: Sequence[Panel],
    *,
    baseline_sends: str = "",
    prediction: dict[str, str] | None = None,
    n_unknown: int = 0,
) -> Figure:
    """Draw some panels in one figure.

    The other arguments are for the caption: the bytes that the baseline sends ("" to omit them), the result of
    `prediction_facts` if the costs are predicted, and the number of groups whose cost is unknown.
    """
    styles = method_styles({group.method.family for panel in panels for group in panel.costs})
    has_legend = len({g.method.family for panel in panels for g in panel.costs if not g.is_baseline}) > 1
    facets = [panel.facet for panel in panels]
    figure, parts = grid(facets, COLUMN_IN * 1.45, 2.8)
    is_broken = has_knee = False
    for (part, facet), panel in zip(parts, panels, strict=False):
        axis = MetricAxis(part, study)
        has_knee |= _draw_panel(axis, panel, styles)
        title(part, facet, facets, above=math.ceil(len(styles) / _LEGEND_COLUMNS) if has_legend else 0)
        if has_legend:
            families = {group.method.family for group in panel.costs}
            _legend(axis.parts[0], [style for name, style in styles.items() if name in families])
        is_broken |= len(axis.parts) > 1
    caption(
        figure, study, "cost", facets,
        baseline_sends=baseline_sends, prediction=prediction, n_unknown=n_unknown, has_knee=has_knee,
        is_broken=is_broken, has_baseline=any(panel.baseline is not None for panel in panels),
    )  # fmt: skip
    return figure


def _with_values(facet: Facet) -> list[Group]:
    return [group for group in facet.all_groups if group.values]


def _short_name(study: Study, group: Group) -> str:
    """Return a group's name for panels that vary only format and gradient scaling."""
    if group.case is not None:
        return group.strategy
    is_usual = group.strategy in (WITH_APS, WITHOUT_APS) or not study.bits_axis.is_of_gradients
    scaling = ("APS" if group.aps else "") if is_usual or group.is_baseline else group.strategy
    return f"{group.name}, {scaling}" if scaling else group.name


def _draw_panel(axis: MetricAxis, panel: Panel, styles: dict[str, Style]) -> bool:
    """Draw a panel, and return True if a knee is marked."""
    study, costs = axis.study, panel.costs
    low, high = min(costs.values()), max(costs.values())
    room = max((high / low) ** 0.06, 1.1)
    if panel.baseline is not None:
        axis.band(panel.baseline, (low / room, high * room))
    x = _dodged(costs)
    found = front_of(study, costs)
    for here, there in pairwise(found.groups):
        corner = (x[there], axis.y(here))  # At a cost between both, the cheaper group is the best.
        axis.segment((x[here], axis.y(here)), corner, _FRONT, (here, there))
        axis.segment(corner, (x[there], axis.y(there)), _FRONT, (here, there))
    for group in costs:
        style = FP32 if group is panel.baseline else styles[group.method.family]
        axis.point(x[group], group, style, panel.verdicts.get(group, Verdict.OPEN))
    knee = found.knee if panel.has_knee else None
    if knee is not None:
        axis.at(axis.y(knee)).plot(x[knee], axis.y(knee), **_RING)
    AXES[panel.axis].apply_to_x(axis.parts[-1], list(costs.values()))
    axis.parts[-1].set_xlim(low / room, high * room)
    for axes in axis.parts:
        names = []
        for group in (group for group in costs if axis.at(axis.y(group)) is axes):
            style = FP32 if group is panel.baseline else styles[group.method.family]
            text = short(panel.name(group), 26) + seed_mark(study, group)
            is_key = group is panel.baseline or group in found.groups
            of = (describe_group(study, group),)
            names.append(Name(x[group], axis.y(group), text, style.color, of, is_key))
        write_names(axes, names, bold=False)
    return knee is not None


def _dodged(costs: Costs) -> Costs:
    """Return the groups' x coordinates. Groups of the same cost are drawn side by side."""
    span = max(costs.values()) / min(costs.values())
    x: Costs = {}
    for group, cost in costs.items():
        same = [other for other in costs if math.isclose(costs[other], cost, rel_tol=_SAME)]
        x[group] = cost * span ** (_DODGE * (same.index(group) - (len(same) - 1) / 2))
    return x


def _legend(axes: Axes, styles: list[Style]) -> None:
    handles = [
        axes.plot([], [], linestyle="none", marker=style.marker, color=style.color, label=style.label)[0]
        for style in styles
    ]
    axes.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=_LEGEND_COLUMNS, frameon=False,
        fontsize=NAME["fontsize"], handletextpad=0.2, columnspacing=0.9, borderaxespad=0.1,
    )  # fmt: skip


def _plot(
    name: str,
    title: str,
    cost: str,
    needs: str,
    draw: Callable[[Study], Figure],
    question: str = "cost",
    of_cases: bool | None = None,
) -> Plot:
    alt = (
        f"The {{metric}} of each format, recipe or method against {cost}. A line connects those that no other beats in "
        "both."
    )
    return Plot(name, title, alt, needs, draw, question, of_cases)


PLOTS = [
    _plot(
        "accuracy_vs_bytes", "{metric} against bytes on the wire", "the bytes that a worker sends each step",
        "runs that recorded the bytes they sent, with different numbers of bytes", partial(draw_cost, key="bytes"),
        of_cases=False,
    ),
    _plot(
        "accuracy_vs_kept", "{metric} against memory", "the bytes that a worker keeps",
        "runs that recorded the bytes they kept, with different numbers of bytes", partial(draw_cost, key="kept"),
    ),
    _plot(
        "accuracy_vs_bit_operations", "{metric} against bit operations of a step",
        "the bit operations of a worker's step",
        "runs that counted their multiply-accumulates, with different formats", partial(draw_cost, key="bitops"),
    ),
    _plot(
        "accuracy_vs_area", "{metric} against the area of a multiply-accumulate unit",
        "the transistors of the unit that multiplies and accumulates",
        "runs that counted their multiply-accumulates, in formats whose area is known",
        partial(draw_cost, key="area"),
    ),
    _plot(
        "loss_vs_bytes", "{metric} against what a worker sends, by method",
        "the bits that a worker sends for each parameter and step",
        "runs with different methods of exchange that recorded the bytes they sent", draw_sent,
    ),
    _plot(
        "loss_vs_seconds", "{metric} against the predicted time of a step", "the predicted time of a step",
        "a calibration of the sweep (`cpdrun doctor --calibrate`) and two methods", draw_step_time, "time",
    ),
]  # fmt: skip
