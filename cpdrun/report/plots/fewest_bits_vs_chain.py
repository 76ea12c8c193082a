"""Plot the fewest bits that are certified or open against the longest chain of rounded additions of a gradient.

There is a point for each number of workers and order of summation. The marker shows the order, and the number next to
the marker is the number of workers. A filled marker is certified against the baseline with the same workers and the
same order. A hollow marker is open.
"""

import math
from itertools import cycle
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from cpdrun.report.headline import ORDER
from cpdrun.report.plots import NotDrawnError
from cpdrun.report.plots._fewest import FewestBitsAxis, markers_text
from cpdrun.report.plots._grid import caption, grid, title
from cpdrun.report.result_text import describe_group
from cpdrun.report.style import COLUMN_IN, FIGURE_SIZE, OTHER_COLORS
from cpdrun.report.svg import hover, part_of
from cpdrun.study.axes import formats
from cpdrun.study.axes.titles import axis_text
from cpdrun.study.collect import identity
from cpdrun.study.groups.group import Facet
from cpdrun.study.study import Study

TITLE = "Fewest bits against the longest chain of additions"
QUESTION = "workers"
ALT = (
    "The fewest bits that are certified (filled) or open (hollow), against the longest chain of rounded additions that "
    "a gradient passes, a point for each number of workers and order."
)

# Other settings that keep small values alive in a long chain. Their values are shown by colors instead of panels.
_REMEDIES = (
    "sync.rounding",
    "sync.kahan",
)
_MARKERS = {"rank": "o", "ring": "D", "hierarchical": "s", "tree": "^", "exact": "*"}
# The least distance between points of a row, in doublings of the chain.
_DODGE = 0.16


class Point(NamedTuple):
    """A point of the plot.

    Attributes:
        chain: The longest chain of rounded additions.
        bits: The fewest bits, infinite if no format is certified or likely to be.
        is_certified: Whether the format is certified.
        workers: The number of workers.
        order: The order of summation.
        series: The name of the series, which has its own color.
        text: The text that is shown when the mouse points at the point.
    """

    chain: float
    bits: float
    is_certified: bool
    workers: int
    order: str
    series: str
    text: str


def draw(study: Study) -> Figure:
    """Return the figure, with a panel for each combination of the axes that are neither workers, order nor remedies.

    Raises:
        NotDrawnError: No panel has chains of different lengths.
    """
    panels: dict[tuple[str, ...], tuple[Facet, list[Point]]] = {}
    for facet in study.facets:
        rest = {k: v for k, v in facet.keys.items() if k not in ("world_size", *ORDER, *_REMEDIES)}
        points = panels.setdefault(tuple(map(identity, rest.values())), (Facet(rest, []), []))[1]
        points.extend(_points(study, facet))
    drawn = [
        (facet, points) for facet, points in panels.values() if len({point.chain for point in points}) > 1
    ]
    if not drawn:
        raise NotDrawnError(
            "it needs runs whose longest chains of rounded additions differ, recorded, with fp32"
        )
    series = dict.fromkeys(point.series for _, points in drawn for point in points)
    colors = dict(zip(series, cycle(OTHER_COLORS), strict=False))
    facets, axis = [facet for facet, _ in drawn], FewestBitsAxis(study)
    figure, parts = grid(facets, 1.6 * COLUMN_IN, 2.7, columns=1)
    for (part, facet), (_, points) in zip(parts, drawn, strict=False):
        _panel(part.subplots(), points, colors, axis)
        title(part, facet, facets)
    caption(
        figure,
        facets,
        *markers_text(study, " in the same order"),
        "number: workers",
        "side by side where they would overlap",
    )
    return figure


def _points(study: Study, facet: Facet) -> list[Point]:
    keys, points = facet.groups[0].keys, []
    workers, order = keys["world_size"], str(keys.get(ORDER[0]) or "")
    for name, groups in facet.strategies.items():
        lengths = [group.longest_chain for group in groups if math.isfinite(group.longest_chain)]
        if lengths and isinstance(workers, int) and not study.baseline_problem(facet):
            answer = study.answer(facet, name)
            bits = math.inf if answer.group is None else formats.bits(answer.group.format) or math.inf
            text = f"{facet.label} {name}: {answer.verdict}"
            text = describe_group(study, answer.group) if answer.group else text
            certified, series = answer.certified is not None, _series(facet, name)
            points.append(Point(max(lengths), bits, certified, workers, order, series, text))
    return points


def _series(facet: Facet, strategy: str) -> str:
    """Return the name of a series, such as `with APS, stochastic, Kahan`."""
    rounding, kahan = (facet.keys.get(key) for key in _REMEDIES)
    parts = [strategy, axis_text(rounding) if rounding not in (None, "nearest_even") else ""]
    return ", ".join(part for part in [*parts, "Kahan" if kahan else ""] if part)


def spread(places: list[float], least: float) -> list[float]:
    """Move places apart until neighbors are at least `least` apart, and return them in their original order.

    Places that are too close to each other form a crowd, which keeps its common middle.
    """
    crowds: list[list[float]] = []  # Each crowd is [middle, number of places].
    order = sorted(range(len(places)), key=places.__getitem__)
    for i in order:
        crowds.append([places[i], 1])
        while len(crowds) > 1 and crowds[-1][0] - crowds[-2][0] < least * (crowds[-1][1] + crowds[-2][1]) / 2:
            (a, n), (b, m) = crowds[-2], crowds.pop()
            crowds[-1] = [(a * n + b * m) / (n + m), n + m]
    moved = [middle + least * (k - (number - 1) / 2) for middle, number in crowds for k in range(int(number))]
    return [place for _, place in sorted(zip(order, moved, strict=True))]


def _panel(axes: Axes, points: list[Point], colors: dict[str, str], axis: FewestBitsAxis) -> None:
    for height in dict.fromkeys(axis.height(point.bits) for point in points):
        row = sorted(
            (p for p in points if axis.height(p.bits) == height), key=lambda p: (p.chain, p.order, p.series)
        )
        for point, place in zip(row, spread([math.log2(p.chain) for p in row], _DODGE), strict=True):
            _point(axes, point, 2**place, height, colors[point.series])
    axes.set_xscale("log", base=2)
    chains = sorted({point.chain for point in points})
    kept = [chains[0]]
    for chain in chains[1:]:
        if chain >= kept[-1] * 1.35:
            kept.append(chain)
    axes.set_xticks(kept, [f"{chain:.0f}" for chain in kept])
    axes.minorticks_off()
    axes.margins(x=0.08)
    axes.set_xlabel("longest chain of rounded additions")
    axis.apply(axes)
    _legend(axes, points, colors)


def _point(axes: Axes, point: Point, x: float, height: float, color: str) -> None:
    face = color if point.is_certified else "white"
    marker = "x" if math.isinf(point.bits) else _MARKERS.get(point.order, "o")
    (mark,) = axes.plot([x], [height], marker, color=color, markerfacecolor=face, markersize=4.5, zorder=4)
    hover(mark, f"chain {point.chain:.0f}, {point.order}: {point.text}", of=point.text)
    workers = axes.annotate(
        str(point.workers),
        (x, height),
        (0, 4),
        textcoords="offset points",
        ha="center",
        fontsize=FIGURE_SIZE,
        color="#333333",
    )
    part_of(workers, point.text)


def _legend(axes: Axes, points: list[Point], colors: dict[str, str]) -> None:
    """Draw the legend above the panel: the markers of the orders, then the colors of the series."""
    orders = dict.fromkeys(point.order for point in points if point.order)
    series = [name for name in colors if any(point.series == name for point in points)]
    handles = [
        Line2D([], [], marker=_MARKERS.get(name, "o"), color="#333333", linestyle="none", label=name)
        for name in orders
    ]
    handles += [
        Line2D([], [], color=colors[name], linewidth=3, label=name) for name in series if len(series) > 1
    ]
    if len(handles) > 1:
        axes.legend(
            handles=handles, loc="lower left", bbox_to_anchor=(0, 1.07), ncols=4, fontsize=5.5, frameon=False,
            borderpad=0, handletextpad=0.3, columnspacing=1.0, handlelength=1.2,
        )  # fmt: skip
