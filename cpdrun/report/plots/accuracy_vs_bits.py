"""Accuracy against bits, with APS and without; fp32 as a band.

The x axis has one slot for each format, formats of equal size side by side, fewest bits on the left: several
formats share a number of bits, and differ. The line goes through the best format of each size. Where the
values fall into two heaps far apart (trains as fp32 does, or not at all) the y axis is broken between them:
on one scale from 0 to 100 % the differences that matter, and their error bars, cannot be seen.
"""

import math
import textwrap
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import ConnectionPatch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from cpdrun.report import formats
from cpdrun.report.plots import NotDrawnError
from cpdrun.report.study import Facet, Group, Study
from cpdrun.report.style import COLUMN_IN, FP32, RC, Look

DIVERGED = "\N{MULTIPLICATION SIGN}"
_GAP = 0.7  # between sizes, in slots
_DODGE = 0.26  # between the strategies of a slot
_LETTER_IN = 0.064  # width of a letter of the lines' names, which stand left of the first slot
_MOST_PANELS = 12
_SLOTS_IN_A_COLUMN = 6  # more of them: a wider picture
_MOST_SLOTS_UPRIGHT = 14  # more of them: names turned, and no figures at the points
_HALO = [withStroke(linewidth=1.6, foreground="white")]

Range = tuple[float, float]


def draw(study: Study) -> Figure:
    names = {group.format for group in study.groups if group.values and not group.is_baseline}
    if not names:
        raise NotDrawnError("no reduced format has a value yet")
    slots, ranges = _slots(names), _ranges(study)
    facets = [facet for facet in study.facets if facet.strategies]
    left_out, facets = len(facets[_MOST_PANELS:]), facets[:_MOST_PANELS]
    width = COLUMN_IN * min(max(len(slots) / _SLOTS_IN_A_COLUMN, 1.0), 2.0)
    columns = min(len(facets), 2 if width == COLUMN_IN else 1)
    rows = math.ceil(len(facets) / columns)
    figure = Figure(figsize=(width * columns, 2.6 * rows + 0.15), layout="constrained")
    figure.get_layout_engine().set(hspace=0.0, h_pad=0.02)
    outer = figure.subfigures(rows, columns, squeeze=False).flat
    for part, facet in zip(outer, facets, strict=False):
        panels = part.subplots(len(ranges), 1, squeeze=False, height_ratios=[2, 1][: len(ranges)])[:, 0]
        _panel(list(panels), study, facet, slots, ranges, width)
        if len(facets) > 1:
            panels[0].set_title(facet.label, loc="left", color="#333333")
    figure.supxlabel(_caption(study, ranges, left_out), fontsize=5.5, color="#666666")
    return figure


def _slots(names: set) -> dict[str, float]:
    """x of each format's slot: one apart within a size, and a gap between sizes."""
    slots, x, last = {}, 0.0, None
    for name in sorted(names, key=formats.order):
        bits = formats.bits(name)
        if slots:
            x += 1.0 if bits == last else 1.0 + _GAP
        slots[name], last = x, bits
    return slots


def _ranges(study: Study) -> list[Range]:
    """The y axis, upper part first: one range, or two where more than half of the span is empty."""
    spans = [_span(study, group) for group in study.groups if group.values]
    means = sorted(study.metric.scale * group.mean() for group in study.groups if group.values)
    gaps = [(b - a, (a + b) / 2) for a, b in pairwise(means)]
    widest, middle = max(gaps, default=(0.0, 0.0))
    if widest <= 0.5 * (means[-1] - means[0]) or len(means) < 4:
        return [_padded(spans)]
    upper = [span for span in spans if sum(span) / 2 > middle]
    lower = [span for span in spans if sum(span) / 2 <= middle]
    return [_padded(upper, room=0.12), _padded(lower, room=0.24, least=0.25 * widest)]


def _span(study: Study, group: Group) -> Range:
    mean, half = (study.metric.scale * value for value in study.interval(group))
    half = half if math.isfinite(half) else 0.0
    return mean - half, mean + half


def _padded(spans: list[Range], room: float = 0.12, least: float = 0.0) -> Range:
    """Room for the figures above and below the points, and never a range so small that noise fills it."""
    low, high = min(low for low, _ in spans), max(high for _, high in spans)
    missing = max(0.02 * abs(high), least, 1e-6) - (high - low)
    low, high = low - max(missing, 0) / 2, high + max(missing, 0) / 2
    return low - room * (high - low), high + room * (high - low)


def _panel(
    panels: list[Axes],
    study: Study,
    facet: Facet,
    slots: dict[str, float],
    ranges: list[Range],
    width_in: float,
) -> None:
    last = max(slots.values())
    names_in = 0.1 + _LETTER_IN * max(len(name) for name in facet.strategies)
    share = min(0.5, names_in / (width_in - 0.45))
    left = (0.45 + share * (last + 0.6)) / (1 - share)
    names: list[tuple[float, Look]] = []
    for axes, (low, high) in zip(panels, ranges, strict=True):
        axes.set_xlim(-left, last + 0.6)
        axes.set_ylim(low, high)
        _ticks(axes, study)
    if facet.baseline is not None:
        _band(panels, study, facet.baseline, (-0.4, last + 0.6))
        names.append((study.metric.scale * facet.baseline.mean(), FP32))
    for name, groups in reversed(facet.strategies.items()):  # what APS does lies on top
        _line(panels, study, groups, slots, study.looks[name])
        names.append((study.metric.scale * groups[0].mean(), study.looks[name]))
    _figures(panels, study, facet, slots)
    for axes in panels:
        _names(axes, [(y, style) for y, style in names if _holds(axes, y)], ranges)
    _format_axis(panels, slots)
    panels[0].set_ylabel(study.metric.title)
    if len(panels) > 1:
        _break(*panels)


def _holds(axes: Axes, y: float) -> bool:
    low, high = axes.get_ylim()
    return low <= y <= high


def _band(panels: list[Axes], study: Study, baseline: Group, width: Range) -> None:
    bottom, top = _span(study, baseline)
    for axes in panels:
        if _holds(axes, (bottom + top) / 2):
            axes.fill_between(width, bottom, top, color=FP32.color, alpha=0.2, linewidth=0)
            axes.hlines((bottom + top) / 2, *width, color=FP32.color, linewidth=0.8)


def _line(
    panels: list[Axes], study: Study, groups: list[Group], slots: dict[str, float], style: Look
) -> None:
    better = max if study.metric.higher_is_better else min
    best: dict[int | None, Group] = {}
    for group in groups:
        size = formats.bits(group.format)
        best[size] = better(best.get(size, group), group, key=Group.mean)
    for here, there in pairwise(best.values()):
        _segment(panels, _point(study, here, slots), _point(study, there, slots), style)
    for group in groups:
        x, y = _point(study, group, slots)
        low, high = _span(study, group)
        on_line = group is best[formats.bits(group.format)]
        for axes in panels:
            if _holds(axes, y):
                axes.errorbar(
                    x,
                    y,
                    yerr=(high - low) / 2 or None,
                    color=style.color,
                    marker=style.marker,
                    markerfacecolor=style.color if on_line else "white",
                    capsize=2.0,
                    elinewidth=0.9,
                    zorder=4,
                )


def _point(study: Study, group: Group, slots: dict[str, float]) -> Range:
    """The strategies of a slot stand beside each other, so that none hides another's error bar."""
    names = list(study.looks)
    place = (len(names) - 1) / 2 - names.index(group.strategy)
    return slots[group.format] + place * _DODGE, study.metric.scale * group.mean()


def _segment(panels: list[Axes], here: Range, there: Range, style: Look) -> None:
    """A straight line between two points, also from one part of a broken axis to the other."""
    a, b = (next(axes for axes in panels if _holds(axes, y)) for _, y in (here, there))
    if a is b:
        a.plot(*zip(here, there, strict=True), color=style.color, linestyle=style.dash, zorder=3)
        return
    width = RC["lines.linewidth"]
    across = {"color": style.color, "linestyle": style.dash, "linewidth": width, "alpha": 0.55}
    a.figure.add_artist(ConnectionPatch(here, there, "data", "data", axesA=a, axesB=b, **across))


def _ticks(axes: Axes, study: Study) -> None:
    low, high = axes.get_ylim()
    if study.metric.is_fraction:  # there is nothing below 0 or above 100 %
        low, high = max(low, 0.0), min(high, 100.0)
    ticks = MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(low, high)
    axes.set_yticks([tick for tick in ticks if low <= tick <= high])
    axes.yaxis.set_major_formatter("{x:g}")


def _format_axis(panels: list[Axes], slots: dict[str, float]) -> None:
    """Format names under the slots, the number of bits under each group of them."""
    crowded = len(slots) > _MOST_SLOTS_UPRIGHT
    for axes in panels[:-1]:
        axes.set_xticks([])
    axes = panels[-1]
    axes.set_xticks(list(slots.values()), [str(name)[:12] for name in slots])
    axes.tick_params(axis="x", length=0, pad=2, rotation=90 if crowded else 0)
    for bits in dict.fromkeys(formats.bits(name) for name in slots):
        group = [x for name, x in slots.items() if formats.bits(name) == bits]
        axes.annotate(
            "unknown" if bits is None else str(bits) if crowded else f"{bits} bits",
            ((group[0] + group[-1]) / 2, 0),
            xycoords=("data", "axes fraction"),
            xytext=(0, -30 if crowded else -13),
            textcoords="offset points",
            ha="center",
            va="top",
            fontweight="bold",
        )


def _figures(panels: list[Axes], study: Study, facet: Facet, slots: dict[str, float]) -> None:
    """Each mean as a number: above the upper of the two points of a slot, below the lower one."""
    for name in slots if len(slots) <= _MOST_SLOTS_UPRIGHT else ():
        here = [group for groups in facet.strategies.values() for group in groups if group.format == name]
        for rank, group in enumerate(sorted(here, key=Group.mean, reverse=True)):
            x, y = _point(study, group, slots)
            bottom, top = _span(study, group)
            next(axes for axes in panels if _holds(axes, y)).annotate(
                study.metric.show(group.mean()) + (DIVERGED if group.diverged else ""),
                (x, bottom if rank else top),
                xytext=(0, -3 if rank else 3),
                textcoords="offset points",
                ha="center",
                va="top" if rank else "bottom",
                fontsize=5.5,
                color=study.looks[group.strategy].color,
                path_effects=_HALO,
                zorder=5,
            )


def _names(axes: Axes, names: list[tuple[float, Look]], ranges: list[Range]) -> None:
    """Each line's name left of its first point, moved apart where lines start together."""
    low, high = axes.get_ylim()
    share = 1.0 if len(ranges) == 1 else 2 / 3 if (low, high) == ranges[0] else 1 / 3
    least = 0.07 * (high - low) / share
    names = sorted(names, key=lambda name: -name[0])
    heights: list[float] = []
    for y, _ in names:
        heights.append(min(y, heights[-1] - least) if heights else y)
    if heights and heights[-1] < low + least / 2:  # pushed out at the bottom: move all up
        heights = [y + low + least / 2 - heights[-1] for y in heights]
    for y, (_, style) in zip(heights, names, strict=True):
        axes.text(
            -0.5, y, style.label, ha="right", va="center", color=style.color, fontweight="bold", fontsize=6.5
        )


def _break(upper: Axes, lower: Axes) -> None:
    """Two short strokes where the y axis leaves out a range."""
    upper.spines["bottom"].set_visible(False)
    stroke = {
        "marker": [(-1, -0.6), (1, 0.6)],
        "markersize": 6,
        "linestyle": "none",
        "color": "k",
        "clip_on": False,
    }
    upper.plot([0], [0], transform=upper.transAxes, markeredgewidth=0.7, **stroke)
    lower.plot([0], [1], transform=lower.transAxes, markeredgewidth=0.7, **stroke)


def _caption(study: Study, ranges: list[Range], left_out: int) -> str:
    parts = ["line: the best format of each size"]
    if any(len(group.values) > 1 for group in study.groups):
        parts.append(f"bars: {study.ci:g} % interval over seeds")
    if len(ranges) > 1:
        parts.append("y axis broken")
    if any(group.diverged for group in study.groups):
        parts.append(f"{DIVERGED} runs diverged")
    if left_out:
        parts.append(f"{left_out} more panels left out: see the table")
    return "\n".join(textwrap.wrap("; ".join(parts), 72))
