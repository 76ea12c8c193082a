"""Provide a y axis for the metric, which is broken if the values form two clusters that are far apart.

Most runs train either about as well as the baseline or not at all. On one scale from 0 to 100 %, the differences that
matter and their error bars would be too small to see.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.patches import ConnectionPatch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from cpdrun.report.plots._axes import metric_axis
from cpdrun.report.plots._panels import spread
from cpdrun.report.result_text import describe_group
from cpdrun.report.style import FIGURE_SIZE, FP32, NAME, RC, Style, ink
from cpdrun.report.svg import hover, name_of, part_of
from cpdrun.stats.evidence import Verdict
from cpdrun.study.group import Group
from cpdrun.study.study import Study

Point = tuple[float, float]
MARGIN_DASH = (0, (4, 2))
_PALE = 0.45
# The longest bar for which the axis leaves room, in margins.
_LONGEST_BAR = 3
_HALO = [withStroke(linewidth=1.6, foreground="white")]


def marker_style(study: Study, group: Group, style: Style, verdict: Verdict | None = None) -> dict[str, Any]:
    """Return the matplotlib properties of a group's marker.

    The marker is filled for the baseline and certified groups, hollow for open groups, and pale for refuted groups.

    Args:
        study: The study that is drawn.
        group: The group.
        style: The color and the marker.
        verdict: The verdict of the group. By default it is the verdict of the study.
    """
    if verdict is None and group in study.judged:
        verdict = study.judged[group].verdict
    filled = group.is_baseline or verdict is Verdict.CERTIFIED
    return {
        "color": style.color,
        "marker": style.marker,
        "markerfacecolor": style.color if filled else "white",
        "alpha": _PALE if verdict is Verdict.REFUTED else 1.0,
    }


class MetricAxis:
    """The axes of one panel, broken in two if the values form two clusters.

    Attributes:
        study: The study that is drawn.
        parts: The one or two axes from top to bottom. They share the x axis, and the axes with the best values are
            higher.
        heights: The relative heights of the parts.
    """

    def __init__(self, figure: SubFigure, study: Study):
        self.study = study
        ranges = value_ranges(study)
        heights = [2, 1] if study.metric.higher_is_better else [1, 2]
        self.heights = heights if len(ranges) == 2 else [1]
        rows = figure.subplots(len(ranges), 1, squeeze=False, sharex=True, height_ratios=self.heights)
        self.parts: list[Axes] = list(rows[:, 0])
        for axes, limits in zip(self.parts, ranges, strict=True):
            axes.set_ylim(limits)
            _set_ticks(axes, study)
        for axes in self.parts[:-1]:
            axes.tick_params(axis="x", which="both", length=0, labelbottom=False)
        self.parts[self.heights.index(max(self.heights))].set_ylabel(metric_axis(study.metric).title)
        if len(self.parts) > 1:
            _mark_break(*self.parts)

    def at(self, y: float) -> Axes:
        """Return the part that shows the value `y`, which is in the unit in which the metric is shown."""
        return next(axes for axes in self.parts if axes.get_ylim()[0] <= y <= axes.get_ylim()[1])

    def y(self, group: Group) -> float:
        """Return the mean of a group in the unit in which the metric is shown."""
        return self.study.metric.scale * group.mean

    def band(self, baseline: Group, x: Point) -> None:
        """Draw the baseline from x[0] to x[1]: its mean as a line, the margin as a dashed line, a band between them."""
        mean, low, high = margin_band(self.study, baseline)
        axes = self.at(mean)
        axes.hlines(mean, *x, color=FP32.color, linewidth=0.8)
        if high > low:
            axes.fill_between(x, low, high, color=FP32.color, alpha=0.15, linewidth=0)
            axes.hlines(
                low if mean == high else high, *x, color=FP32.color, linewidth=0.7, linestyle=MARGIN_DASH
            )

    def point(self, x: float, group: Group, style: Style, verdict: Verdict | None = None) -> None:
        """Draw the mean of a group, with the interval of its gap as bars."""
        mean, low, high = span(self.study, group)
        line, caps, bars = self.at(mean).errorbar(
            x,
            mean,
            yerr=[[mean - low], [high - mean]] if high > low else None,
            capsize=2.0,
            elinewidth=0.9,
            zorder=4,
            **marker_style(self.study, group, style, verdict),
        )
        text = describe_group(self.study, group)
        hover(line, text)
        for artist in (*caps, *bars):
            part_of(artist, text)

    def segment(self, here: Point, there: Point, style: Style, of: Sequence[Group] = ()) -> None:
        """Draw a straight line between the points of two groups, also across the break of the axis.

        Args:
            here: The first point.
            there: The second point.
            style: The color and the dash of the line.
            of: The groups of the points. The page fades the line if the reader filters one of the groups out.
        """
        a, b = self.at(here[1]), self.at(there[1])
        if a is b:
            (line,) = a.plot(
                *zip(here, there, strict=True), color=style.color, linestyle=style.dash, zorder=3
            )
            part_of(line, *(describe_group(self.study, group) for group in of))
            return
        width = RC["lines.linewidth"]
        across = {"color": style.color, "linestyle": style.dash, "linewidth": width, "alpha": 0.55}
        patch = ConnectionPatch(here, there, "data", "data", axesA=a, axesB=b, **across)
        part_of(a.figure.add_artist(patch), *(describe_group(self.study, group) for group in of))

    def write(self, x: float, group: Group, text: str, color: str, above: bool) -> None:
        """Write text at the end of a point's error bar, or next to the point if the bar leaves the axes.

        Args:
            x: The x coordinate of the point.
            group: The group of the point.
            text: The text.
            color: The color of the point. The text is darkened if it would be illegible.
            above: Whether the text is above or below the point.
        """
        mean, low, high = span(self.study, group)
        axes = self.at(mean)
        bottom, top = axes.get_ylim()
        points_high = axes.get_window_extent().height * 72 / axes.figure.dpi
        room = (1.2 * FIGURE_SIZE + 4) * (top - bottom) / points_high
        fits = high < top if above else low > bottom
        end, offset, align = (
            (min(high, top - room), 3, "bottom") if above else (max(low, bottom + room), -3, "top")
        )
        written = axes.annotate(
            text,
            (x, end if fits else mean),
            xytext=(0, offset) if fits else (4, 0),
            textcoords="offset points",
            ha="center" if fits else "left",
            va=align if fits else "center",
            fontsize=FIGURE_SIZE,
            color=ink(color),
            path_effects=_HALO,
            zorder=5,
            in_layout=False,  # The layout is faster without texts inside of axes.
        )
        part_of(written, describe_group(self.study, group))

    def names(self, x: float, names: list[tuple[float, Style, Sequence[Group]]]) -> None:
        """Write the names of lines, right-aligned at x, and move names apart if they would overlap.

        Args:
            x: The x coordinate of the right end of the names.
            names: The height, the style and the groups of each line.
        """
        for axes, height in zip(self.parts, self.heights, strict=True):
            here = [name for name in names if self.at(name[0]) is axes]
            low, high = axes.get_ylim()
            least = 0.08 * (high - low) * sum(self.heights) / height
            places = spread([y for y, _, _ in here], least, low + least / 2, high - least / 2)
            for y, (_, style, groups) in zip(places, here, strict=True):
                name = axes.text(x, y, style.label, ha="right", va="center", color=style.ink, **NAME)
                name_of(name, *(describe_group(self.study, group) for group in groups))


def value_ranges(study: Study) -> list[tuple[float, float]]:
    """Return the ranges of the y axis, upper part first.

    There are two ranges if the best cluster of means is narrow and the next mean is far away, and one range otherwise.
    A bar that is longer than `_LONGEST_BAR` margins, or that ends in the other part, is cut off.
    """
    spans = [
        margin_band(study, group) if group.is_baseline else _cut(study, span(study, group))
        for group in study.groups
        if group.values
    ]
    if study.metric.higher_is_better:
        return _ranges(spans)
    return [(-high, -low) for low, high in reversed(_ranges([(-m, -high, -low) for m, low, high in spans]))]


def _ranges(spans: list[tuple[float, float, float]]) -> list[tuple[float, float]]:
    """Return the ranges of a metric of which higher values are better, from means and the ends of their intervals."""
    means = sorted(mean for mean, _, _ in spans)
    gap, middle = max(((b - a, (a + b) / 2) for a, b in pairwise(means)), default=(0.0, 0.0))
    heap, extent = [mean for mean in means if mean > middle], means[-1] - means[0]
    if len(heap) < 2 or gap < 0.3 * extent or heap[-1] - heap[0] > 0.25 * extent:
        return [_padded([low for _, low, _ in spans], [high for _, _, high in spans])]
    upper, lower = [s for s in spans if s[0] > middle], [s for s in spans if s[0] <= middle]
    top = _padded([max(low, middle) for _, low, _ in upper], [high for _, _, high in upper])
    rest = [low for _, low, _ in lower], [min(high, middle) for _, _, high in lower]
    low, high = _padded(*rest, room=0.24, least=0.25 * gap)
    return [top, (low, min(high, top[0]))]


def margin_band(study: Study, baseline: Group) -> tuple[float, float, float]:
    """Return the baseline's mean and the ends of the band of values that are at most the margin worse."""
    mean = study.metric.scale * baseline.mean
    margin = study.tolerance if study.tolerance > 0 else 0.0
    return (mean, mean - margin, mean) if study.metric.higher_is_better else (mean, mean, mean + margin)


def _cut(study: Study, ends: tuple[float, float, float]) -> tuple[float, float, float]:
    """Return a mean and the ends of its bars, which are cut off at `_LONGEST_BAR` margins from the mean."""
    longest = _LONGEST_BAR * study.tolerance if study.tolerance > 0 else math.inf
    mean, low, high = ends
    return mean, max(low, mean - longest), min(high, mean + longest)


def span(study: Study, group: Group) -> tuple[float, float, float]:
    """Return a group's mean and the ends of the interval of its gap, drawn at the mean, in shown units.

    Without an interval, as for the baseline, the ends are the mean.
    """
    mean = study.metric.scale * group.mean
    if group not in study.judged:
        return mean, mean, mean
    judgement = study.judged[group].judgement
    below, above = (study.metric.scale * (end - judgement.mean) for end in (judgement.low, judgement.high))
    if not math.isfinite(above - below):
        return mean, mean, mean
    # The interval is valid after any number of pairs, so it need not contain the mean over all pairs.
    below, above = min(below, 0.0), max(above, 0.0)
    low, high = (below, above) if study.metric.higher_is_better else (-above, -below)
    return mean, mean + low, mean + high


def _padded(
    lows: list[float], highs: list[float], room: float = 0.12, least: float = 0.0
) -> tuple[float, float]:
    """Return a range with room for the numbers above and below the points.

    The range has a minimum height, so that noise does not fill it.
    """
    low, high = min(lows), max(highs)
    missing = max(0.02 * abs(high), least, 1e-6) - (high - low)
    low, high = low - max(missing, 0) / 2, high + max(missing, 0) / 2
    return low - room * (high - low), high + room * (high - low)


def _set_ticks(axes: Axes, study: Study) -> None:
    low, high = axes.get_ylim()
    if study.metric.is_fraction:  # A share has no values below 0 % or above 100 %.
        low, high = max(low, 0.0), min(high, 100.0)
    ticks = MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(low, high)
    axes.set_yticks([tick for tick in ticks if low <= tick <= high])
    axes.yaxis.set_major_formatter("{x:g}")


def _mark_break(upper: Axes, lower: Axes) -> None:
    """Draw two short strokes at the break of the y axis."""
    upper.spines["bottom"].set_visible(False)
    stroke: dict[str, Any] = {
        "marker": [(-1, -0.6), (1, 0.6)],
        "markersize": 6,
        "markeredgewidth": 0.7,
        "color": "black",
    }
    upper.plot([0], [0], transform=upper.transAxes, linestyle="none", clip_on=False, **stroke)
    lower.plot([0], [1], transform=lower.transAxes, linestyle="none", clip_on=False, **stroke)
