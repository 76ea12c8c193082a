"""Plot the fewest bits that are certified or open against workers or chain length.

Each format is compared with the baseline of the same number of workers and summation order. A filled marker is
certified, a hollow one is open. A cross in a separate row shows that no format is certified or likely to be.
"""

import math
from itertools import cycle, pairwise
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from cpdrun.report.plots import NotDrawnError, Plot
from cpdrun.report.plots._axes import AXES
from cpdrun.report.plots._panels import Name, caption, grid, seed_mark, spread, title, write_names
from cpdrun.report.result_text import describe_group
from cpdrun.report.style import COLUMN_IN, FIGURE_SIZE, OTHER_COLORS, Style, strategy_styles
from cpdrun.report.svg import hover, part_of
from cpdrun.study import formats
from cpdrun.study.axes import axis_text, short
from cpdrun.study.collect import identity
from cpdrun.study.facet_summary import ORDER
from cpdrun.study.group import Facet, Group
from cpdrun.study.study import Study
from cpdrun.study.verdicts import LadderAnswer

# These settings preserve small values in a long chain of additions. The plot against the chain shows their values by
# color instead of in separate panels.
_REMEDIES = ("sync.rounding", "sync.kahan")
_MARKERS = {"rank": "o", "ring": "D", "hierarchical": "s", "tree": "^", "exact": "*"}
# The horizontal distance between the points of two strategies, in doublings of the number of workers.
_STRATEGY_DODGE = 0.14
# The least horizontal distance between two points of a row, in doublings of the chain length.
_CHAIN_DODGE = 0.16
# The vertical distance between the widest tried format and the row of crosses, in bits.
_APART = 2

# Facets that differ only in their number of workers, keyed by this number.
Series = dict[int, Facet]


class FewestBitsAxis:
    """The y axis of bit widths, which is the same in every panel of a figure.

    Attributes:
        sizes: The bit widths with ticks: the tried widths that are at least half a bit apart.
        none: The y coordinate of the row of crosses above the ticks, which is not a number of bits.
    """

    def __init__(self, study: Study):
        tried = {
            size
            for facet in study.facets
            for groups in facet.strategies.values()
            for group in groups
            if (size := formats.bits(group.format)) is not None and size < 32
        }
        self.sizes: list[float] = []
        for size in sorted(tried or {1}):
            if not self.sizes or size - self.sizes[-1] >= 0.5:
                self.sizes.append(size)
        self.none = max(tried, default=1) + _APART

    def height(self, group: Group | None) -> float:
        return self.none if group is None else formats.bits(group.format) or self.none

    def apply(self, axes: Axes) -> None:
        """Set the ticks, limits and label of a panel, and separate the row of crosses."""
        axes.set_yticks([*self.sizes, self.none], [*(f"{size:g}" for size in self.sizes), "none tried"])
        axes.axhline(self.none - _APART / 2, color="#666666", linewidth=0.6, dashes=(1, 2))
        axes.set_ylim(self.sizes[0] - 1, self.none + 0.9)
        axes.set_ylabel(AXES["fewest_bits"].title)


# ---- against the number of workers


def draw_workers(study: Study) -> Figure:
    """Draw the fewest bits against workers, with a panel per setting of the other axes.

    Raises:
        NotDrawnError: No setting has a baseline and candidates at two or more numbers of workers.
    """
    series = [one for one in _series(study) if len(one) > 1]
    if not series:
        raise NotDrawnError("it needs runs with fp32 and other formats at two numbers of workers or more")
    axis = FewestBitsAxis(study)
    panels = [_without_workers(next(iter(one.values()))) for one in series]
    figure, parts = grid(panels, COLUMN_IN, 2.4)
    for (part, facet), one in zip(parts, series, strict=False):
        _workers_panel(part.subplots(), study, one, axis)
        title(part, facet, panels)
    caption(figure, study, "fewest_bits", panels, against=" with as many workers", has_worker_counts=False)
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


def _workers_panel(axes: Axes, study: Study, series: Series, axis: FewestBitsAxis) -> None:
    names, styles = [], strategy_styles(study)
    for place, (name, style) in enumerate(styles.items()):
        dodge = 2 ** (_STRATEGY_DODGE * (place - (len(styles) - 1) / 2))
        answers = {n: study.answer(series[n], name) for n in sorted(series) if name in series[n].strategies}
        points = [(n * dodge, axis.height(one.group)) for n, one in answers.items()]
        for here, there in pairwise(points):
            # The row of crosses is no number of bits, so no line leads to it.
            if axis.none not in (here[1], there[1]):
                axes.plot(*zip(here, there, strict=True), color=style.color, linestyle=style.dash, zorder=3)
        for point, (n, one) in zip(points, answers.items(), strict=True):
            _workers_point(axes, study, point, one, style, f"{name}, workers {n}", above=place == 0)
        if points:
            of = tuple(describe_group(study, one.group) for one in answers.values() if one.group)
            names.append(Name(*points[-1], style.label, style.color, of))
    AXES["workers"].apply_to_x(axes, list(series), at_values=True)
    axes.margins(x=0.12)
    axis.apply(axes)
    write_names(axes, names)


def _workers_point(
    axes: Axes,
    study: Study,
    at: tuple[float, float],
    answer: LadderAnswer,
    style: Style,
    name: str,
    above: bool,
) -> None:
    group = answer.group
    face, marker = style.color if answer.certified else "white", style.marker if group else "x"
    (mark,) = axes.plot(*at, marker, color=style.color, markerfacecolor=face, zorder=4)
    if group is None:
        hover(mark, f"{name}: {answer.verdict}")
        return
    hover(mark, describe_group(study, group))
    text = axes.annotate(
        short(group.name) + seed_mark(study, group), at, (0, 4 if above else -4), textcoords="offset points",
        color=style.ink, ha="center", va="bottom" if above else "top", fontsize=FIGURE_SIZE,
    )  # fmt: skip
    part_of(text, describe_group(study, group))


# ---- against the longest chain of rounded additions


class Point(NamedTuple):
    """A point of the plot of the fewest bits against the longest chain.

    `group` is the group with the fewest bits among those that are certified or likely to be certified, or None if there
    is none. Each `series` has its own color. `text` is the tooltip.
    """

    chain: float
    group: Group | None
    is_certified: bool
    workers: int
    order: str
    series: str
    text: str


def draw_chains(study: Study) -> Figure:
    """Draw the fewest bits against the longest chain of rounded additions.

    There is a panel per setting. Workers, summation orders (`ORDER`) and the settings that help in long chains
    (`_REMEDIES`) are shown within the panel.

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
        axes = part.subplots()
        _chains_panel(axes, points, colors, axis)
        # Leave a line for the legend, which is between the title and the panel.
        title(part, facet, facets, above=1)
    caption(figure, study, "fewest_bits", facets, against=" in the same order", has_worker_counts=True)
    return figure


def _points(study: Study, facet: Facet) -> list[Point]:
    keys, points = facet.groups[0].keys, []
    workers, order = keys["world_size"], str(keys.get(ORDER[0]) or "")
    for name, groups in facet.strategies.items():
        lengths = [group.longest_chain for group in groups if math.isfinite(group.longest_chain)]
        if lengths and isinstance(workers, int) and not study.baseline_problem(facet):
            answer = study.answer(facet, name)
            text = f"{facet.label} {name}: {answer.verdict}"
            text = describe_group(study, answer.group) if answer.group else text
            certified, series = answer.certified is not None, _series_name(facet, name)
            points.append(Point(max(lengths), answer.group, certified, workers, order, series, text))
    return points


def _series_name(facet: Facet, strategy: str) -> str:
    """Return the strategy and the remedies in use: "with APS, stochastic, Kahan"."""
    rounding, kahan = (facet.keys.get(key) for key in _REMEDIES)
    parts = [strategy, axis_text(rounding) if rounding not in (None, "nearest_even") else ""]
    return ", ".join(part for part in [*parts, "Kahan" if kahan else ""] if part)


def _chains_panel(axes: Axes, points: list[Point], colors: dict[str, str], axis: FewestBitsAxis) -> None:
    for height in dict.fromkeys(axis.height(point.group) for point in points):
        row = sorted(
            (p for p in points if axis.height(p.group) == height), key=lambda p: (p.chain, p.order, p.series)
        )
        places = spread([math.log2(point.chain) for point in row], _CHAIN_DODGE)
        for point, place in zip(row, places, strict=True):
            _chains_point(axes, point, 2**place, height, colors[point.series])
    AXES["chain"].apply_to_x(axes, {point.chain for point in points}, at_values=True)
    axes.margins(x=0.08)
    axis.apply(axes)
    _legend(axes, points, colors)


def _chains_point(axes: Axes, point: Point, x: float, height: float, color: str) -> None:
    face = color if point.is_certified else "white"
    marker = "x" if point.group is None else _MARKERS.get(point.order, "o")
    (mark,) = axes.plot([x], [height], marker, color=color, markerfacecolor=face, markersize=4.5, zorder=4)
    hover(mark, f"chain {point.chain:.0f}, {point.order}: {point.text}", of=point.text)
    workers = axes.annotate(
        str(point.workers), (x, height), (0, 4), textcoords="offset points", ha="center", fontsize=FIGURE_SIZE,
        color="#333333",
    )  # fmt: skip
    part_of(workers, point.text)


def _legend(axes: Axes, points: list[Point], colors: dict[str, str]) -> None:
    """Draw a legend of orders (markers) and series (colors) above the panel."""
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
            handles=handles, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=4, fontsize=6, frameon=False,
            borderpad=0, handletextpad=0.3, columnspacing=1.0, handlelength=1.2,
        )  # fmt: skip


_ALT = (
    "The fewest bits that are certified (filled markers) or open (hollow markers) for the {metric}, against "
)
PLOTS = [
    Plot(
        "min_bits_vs_workers",
        "Fewest bits for the {metric} against workers",
        f"{_ALT}the number of workers, with a line for each way of scaling.",
        "fp32 and other formats at two numbers of workers or more",
        draw_workers,
        "workers",
    ),
    Plot(
        "fewest_bits_vs_chain",
        "Fewest bits for the {metric} against the longest chain of additions",
        f"{_ALT}the longest chain of rounded additions that a gradient passes, with a point for each number of workers "
        "and order of summation.",
        "runs with fp32 whose recorded longest chains of rounded additions differ",
        draw_chains,
        "workers",
    ),
]
