"""Plot the metric after each epoch, with a panel for each strategy and a line for each format.

Formats with few bits have dark lines. A line is the mean over the seeds, and the band around it spans the seeds. Every
panel contains the baseline.
"""

from collections import defaultdict

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cpdrun.report.plots import NotDrawnError
from cpdrun.report.plots._grid import caption, grid, title
from cpdrun.report.plots._metric_axis import apart
from cpdrun.report.result_text import describe_group
from cpdrun.report.style import COLUMN_IN, FP32, NAME, ink, shades, strategy_styles
from cpdrun.report.svg import hover, part_of
from cpdrun.stats.moments import mean
from cpdrun.study.axes import formats
from cpdrun.study.axes.titles import short
from cpdrun.study.groups.group import Group
from cpdrun.study.study import Study

TITLE = "Training curves"
QUESTION = "training"
ALT = (
    "The metric after each epoch, a panel for each way of scaling and a line for each format; fp32 in "
    "every panel."
)

# The values of all seeds, in the unit in which the metric is shown, by epoch or step.
Curve = dict[int, list[float]]
_MOST_NAMES = 14
# The last height of a line, the short name of its format, its color and its description.
End = tuple[float, str, str, str]


def draw(study: Study) -> Figure:
    """Return the figure, with a row of panels for each facet.

    Raises:
        NotDrawnError: No run recorded the metric after more than one epoch.
    """
    curves = {group: _curve(study, group) for group in study.groups}
    if not any(len(curve) > 1 for curve in curves.values()):
        raise NotDrawnError(f"no run recorded {study.metric.name} after more than one epoch")
    facets = [facet for facet in study.facets if facet.strategies or facet.baseline]
    columns = max(1, max(len(facet.strategies) for facet in facets))
    figure, parts = grid(facets, COLUMN_IN * min(columns, 3), 2.3, columns=1)
    colors = _colors(study)
    name_colors = {name: look.ink for name, look in strategy_styles(study).items()}
    for part, facet in parts:
        panels = part.subplots(1, columns, squeeze=False, sharey=True)[0]
        drawn = {}
        for axes, name in zip(panels, list(facet.strategies) or [study.baseline_name], strict=False):
            drawn[axes] = _panel(
                axes, study, [facet.baseline, *facet.strategies.get(name, [])], curves, colors
            )
            axes.set_title(name, loc="right", color=name_colors.get(name, "black"))
        for axes in panels[len(facet.strategies) or 1 :]:
            axes.set_visible(False)
        for axes, ends in drawn.items():  # Names are placed after the shared y axis has its limits.
            _name(axes, ends)
        panels[0].set_ylabel(study.metric.title)
        title(part, facet, facets, above=1)
    caption(figure, facets, "line: mean over seeds", "band: from the worst seed to the best")
    return figure


def _curve(study: Study, group: Group) -> Curve:
    curve: Curve = defaultdict(list)
    for row in study.history(group):
        value, epoch = row.metrics.get(study.metric.name), row.epoch
        if isinstance(epoch, int) and isinstance(value, int | float):
            curve[epoch].append(study.metric.scale * value)
    return dict(sorted(curve.items()))


def _colors(study: Study) -> dict:
    """Return a shade for each format, which is the same in every panel."""
    names = sorted({group.format for group in study.groups if not group.is_baseline}, key=formats.order)
    return dict(zip(names, shades(len(names)), strict=True))


def _panel(
    axes: Axes, study: Study, groups: list[Group | None], curves: dict[Group, Curve], colors: dict
) -> list[End]:
    """Draw the groups that have a curve, and return the ends of the lines, highest first."""
    ends: list[End] = []
    for group in groups:
        if group is None or not curves[group]:
            continue
        epochs = list(curves[group])
        means = [mean(values) for values in curves[group].values()]
        color = FP32.color if group.is_baseline else colors[group.format]
        low, high = [min(v) for v in curves[group].values()], [max(v) for v in curves[group].values()]
        band = axes.fill_between(epochs, low, high, color=color, alpha=0.15, linewidth=0)
        (line,) = axes.plot(
            epochs, means, color=color, linewidth=1.1, dashes=(3, 1) if group.is_baseline else ()
        )
        text = describe_group(study, group)
        hover(line, text)
        part_of(band, text)
        ends.append((means[-1], short(group.name), color, text))
    axes.set_xlabel(study.counted_in)
    axes.xaxis.get_major_locator().set_params(integer=True)
    return sorted(ends, reverse=True)


def _name(axes: Axes, ends: list[End]) -> None:
    """Write the name of each line's format at its right end."""
    if len(ends) > _MOST_NAMES:
        return
    low, high = axes.get_ylim()
    heights = apart([y for y, *_ in ends], 0.06 * (high - low), low)
    for height, (_, name, color, text) in zip(heights, ends, strict=True):
        written = axes.annotate(
            name,
            (1.0, height),
            xycoords=("axes fraction", "data"),
            xytext=(2, 0),
            textcoords="offset points",
            va="center",
            color=ink(color),
            annotation_clip=False,
            **NAME,
        )
        part_of(written, text)
