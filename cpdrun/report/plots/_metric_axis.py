"""A y axis for the metric, broken in two if the values form distant clusters.

Most runs train about as well as the baseline or not at all. On one scale from 0 to 100%, the good runs and their error
bars could not be told apart.
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
from cpdrun.report.plots._panels import height_pt, spread
from cpdrun.report.result_text import describe_group
from cpdrun.report.style import FIGURE_SIZE, FP32, NAME, RC, Style, ink
from cpdrun.report.svg import hover, name_of, part_of
from cpdrun.stats.evidence import Verdict
from cpdrun.study.group import Group
from cpdrun.study.study import Study

Point = tuple[float, float]
MARGIN_DASH = (0, (4, 2))
ERROR_BAR: dict[str, Any] = {"capsize": 2.0, "elinewidth": 0.9}
_PALE = 0.45
# The axis leaves room for error bars of up to this many margins.
_LONGEST_BAR = 3
_HALO = [withStroke(linewidth=1.6, foreground="white")]


def marker_style(study: Study, group: Group, style: Style, verdict: Verdict | None = None) -> dict[str, Any]:
    """Return the matplotlib properties of a group's marker.

    Markers of the baseline and of certified groups are filled. Others are hollow, and those of refuted groups are also
    pale. `verdict` defaults to the study's verdict on the group.
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
    """The y axis of one panel, in one part or in two.

    Values are in the unit in which the metric is shown.

    Attributes:
        study: The study that is drawn.
        parts: One or two matplotlib axes, from top to bottom, with a common x axis.
        heights: The relative heights of the parts. The part with the best values is twice as high.
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
        """Return the part that shows the value `y`."""
        return next(axes for axes in self.parts if axes.get_ylim()[0] <= y <= axes.get_ylim()[1])

    def y(self, group: Group) -> float:
        return span(self.study, group)[0]

    def band(self, baseline: Group, x: Point) -> None:
        """Draw the baseline and the margin from x[0] to x[1].

        A solid line is the baseline's mean, a dashed line is the worst value within the margin, and a band fills the
        space between them.
        """
        mean, low, high = margin_band(self.study, baseline)
        axes = self.at(mean)
        axes.hlines(mean, *x, color=FP32.color, linewidth=0.8)
        if high > low:
            axes.fill_between(x, low, high, color=FP32.color, alpha=0.15, linewidth=0)
            axes.hlines(
                low if mean == high else high, *x, color=FP32.color, linewidth=0.7, linestyle=MARGIN_DASH
            )

    def point(self, x: float, group: Group, style: Style, verdict: Verdict | None = None) -> None:
        """Draw a marker at a group's mean gap, and the gap's interval as an error bar (see `span`)."""
        mean, low, high = span(self.study, group)
        axes, text = self.at(mean), describe_group(self.study, group)
        look = marker_style(self.study, group, style, verdict)
        (mark,) = axes.plot(x, mean, linestyle="none", zorder=4, **look)
        hover(mark, text)
        if high > low:
            middle, half = (low + high) / 2, (high - low) / 2
            _, caps, bars = axes.errorbar(
                x, middle, half, fmt="none", ecolor=style.color, alpha=look["alpha"], **ERROR_BAR, zorder=4
            )
            for artist in (*caps, *bars):
                part_of(artist, text)

    def segment(self, here: Point, there: Point, style: Style, of: Sequence[Group] = ()) -> None:
        """Draw a line between two points, across the break of the axis if necessary.

        The page fades the line if the reader filters out one of the groups `of`.
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
        """Write text above or below a group's point and error bar.

        If the error bar leaves the axes, the text is next to the point. `color` is the color of the point, which is
        darkened until it is legible.
        """
        mean, *ends = span(self.study, group)
        low, high = min(mean, *ends), max(mean, *ends)
        axes = self.at(mean)
        bottom, top = axes.get_ylim()
        room = (1.2 * FIGURE_SIZE + 4) * (top - bottom) / height_pt(axes)
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
            in_layout=False,  # Leaving out the text inside the axes makes the layout faster.
        )
        part_of(written, describe_group(self.study, group))

    def names(self, x: float, names: list[tuple[float, Style, Sequence[Group]]]) -> None:
        """Write the names of lines, right-aligned at x, without overlaps.

        Each entry of `names` has the line's y coordinate, its style (which contains the name) and its groups.
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
    """Return the limits of each part of the y axis, upper part first.

    There are two parts if the best means form a narrow cluster and the next mean is far away. An error bar is cut off
    where it enters the other part or is more than `_LONGEST_BAR` margins away from its mean.
    """
    spans = [
        margin_band(study, group) if group.is_baseline else _extent(study, group)
        for group in study.groups
        if group.values
    ]
    if study.metric.higher_is_better:
        return _ranges(spans)
    return [(-high, -low) for low, high in reversed(_ranges([(-m, -high, -low) for m, low, high in spans]))]


def _ranges(spans: list[tuple[float, float, float]]) -> list[tuple[float, float]]:
    """Return the ranges for a metric whose higher values are better.

    Each span is (mean, lowest value, highest value) of a group.
    """
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
    """Return the baseline's mean, and the range of values that are within the margin.

    Without a margin, both ends of the range are the mean.
    """
    mean = study.metric.scale * baseline.mean
    margin = study.tolerance if study.tolerance > 0 else 0.0
    return (mean, mean - margin, mean) if study.metric.higher_is_better else (mean, mean, mean + margin)


def _extent(study: Study, group: Group) -> tuple[float, float, float]:
    """Return the position of a group's point, and the range of its point and error bar.

    The range ends `_LONGEST_BAR` margins away from the point.
    """
    mean, *bar = span(study, group)
    longest = _LONGEST_BAR * study.tolerance if study.tolerance > 0 else math.inf
    return mean, max(min(mean, *bar), mean - longest), min(max(mean, *bar), mean + longest)


def span(study: Study, group: Group) -> tuple[float, float, float]:
    """Return the position of a group's point, and the lower and upper end of its error bar.

    They are the mean gap and its interval, added to the baseline's mean, so they can be compared with the margin even
    if the group and the baseline have different seeds. Without an interval, all three are the group's own mean.
    """
    scale, mean = study.metric.scale, study.metric.scale * group.mean
    baseline, judged = study.baselines.get(group), study.judged.get(group)
    if baseline is None or judged is None or not math.isfinite(judged.judgment.high - judged.judgment.low):
        return mean, mean, mean
    sign = 1 if study.metric.higher_is_better else -1  # A positive gap is better.
    judgment = judged.judgment
    mean, *ends = (
        scale * (baseline.mean + sign * gap) for gap in (judgment.mean, judgment.low, judgment.high)
    )
    return mean, min(ends), max(ends)


def _padded(
    lows: list[float], highs: list[float], room: float = 0.12, least: float = 0.0
) -> tuple[float, float]:
    """Return the limits of an axis that shows `lows` and `highs` and has room for labels.

    The axis has a minimum height, so that noise does not fill it: `least`, or 2% of the highest value. `room` is added
    at both ends, as a fraction of the height.
    """
    low, high = min(lows), max(highs)
    missing = max(0.02 * abs(high), least, 1e-6) - (high - low)
    low, high = low - max(missing, 0) / 2, high + max(missing, 0) / 2
    return low - room * (high - low), high + room * (high - low)


def _set_ticks(axes: Axes, study: Study) -> None:
    low, high = axes.get_ylim()
    if study.metric.is_fraction:  # The axis can extend beyond 0% and 100%, but a share has no values there.
        low, high = max(low, 0.0), min(high, 100.0)
    ticks = MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(low, high)
    axes.set_yticks([tick for tick in ticks if low <= tick <= high])
    axes.yaxis.set_major_formatter("{x:g}")


def _mark_break(upper: Axes, lower: Axes) -> None:
    upper.spines["bottom"].set_visible(False)
    stroke: dict[str, Any] = {
        "marker": [(-1, -0.6), (1, 0.6)],
        "markersize": 6,
        "markeredgewidth": 0.7,
        "color": "black",
    }
    upper.plot([0], [0], transform=upper.transAxes, linestyle="none", clip_on=False, **stroke)
    lower.plot([0], [1], transform=lower.transAxes, linestyle="none", clip_on=False, **stroke)
