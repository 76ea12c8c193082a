"""Plot the metric of each named case in its own row, with the baseline as a line and the margin as a band."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cpdrun.report.plots import NotDrawnError
from cpdrun.report.plots._grid import caption, grid, title
from cpdrun.report.plots._metric_axis import bars_text, margin_band, marker_style, markers_text, span
from cpdrun.report.result_text import describe_group
from cpdrun.report.style import COLUMN_IN, FIGURE_SIZE, FP32, WITH_APS
from cpdrun.report.svg import hover
from cpdrun.study.axes.titles import plain
from cpdrun.study.groups.group import Facet, Group
from cpdrun.study.study import Study

TITLE = "Accuracy of each case"
QUESTION = "enough"
ALT = "The metric of each named case, a row each, with the interval of its gap; the margin as a band."

# The plot shows named cases only.
OF_CASES = True
_ROW_IN = 0.17


def draw(study: Study) -> Figure:
    """Return the figure, with a panel for each facet.

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
    caption(figure, facets, markers_text(study), bars_text(study))
    return figure


def _panel(axes: Axes, study: Study, facet: Facet) -> None:
    groups = [group for group in facet.groups if group.values]
    if facet.baseline is not None:
        mean, low, high = margin_band(study, facet.baseline)
        axes.axvspan(low, high, color=FP32.color, alpha=0.2, linewidth=0)
        axes.axvline(mean, color=FP32.color, linewidth=0.8)
    for row, group in enumerate(groups):
        _row(axes, study, group, len(groups) - 1 - row)
    axes.set_yticks(range(len(groups)), [_name(group) for group in reversed(groups)])
    axes.set_ylim(-0.7, len(groups) - 0.3)
    axes.tick_params(axis="y", length=0)
    axes.grid(True, axis="x")
    axes.grid(False, axis="y")
    axes.set_xlabel(study.metric.title)


def _row(axes: Axes, study: Study, group: Group, y: int) -> None:
    mean, low, high = span(study, group)
    look = FP32 if group.is_baseline else WITH_APS
    bars = [[mean - low], [high - mean]] if high > low else None
    line, _, _ = axes.errorbar(
        mean, y, xerr=bars, capsize=2, elinewidth=0.9, **marker_style(study, group, look)
    )
    hover(line, describe_group(study, group))
    text = study.metric.show(group.mean) + (" \N{MULTIPLICATION SIGN}" if group.diverged else "")
    axes.annotate(
        text, (1.0, y), (3, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
        va="center", fontsize=FIGURE_SIZE, color=look.ink, annotation_clip=False,
    )  # fmt: skip


def _name(group: Group) -> str:
    return plain(str(group.case))[:40]
