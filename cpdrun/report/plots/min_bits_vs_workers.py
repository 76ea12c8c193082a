"""The fewest bits that are enough, against the number of workers.

Enough: the mean is within the tolerance of the same workers' fp32. Where no format is, the mark is an open one in a
row of its own: how many bits it would take, nobody has tried.
"""

from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cpdrun.report.look.hover import hover, name_of, part_of
from cpdrun.report.look.style import COLUMN_IN, FIGURE_SIZE, NAME, strategy_looks
from cpdrun.report.plots import NotDrawnError
from cpdrun.report.plots._fewest import BitsAxis
from cpdrun.report.plots._grid import caption, grid, title
from cpdrun.report.plots._metric_axis import apart
from cpdrun.report.verdict import smallest_within
from cpdrun.study.axes import formats
from cpdrun.study.axes.titles import short
from cpdrun.study.collect import identity
from cpdrun.study.groups.group import Facet
from cpdrun.study.study import Study

TITLE = "Fewest bits against workers"
QUESTION = "workers"
ALT = "The fewest bits that are enough, against the number of workers, a line for each way of scaling."

# The facets that differ in their number of workers alone, by what they share.
Series = dict[int, Facet]


def draw(study: Study) -> Figure:
    series = [one for one in _series(study) if len(one) > 1]
    if not series:
        raise NotDrawnError("it needs runs with fp32 and other formats at two numbers of workers or more")
    axis = BitsAxis(study)
    panels = [_without_workers(next(iter(one.values()))) for one in series]
    figure, parts = grid(panels, COLUMN_IN, 2.4)
    for (part, facet), one in zip(parts, series, strict=False):
        _panel(part.subplots(), study, one, axis)
        title(part, facet, panels)
    tolerance = study.metric.show_tolerance(study.tolerance)
    caption(
        figure,
        panels,
        f"enough: mean within {tolerance} of {study.baseline_name}",
        "open: no format tried was",
    )
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


def _panel(axes: Axes, study: Study, series: Series, axis: BitsAxis) -> None:
    ends = []
    for place, (name, look) in enumerate(strategy_looks(study).items()):
        workers = sorted(n for n, facet in series.items() if name in facet.strategies)
        if not workers:
            continue
        found = [smallest_within(study, series[n], name) for n in workers]
        heights = [axis.none if one is None else _bits(one[0].format) or axis.none for one in found]
        for here, there in pairwise(zip(workers, heights, strict=True)):
            if axis.none not in (here[1], there[1]):  # no line to where nobody knows how many bits it takes
                axes.plot(*zip(here, there, strict=True), color=look.color, linestyle=look.dash, zorder=3)
        for n, height, one in zip(workers, heights, found, strict=True):
            face = "white" if one is None else look.color
            (mark,) = axes.plot([n], [height], look.marker, color=look.color, markerfacecolor=face, zorder=4)
            hover(mark, f"{name}, workers {n}: no format" if one is None else study.describe(one[0]))
            if one is not None:
                offset = (0, 4 if place == 0 else -4)
                text = {"ha": "center", "va": "bottom" if place == 0 else "top", "fontsize": FIGURE_SIZE}
                figure = axes.annotate(
                    short(one[0].name),
                    (n, height),
                    offset,
                    textcoords="offset points",
                    color=look.ink,
                    **text,
                )
                part_of(figure, study.describe(one[0]))
        ends.append((heights[-1], look, [study.describe(one[0]) for one in found if one is not None]))
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


def _bits(name: object) -> int:
    return formats.bits(name) or 0
