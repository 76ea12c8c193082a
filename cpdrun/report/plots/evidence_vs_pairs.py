"""Plot how the evidence on each format grew with the number of pairs.

Evidence is the log10 of an e-value: the factor by which a bet on a statement has multiplied its stake. Positive
evidence supports "at most the margin worse", and negative evidence supports "worse by more than the margin". A format
is certified when its line first crosses the upper dashed line, and refuted when it first crosses the lower one.
"""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cpdrun.report.plots import NotDrawnError, Plot
from cpdrun.report.plots._axes import AXES
from cpdrun.report.plots._panels import Name, caption, grid, title, write_names
from cpdrun.report.result_text import describe_group
from cpdrun.report.style import COLUMN_IN, FP32, WITH_APS, WITHOUT_APS, strategy_styles
from cpdrun.report.svg import hover
from cpdrun.study.axes import plain, short
from cpdrun.study.group import Facet, Group
from cpdrun.study.study import Study
from cpdrun.study.verdicts import MARKS, Kind

# The plot is drawn only if a candidate has at least this many pairs. A table shows fewer pairs just as well.
FEWEST_PAIRS = 4
# Evidence beyond this value is drawn at this value, because evidence against a bad format can reach hundreds.
_MOST = 8.0
# The styles of formats show their strategies. Named cases have none, so their styles show the verdicts.
_OF_CASES = {Kind.CERTIFIED: WITH_APS, Kind.REFUTED: WITHOUT_APS, Kind.OPEN: FP32, Kind.NOT_TESTED: FP32}


def draw(study: Study) -> Figure:
    """Draw the evidence, with a panel for each facet in which some candidate has several pairs.

    Raises:
        NotDrawnError: No candidate has `FEWEST_PAIRS` pairs.
    """
    facets = [facet for facet in study.facets if _compared(study, facet)]
    longest = max((judged.judgment.pairs for judged in study.judged.values()), default=0)
    if not facets or longest < FEWEST_PAIRS:
        raise NotDrawnError(
            f"it needs {FEWEST_PAIRS} seeds that {study.baseline_name} and another format have in common"
        )
    figure, parts = grid(facets, COLUMN_IN * 1.15, 2.6)
    for part, facet in parts:
        _panel(part.subplots(), study, facet)
        title(part, facet, facets)
    caption(figure, study, "evidence_vs_pairs", facets)
    return figure


def _compared(study: Study, facet: Facet) -> list[Group]:
    return [
        group for group in facet.groups if group in study.judged and study.judged[group].judgment.pairs > 1
    ]


def _panel(axes: Axes, study: Study, facet: Facet) -> None:
    groups, names = _compared(study, facet), []
    for group in groups:
        judged = study.judged[group]
        style = _OF_CASES[judged.kind] if facet.has_cases else strategy_styles(study)[group.strategy]
        heights = [max(-_MOST, min(_MOST, value)) for value in judged.judgment.trace]
        pairs, text = range(1, len(heights) + 1), describe_group(study, group)
        (line,) = axes.plot(pairs, heights, color=style.color, linestyle=style.dash, linewidth=0.9)
        (end,) = axes.plot(pairs[-1], heights[-1], color=style.color, marker=style.marker, linestyle="")
        for artist in (line, end):
            hover(artist, text)
        name = plain(str(group.case)) if facet.has_cases else group.name
        label = f"{short(name, 20)} {MARKS[judged.kind]}"
        names.append(Name(pairs[-1], heights[-1], label, style.color, (text,)))
    certify = min(study.judged[group].enough[0] for group in groups)
    refute = min(study.judged[group].enough[1] for group in groups)
    for height in (certify, -refute):
        axes.axhline(height, color="#555555", linewidth=0.7, linestyle=(0, (4, 2)))
    axes.axhline(0, color="#555555", linewidth=0.5)
    axes.margins(x=0.04)
    AXES["pairs"].apply_to_x(axes, [name.x for name in names])
    axes.set_ylabel(AXES["evidence"].title)
    write_names(axes, names)


PLOTS = [
    Plot(
        "evidence_vs_pairs",
        "Evidence on the {metric} against pairs of runs",
        "The evidence that the {metric} of each format is within the margin, or is not, against the number of pairs of "
        "runs.",
        f"{FEWEST_PAIRS} seeds that the baseline and another format have in common",
        draw,
        "sure",
        of_cases=None,
    )
]
