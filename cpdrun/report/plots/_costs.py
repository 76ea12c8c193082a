"""Plot the metric against a cost, with a panel for each facet, names of points, the Pareto front and its knee."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from cpdrun.report.cost.axes import Cost
from cpdrun.report.pareto import Front, front_of
from cpdrun.report.plots import NotDrawnError
from cpdrun.report.plots._grid import caption, grid, title
from cpdrun.report.plots._methods import FRONT_TEXT, panel
from cpdrun.report.plots._metric_axis import MetricAxis, bars_text, markers_text
from cpdrun.report.style import COLUMN_IN, method_styles
from cpdrun.study.groups.group import Facet, Group
from cpdrun.study.study import Study

_RING = {
    "marker": "o",
    "markersize": 10,
    "markerfacecolor": "none",
    "markeredgewidth": 1.1,
    "linestyle": "none",
}
_KNEE = "#CC0000"


def drawn(study: Study, cost: Cost) -> Figure:
    """Return the figure of one cost.

    Raises:
        NotDrawnError: The cost is unknown, or the same for all groups.
    """
    facets = {id(facet): _known(facet, cost) for facet in study.facets}
    shown = [facet for facet in study.facets if len(set(facets[id(facet)].values())) > 1]
    if not shown:
        raise NotDrawnError(_why_not(study, cost))
    figure, parts = grid(shown, COLUMN_IN * 1.5, 3.0)
    broken = ringed = False
    for part, facet in parts:
        axis, costs = MetricAxis(part, study), facets[id(facet)]
        against = next((group for group in costs if group.is_baseline), None)
        looks = method_styles({group.method.family for group in costs})
        verdicts = {group: study.judged[group].verdict for group in costs if group in study.judged}
        bottom = panel(axis, list(costs), against, costs.__getitem__, looks, verdicts)
        _label_x(bottom, cost, max(costs.values()) / min(costs.values()))
        ringed |= ring(axis, front_of(study, cost, list(costs)))
        title(part, facet, shown)
        broken |= len(axis.parts) > 1
    caption(
        figure,
        shown,
        f"{FRONT_TEXT}, of means",
        "ring: its knee" if ringed else "",
        markers_text(study),
        "y axis broken" if broken else "",
        bars_text(study),
        _left_out(study, shown, cost),
    )
    return figure


def ring(axis: MetricAxis, found: Front, x: float | None = None) -> bool:
    """Draw a ring around the knee and return whether there is a knee.

    Args:
        axis: The axes of the panel.
        found: The front.
        x: The x coordinate at which the knee is drawn. By default it is the cost of the knee.
    """
    if found.knee is None:
        return False
    y = axis.y(found.knee)
    axis.at(y).plot(found.cost[found.knee] if x is None else x, y, markeredgecolor=_KNEE, zorder=5, **_RING)
    return True


def _groups(facet: Facet) -> list[Group]:
    return [group for group in facet.all_groups if group.values]


def _known(facet: Facet, cost: Cost) -> dict[Group, float]:
    return cost.find(_groups(facet))[0]


def _why_not(study: Study, cost: Cost) -> str:
    """Return why the first facet lacks a cost. If no facet lacks any, return that all runs have the same cost."""
    for facet in study.facets:
        if why := cost.find(_groups(facet))[1]:
            return why[0] if len(why) == 1 else f"{why[0]}, and {len(why) - 1} more"
    return f"all runs that are compared have the same {cost.name}"


def _left_out(study: Study, shown: list[Facet], cost: Cost) -> str:
    without = sum(len(_groups(facet)) - len(_known(facet, cost)) for facet in shown)
    return f"without a known cost, and not drawn: {without}" if without else ""


def _label_x(axes: Axes, cost: Cost, span: float) -> None:
    steps = (1, 2, 3, 5, 7) if span < 4 else (1, 2, 5) if span < 100 else (1,)
    axes.xaxis.set_major_locator(LogLocator(base=10, subs=steps, numticks=12))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: cost.show(x)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.minorticks_off()
    axes.set_xlabel(cost.title)
