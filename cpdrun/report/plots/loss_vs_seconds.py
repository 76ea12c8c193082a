"""Plot the metric of each method against the predicted time of a step, with a panel for each network.

The cost model predicts the time from the bytes that the runs sent and from the measurements of
`cpdrun doctor --calibrate` (`cpdrun.report.methods.crossover`).
"""

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from cpdrun.costmodel import CalibrationError
from cpdrun.report.methods.comparison import reference
from cpdrun.report.methods.crossover import Panel, crossover
from cpdrun.report.plots import NotDrawnError
from cpdrun.report.plots._grid import caption, grid, title
from cpdrun.report.plots._methods import FRONT_TEXT, legend, panel, rows_of_legend
from cpdrun.report.plots._metric_axis import MetricAxis, markers_text
from cpdrun.report.style import COLUMN_IN, method_styles
from cpdrun.study.groups.group import Facet
from cpdrun.study.study import Study

TITLE = "Predicted seconds of a step, by method"
QUESTION = "time"
ALT = "The metric of each method against the predicted time of a step, a panel for each network."
# The plot shows both named cases and axes.
OF_CASES = None


def draw(study: Study) -> Figure:
    """Return the figure, with a panel for each setting and network.

    Raises:
        NotDrawnError: The step times cannot be predicted, or there are no two methods to compare.
    """
    try:
        found = crossover(study)
    except CalibrationError as error:
        raise NotDrawnError(str(error)) from None
    panels = [(of, network) for of in found.panels for network in of.networks if len(of.on(network)) > 1]
    if not panels:
        raise NotDrawnError("no two methods to compare")
    looks = method_styles(cell.group.method.family for of, _ in panels for cell in of.cells)
    facets = [Facet({"network": network} | of.facet.keys, []) for of, network in panels]
    figure, parts = grid(facets, COLUMN_IN * 1.2, 2.8)
    for (part, shown), (of, network) in zip(parts, panels, strict=False):
        axis = MetricAxis(part, study)
        _panel(axis, of, network, looks)
        title(part, shown, facets, above=rows_of_legend(looks))
    work = found.calibration.workload
    caption(
        figure,
        facets,
        f"predicted, not measured: {work.values:,} parameters, {1e3 * work.compute_s:.3g} ms of computing a step "
        f"({found.calibration.about.get('device', 'unknown device')}), the exchange after it",
        FRONT_TEXT,
        markers_text(study),
    )
    return figure


def _panel(axis: MetricAxis, of: Panel, network: str, looks: dict) -> None:
    milliseconds = {cell.group: 1e3 * cell.step_s for cell in of.on(network)}
    verdicts = {cell.group: cell.verdict for cell in of.cells if cell.verdict is not None}
    bottom = panel(axis, list(milliseconds), reference(of.facet), milliseconds.__getitem__, looks, verdicts)
    low, high = min(milliseconds.values()), max(milliseconds.values())
    if high < 10 * low:  # An axis of less than a decade has ticks at round numbers instead of powers of ten.
        bottom.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        bottom.minorticks_off()
    bottom.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    bottom.xaxis.set_minor_formatter(NullFormatter())
    bottom.set_xlabel("ms a step, predicted")
    families = {group.method.family for group in milliseconds}
    legend(axis.parts[0], [look for name, look in looks.items() if name in families])
