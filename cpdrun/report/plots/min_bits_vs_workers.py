"""Plot the fewest bits that are certified or open against the number of workers.

A filled marker is certified against the baseline with the same workers, and a hollow marker is open. A cross in a
separate row marks a number of workers for which no format is certified or likely to be.
"""

from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cpdrun.report.plots import NotDrawnError
from cpdrun.report.plots._fewest import FewestBitsAxis, markers_text
from cpdrun.report.plots._grid import caption, grid, title
from cpdrun.report.plots._metric_axis import apart
from cpdrun.report.result_text import describe_group
from cpdrun.report.style import COLUMN_IN, FIGURE_SIZE, NAME, Style, strategy_styles
from cpdrun.report.svg import hover, name_of, part_of
from cpdrun.study.axes import formats
from cpdrun.study.axes.titles import short
from cpdrun.study.collect import identity
from cpdrun.study.groups.chain_answer import ChainAnswer
from cpdrun.study.groups.group import Facet, Group
from cpdrun.study.study import Study

TITLE = "Fewest bits against workers"
QUESTION = "workers"
ALT = (
    "The fewest bits that are certified (filled) or open (hollow), against the number of workers, a line for each way "
    "of scaling."
)

# The distance between the ways of scaling, in doublings of the workers.
_DODGE = 0.14

# Facets that differ only in their number of workers, by that number.
Series = dict[int, Facet]


def draw(study: Study) -> Figure:
    """Return the figure, with a panel for each combination of the axes other than the number of workers.

    Raises:
        NotDrawnError: No combination has a baseline and candidates at two or more numbers of workers.
    """
    series = [one for one in _series(study) if len(one) > 1]
    if not series:
        raise NotDrawnError("it needs runs with fp32 and other formats at two numbers of workers or more")
    axis = FewestBitsAxis(study)
    panels = [_without_workers(next(iter(one.values()))) for one in series]
    figure, parts = grid(panels, COLUMN_IN, 2.4)
    for (part, facet), one in zip(parts, series, strict=False):
        _panel(part.subplots(), study, one, axis)
        title(part, facet, panels)
    caption(figure, panels, *markers_text(study, " with as many workers"))
    return figure


def _series(study: Study) -> list[Series]:
    found: dict[tuple[str, ...], Series] = {}
    for facet in study.facets:
        workers = facet.groups[0].keys["world_size"]
        if facet.strategies and not study.baseline_problem(facet) and isinstance(workers, int):
            rest = tuple(identity(value) for key, value in facet.keys.items() if key != "world_size")
            found.setdefault(rest, {})[workers] = facet
    return list(found.values())


def _without_workers(facet: Facet) -> Facet:
    return Facet({key: value for key, value in facet.keys.items() if key != "world_size"}, facet.groups)


def _panel(axes: Axes, study: Study, series: Series, axis: FewestBitsAxis) -> None:
    ends = []
    looks = strategy_styles(study)
    for place, (name, look) in enumerate(looks.items()):
        dodge = 2 ** (_DODGE * (place - (len(looks) - 1) / 2))
        workers = sorted(n for n, facet in series.items() if name in facet.strategies)
        if not workers:
            continue
        answers = [study.answer(series[n], name) for n in workers]
        heights = [axis.none if one.group is None else _bits(one.group) or axis.none for one in answers]
        places = [n * dodge for n in workers]
        for here, there in pairwise(zip(places, heights, strict=True)):
            if axis.none not in (here[1], there[1]):  # In the row `none`, the fewest bits are not known.
                axes.plot(*zip(here, there, strict=True), color=look.color, linestyle=look.dash, zorder=3)
        for n, height, one in zip(workers, heights, answers, strict=True):
            _point(axes, study, (n * dodge, height), one, look, f"{name}, workers {n}", above=place == 0)
        ends.append((heights[-1], look, [describe_group(study, one.group) for one in answers if one.group]))
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(series), [str(n) for n in sorted(series)])
    axes.minorticks_off()
    axes.margins(x=0.12)
    axes.set_xlabel("workers")
    axis.apply(axes)
    ends.sort(key=lambda end: -end[0])
    for y, (_, look, of) in zip(
        apart([y for y, _, _ in ends], 0.09 * (axes.get_ylim()[1] - axes.get_ylim()[0]), 0.0),
        ends,
        strict=True,
    ):
        name = axes.annotate(
            look.label, (1.0, y), (3, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
            va="center", color=look.ink, annotation_clip=False, **NAME,
        )  # fmt: skip
        name_of(name, *of)


def _point(
    axes: Axes,
    study: Study,
    at: tuple[float, float],
    answer: ChainAnswer,
    look: Style,
    name: str,
    above: bool,
) -> None:
    group = answer.group
    face, marker = look.color if answer.certified else "white", look.marker if group else "x"
    (mark,) = axes.plot(*at, marker, color=look.color, markerfacecolor=face, zorder=4)
    if group is None:
        hover(mark, f"{name}: {answer.verdict}")
        return
    hover(mark, describe_group(study, group))
    text = axes.annotate(
        short(group.name), at, (0, 4 if above else -4), textcoords="offset points", color=look.ink,
        ha="center", va="bottom" if above else "top", fontsize=FIGURE_SIZE,
    )  # fmt: skip
    part_of(text, describe_group(study, group))


def _bits(group: Group) -> float:
    return formats.bits(group.format) or 0
