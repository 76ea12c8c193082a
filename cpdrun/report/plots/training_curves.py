"""Plot the metric after each epoch, with a panel per strategy and a line per format.

A line is the mean over seeds. Its band extends from the smallest to the largest value of any seed. Formats with few
bits have dark lines, and every panel shows the baseline.
"""

from collections import defaultdict

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cpdrun.report.plots import NotDrawnError, Plot
from cpdrun.report.plots._axes import metric_axis
from cpdrun.report.plots._panels import Name, caption, grid, seed_mark, title, write_names
from cpdrun.report.result_text import describe_group
from cpdrun.report.style import COLUMN_IN, FP32, shades, strategy_styles
from cpdrun.report.svg import hover, part_of
from cpdrun.stats.means import mean
from cpdrun.study import formats
from cpdrun.study.axes import short
from cpdrun.study.group import Facet, Group
from cpdrun.study.records import rows_of, unit_of
from cpdrun.study.study import Study

# The values of all seeds in the unit in which the metric is shown, keyed by epoch or step.
Curve = dict[int, list[float]]


def draw(study: Study) -> Figure:
    """Draw the training curves, with the panels of each facet side by side.

    Raises:
        NotDrawnError: No run recorded the metric after more than one epoch.
    """
    curves = {group: _curve(study, group) for group in study.groups}
    if not any(len(curve) > 1 for curve in curves.values()):
        raise NotDrawnError(f"no run recorded {study.metric.name} after more than one epoch")
    facets = [facet for facet in study.facets if facet.strategies or facet.baseline]
    columns = max(1, max(len(facet.strategies) for facet in facets))
    figure, parts = grid(facets, COLUMN_IN * min(columns, 3), 2.3, columns=2 if columns == 1 else 1)
    names = sorted({group.format for group in study.groups if not group.is_baseline}, key=formats.order)
    colors = dict(zip(names, shades(len(names)), strict=True))
    for part, facet in parts:
        panels = part.subplots(1, columns, squeeze=False, sharey=True)[0]
        _facet_panels(panels, study, facet, curves, colors)
        title(part, facet, facets, above=1)
    caption(figure, study, "training_curves", facets)
    return figure


def _curve(study: Study, group: Group) -> Curve:
    curve: Curve = defaultdict(list)
    for row in (row for run in group.runs for row in rows_of(run)):
        value, epoch = row.metrics.get(study.metric.name), row.epoch
        if isinstance(epoch, int) and isinstance(value, int | float):
            curve[epoch].append(study.metric.scale * value)
    return dict(sorted(curve.items()))


def _facet_panels(
    panels: list[Axes], study: Study, facet: Facet, curves: dict[Group, Curve], colors: dict[str, str]
) -> None:
    drawn = {}
    styles = strategy_styles(study)
    for axes, name in zip(panels, list(facet.strategies) or [study.baseline_name], strict=False):
        groups = [facet.baseline, *facet.strategies.get(name, [])]
        shown = [group for group in groups if group is not None and curves[group]]
        drawn[axes] = [_line(axes, study, group, curves[group], colors) for group in shown]
        axes.set_title(name, loc="right", color=styles[name].ink if name in styles else "black")
        axes.set_xlabel(unit_of(run for group in study.groups for run in group.runs))
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    for axes in panels[len(drawn) :]:
        axes.set_visible(False)
    for axes, names in drawn.items():  # The names need the final limits of the shared y axis.
        write_names(axes, names)
    panels[0].set_ylabel(metric_axis(study.metric).title)


def _line(axes: Axes, study: Study, group: Group, curve: Curve, colors: dict[str, str]) -> Name:
    """Draw the curve and the band of a group, and return its name."""
    epochs, means = list(curve), [mean(values) for values in curve.values()]
    color = FP32.color if group.is_baseline else colors[group.format]
    low, high = [min(v) for v in curve.values()], [max(v) for v in curve.values()]
    band = axes.fill_between(epochs, low, high, color=color, alpha=0.15, linewidth=0)
    (line,) = axes.plot(epochs, means, color=color, linewidth=1.1, dashes=(3, 1) if group.is_baseline else ())
    text = describe_group(study, group)
    hover(line, text)
    part_of(band, text)
    return Name(epochs[-1], means[-1], short(group.name) + seed_mark(study, group), color, (text,))


PLOTS = [
    Plot(
        "training_curves",
        "Training curves of the {metric}",
        "The {metric} after each epoch, with a panel for each way of scaling and a line for each format. Every panel "
        "has the baseline.",
        "runs that recorded the metric after more than one epoch",
        draw,
        "training",
    )
]
