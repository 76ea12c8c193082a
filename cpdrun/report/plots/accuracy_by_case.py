"""Plot the metric of each named case in a row of its own.

A solid line shows the baseline, and a dashed line shows the worst value within the margin.
"""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cpdrun.report.plots import NotDrawnError, Plot
from cpdrun.report.plots._axes import metric_axis
from cpdrun.report.plots._metric_axis import ERROR_BAR, MARGIN_DASH, margin_band, marker_style, span
from cpdrun.report.plots._panels import caption, grid, seed_mark, title
from cpdrun.report.result_text import describe_group
from cpdrun.report.style import COLUMN_IN, FIGURE_SIZE, FP32, WITH_APS
from cpdrun.report.svg import hover
from cpdrun.study.axes import plain
from cpdrun.study.group import Facet, Group
from cpdrun.study.study import Study

_ROW_IN = 0.17


def draw(study: Study) -> Figure:
    """Draw the cases, with a panel per facet.

    Raises:
        NotDrawnError: No case has a value.
    """
    facets = [facet for facet in study.facets if any(group.values for group in facet.groups)]
    if not facets:
        raise NotDrawnError("no case has a value yet")
    rows = max(len(facet.groups) for facet in facets)
    figure, parts = grid(facets, COLUMN_IN * 1.15, 0.7 + _ROW_IN * rows)
    for part, facet in parts:
        _panel(part.subplots(), study, facet)
        title(part, facet, facets)
    caption(figure, study, "accuracy_by_case", facets)
    return figure


def _panel(axes: Axes, study: Study, facet: Facet) -> None:
    groups = [group for group in facet.groups if group.values]
    if facet.baseline is not None:
        mean, low, high = margin_band(study, facet.baseline)
        axes.axvline(mean, color=FP32.color, linewidth=0.8)
        if high > low:
            axes.axvspan(low, high, color=FP32.color, alpha=0.15, linewidth=0)
            edge = low if mean == high else high
            axes.axvline(edge, color=FP32.color, linewidth=0.7, linestyle=MARGIN_DASH)
    for row, group in enumerate(groups):
        _row(axes, study, group, len(groups) - 1 - row)
    names = [plain(str(group.case))[:40] + seed_mark(study, group) for group in reversed(groups)]
    axes.set_yticks(range(len(groups)), names)
    axes.set_ylim(-0.7, len(groups) - 0.3)
    axes.tick_params(axis="y", length=0)
    axes.grid(True, axis="x")
    axes.grid(False, axis="y")
    axes.set_xlabel(metric_axis(study.metric).title)


def _row(axes: Axes, study: Study, group: Group, y: int) -> None:
    mean, low, high = span(study, group)
    style = FP32 if group.is_baseline else WITH_APS
    look = marker_style(study, group, style)
    (mark,) = axes.plot(mean, y, linestyle="none", **look)
    hover(mark, describe_group(study, group))
    if high > low:
        middle, half = (low + high) / 2, (high - low) / 2
        axes.errorbar(middle, y, xerr=half, fmt="none", ecolor=style.color, alpha=look["alpha"], **ERROR_BAR)
    text = study.metric.show(mean / study.metric.scale) + (
        " \N{MULTIPLICATION SIGN}" if group.diverged else ""
    )
    axes.annotate(
        text, (1.0, y), (3, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
        va="center", fontsize=FIGURE_SIZE, color=style.ink, annotation_clip=False,
    )  # fmt: skip


PLOTS = [
    Plot(
        "accuracy_by_case",
        "{metric} of each case",
        "The {metric} of each named case, one row per case, with the interval of its gap. A dashed line is the margin.",
        "runs of named cases",
        draw,
        "enough",
        of_cases=True,
    )
]
