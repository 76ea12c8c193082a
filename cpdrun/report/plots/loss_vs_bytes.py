"""Plot the metric against the bits that a worker sends, with the Pareto front, for all methods of a sweep.

The methods are formats, sparse and sign codes, local steps and sharding. The x axis shows bits per parameter and step
(`Group.bits_a_parameter`, which is 32 for a plain sum in fp32 with any number of workers), or bytes if the records do
not say how many parameters there are.
"""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from cpdrun.report.methods.comparison import by_setting, method_verdicts, reference
from cpdrun.report.plots import NotDrawnError
from cpdrun.report.plots._grid import caption, grid, title
from cpdrun.report.plots._methods import FRONT_TEXT, Cost, legend, panel, rows_of_legend
from cpdrun.report.plots._metric_axis import MetricAxis, bars_text, markers_text
from cpdrun.report.style import COLUMN_IN, Style, method_styles
from cpdrun.report.tables import show_bits, show_bytes
from cpdrun.study.groups.group import Facet, Group
from cpdrun.study.study import Study

TITLE = "What a worker sends, by method"
QUESTION = "cost"
ALT = (
    "The metric of each method against the bits that a worker sends for each parameter and step; a line through those "
    "that no other beats in both."
)
# The plot shows both named cases and axes.
OF_CASES = None


def draw(study: Study) -> Figure:
    """Return the figure, with a panel for each setting.

    Raises:
        NotDrawnError: No two groups of a setting recorded the bytes they sent, the bytes do not depend on what is
            compared, or all methods belong to one family.
    """
    if why := study.sends_alike:
        raise NotDrawnError(why)
    facets = [facet for facet in by_setting(study) if len(_points(facet)) > 1]
    if not facets:
        raise NotDrawnError("no runs to compare that recorded the bytes they sent")
    families = {group.method.family for facet in facets for group in _points(facet) if not group.is_baseline}
    if len(families) < 2 and not any(facet.has_cases for facet in facets):
        raise NotDrawnError("all runs exchange by one method, accuracy_vs_bytes shows them")
    looks = method_styles(families | {g.method.family for facet in facets for g in _points(facet)})
    figure, parts = grid(facets, COLUMN_IN * 1.5, 3.2)
    broken = False
    for part, facet in parts:
        axis = MetricAxis(part, study)
        _panel(axis, facet, looks)
        title(part, facet, facets, above=rows_of_legend(looks))
        broken |= len(axis.parts) > 1
    caption(
        figure,
        facets,
        FRONT_TEXT,
        markers_text(study),
        "y axis broken" if broken else "",
        bars_text(study),
    )
    return figure


def _points(facet: Facet) -> list[Group]:
    return [group for group in facet.groups if group.values and group.wire_bytes > 0]


def _panel(axis: MetricAxis, facet: Facet, looks: dict[str, Style]) -> None:
    groups, against = _points(facet), reference(facet)
    in_bits = all(group.bits_a_parameter > 0 for group in groups)
    sent: Cost = (lambda group: group.bits_a_parameter) if in_bits else (lambda group: group.wire_bytes)
    bottom = panel(axis, groups, against, sent, looks, method_verdicts(axis.study, facet))
    wide = max(map(sent, groups)) > 128 * min(map(sent, groups))
    _label_x(bottom, in_bits, against, wide)
    legend(axis.parts[0], [looks[name] for name in looks if any(g.method.family == name for g in groups)])


def _label_x(axes: Axes, in_bits: bool, against: Group | None, wide: bool) -> None:
    axes.xaxis.set_major_locator(LogLocator(base=(4 if wide else 2) if in_bits else 10, numticks=12))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: show_bits(x) if in_bits else show_bytes(x)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.minorticks_off()
    known = f" ({against.name}: {show_bytes(against.wire_bytes)})" if in_bits and against is not None else ""
    axes.set_xlabel(
        f"sent by a worker, bits a parameter a step{known}" if in_bits else "sent by a worker each step"
    )
