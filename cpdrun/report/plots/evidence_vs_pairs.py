"""Plot how the evidence grew with the pairs of runs.

Evidence above 0 says that a format is at most the margin worse than the baseline. Evidence below 0 says that it is more
than the margin worse. Evidence is an e-value, drawn as a power of ten: the factor by which a bet against "more than the
margin worse", or against "at most the margin worse", has multiplied its stake. A format is certified or refuted when
its line first crosses a dashed line.
"""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cpdrun.report.plots import NotDrawnError
from cpdrun.report.plots._grid import caption, grid, title
from cpdrun.report.result_text import describe_group
from cpdrun.report.style import COLUMN_IN, NAME, strategy_styles
from cpdrun.report.svg import hover, part_of
from cpdrun.study.groups.group import Facet
from cpdrun.study.groups.verdicts import MARKS
from cpdrun.study.study import Study

TITLE = "Evidence against pairs of runs"
QUESTION = "sure"
ALT = "The evidence that each format is within the tolerance, or is not, against the pairs of runs it took."

# The longest line must have at least this many pairs. A table shows fewer pairs just as well.
FEWEST_PAIRS = 4
# The largest power of ten that is drawn. The evidence against a bad format can reach hundreds.
_MOST = 8.0


def draw(study: Study) -> Figure:
    """Return the figure, with a panel for each facet in which a candidate has more than one pair.

    Raises:
        NotDrawnError: No candidate has `FEWEST_PAIRS` pairs.
    """
    facets = [facet for facet in study.facets if any(_lines(study, facet))]
    longest = max((judged.judgement.pairs for judged in study.judged.values()), default=0)
    if not facets or longest < FEWEST_PAIRS:
        raise NotDrawnError(
            f"it needs {FEWEST_PAIRS} seeds that {study.baseline_name} and another format have in common"
        )
    figure, parts = grid(facets, COLUMN_IN, 2.6)
    for part, facet in parts:
        _panel(part.subplots(), study, facet)
        title(part, facet, facets)
    tolerance = study.metric.show_tolerance(study.tolerance)
    text = f"above: at most {tolerance} worse than {study.baseline_name}, below: more"
    caption(figure, facets, f"{text}; dashed: enough at {study.ci:g} %", "an end marked ? is open")
    return figure


def _lines(study: Study, facet: Facet) -> list:
    groups = [group for groups in facet.strategies.values() for group in groups]
    return [group for group in groups if group in study.judged and study.judged[group].judgement.pairs > 1]


def _panel(axes: Axes, study: Study, facet: Facet) -> None:
    groups = _lines(study, facet)
    for group in groups:
        judged, look = study.judged[group], strategy_styles(study)[group.strategy]
        heights = [max(-_MOST, min(_MOST, value)) for value in judged.judgement.trace]
        pairs = range(1, len(heights) + 1)
        (line,) = axes.plot(pairs, heights, color=look.color, linestyle=look.dash, linewidth=0.9)
        (end,) = axes.plot(pairs[-1], heights[-1], color=look.color, marker=look.marker, linestyle="")
        for artist in (line, end):
            hover(artist, describe_group(study, group))
        name = axes.annotate(
            f"{group.name} {MARKS[judged.verdict]}", (pairs[-1], heights[-1]), (3, 0),
            textcoords="offset points", va="center", color=look.ink, **NAME,
        )  # fmt: skip
        part_of(name, describe_group(study, group))
    certify = min(study.judged[group].enough[0] for group in groups)
    refute = min(study.judged[group].enough[1] for group in groups)
    for height in (certify, -refute):
        axes.axhline(height, color="#555555", linewidth=0.7, linestyle=(0, (4, 2)))
    axes.axhline(0, color="#555555", linewidth=0.5)
    axes.margins(x=0.12)
    axes.set_xlabel("pairs of runs")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("evidence, powers of ten")
