"""Plot the metric against the bit width, with a line for each gradient scaling.

The x axis has one slot per format, because formats of the same width can differ. A line connects the best formats of
all widths. A further line shows the baseline, with the margin as a band.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cpdrun.report.plots import NotDrawnError, Plot
from cpdrun.report.plots._metric_axis import MetricAxis
from cpdrun.report.plots._panels import caption, grid, height_pt, seed_mark, title
from cpdrun.report.style import COLUMN_IN, FP32, Style, strategy_styles
from cpdrun.study import formats
from cpdrun.study.axes import short
from cpdrun.study.group import Facet, Group
from cpdrun.study.study import Study

DIVERGED = "\N{MULTIPLICATION SIGN}"
# The additional space between slots of different bit widths, in slots.
_GAP = 0.7
# The distance between the points of two strategies in the same slot, in slots.
_DODGE = 0.26
# The width of a letter in the names of lines. The names are written to the left of the first slot.
_LETTER_IN = 0.064
# With more slots than this, the picture is wider than a paper's column.
_SLOTS_IN_A_COLUMN = 6
# With more slots than this, format names are rotated and points have no numbers.
_MOST_SLOTS_UPRIGHT = 14
# Longer format names are shortened to this many letters.
_MOST_LETTERS = 18
# Format names are rotated if the number of slots times the length of the longest name exceeds this limit.
_MOST_LETTERS_UPRIGHT = 60


def draw(study: Study) -> Figure:
    """Draw the metric against the bit width, with a panel per facet.

    Raises:
        NotDrawnError: No format other than the baseline has a value.
    """
    bits = _bits(study)
    slots = _slots(bits)
    if not slots:
        raise NotDrawnError("no format other than the baseline has a value of the metric yet")
    facets = [facet for facet in study.facets if facet.strategies]
    width_in = COLUMN_IN * min(max(len(slots) / _SLOTS_IN_A_COLUMN, 1.0), 2.0)
    figure, parts = grid(facets, width_in, 2.6, columns=2 if width_in == COLUMN_IN else 1)
    for part, facet in parts:
        axis = MetricAxis(part, study)
        _panel(axis, facet, slots, bits, width_in)
        title(part, facet, facets)
    caption(
        figure,
        study,
        "accuracy_vs_bits",
        facets,
        is_broken=len(axis.parts) > 1,
        hybrid="; ".join(dict.fromkeys(group.hybrid for group in study.groups if group.hybrid)),
        has_diverged=any(group.diverged for group in study.groups),
    )
    return figure


Bits = dict[str, float | None]


def _bits(study: Study) -> Bits:
    """Return the bit width of each format, fewest first.

    For a recipe, these are the mean bits of its operands, unless they differ between the groups. Then it is the planned
    bit width, as in `formats.bits`.
    """
    found: dict[str, set[float | None]] = {}
    for group in study.groups:
        if group.values and not group.is_baseline:
            found.setdefault(group.format, set()).add(group.bits)
    bits = {name: widths.pop() if len(widths) == 1 else formats.bits(name) for name, widths in found.items()}
    return dict(
        sorted(bits.items(), key=lambda item: (item[1] is None, item[1] or 0, formats.order(item[0])))
    )


def _slots(bits: Bits) -> dict[str, float]:
    """Return the x coordinate of each format's slot. Widths are further apart than formats."""
    slots: dict[str, float] = {}
    x, last = 0.0, None
    for name, width in bits.items():
        if slots:
            x += 1.0 if width == last else 1.0 + _GAP
        slots[name], last = x, width
    return slots


def _panel(axis: MetricAxis, facet: Facet, slots: dict[str, float], bits: Bits, width_in: float) -> None:
    last = max(slots.values())
    longest = max(map(len, [*facet.strategies, axis.study.baseline_name]))
    names_share = (0.1 + _LETTER_IN * longest) / (width_in - 0.45)
    left = (0.45 + min(names_share, 0.5) * (last + 0.6)) / (1 - min(names_share, 0.5))
    axis.parts[0].set_xlim(-left, last + 0.6)
    names: list[tuple[float, Style, Sequence[Group]]] = []
    if facet.baseline is not None:
        axis.band(facet.baseline, (-0.4, last + 0.6))
        names.append((axis.y(facet.baseline), replace(FP32, label=axis.study.baseline_name), ()))
    for name, groups in reversed(facet.strategies.items()):  # Strategies with APS are drawn last, on top.
        _line(axis, groups, slots, bits)
        names.append((axis.y(groups[0]), strategy_styles(axis.study)[name], groups))
    if len(slots) <= _MOST_SLOTS_UPRIGHT:
        _figures(axis, facet, slots)
    axis.names(-0.5, names)
    _format_axis(axis.parts[-1], slots, bits)


def _line(axis: MetricAxis, groups: list[Group], slots: dict[str, float], bits: Bits) -> None:
    study = axis.study
    better = max if study.metric.higher_is_better else min
    best: dict[float | None, Group] = {}
    for group in sorted(groups, key=lambda group: slots[group.format]):
        size = bits[group.format]
        best[size] = better(best.get(size, group), group, key=lambda group: group.mean)
    style = strategy_styles(study)[groups[0].strategy]
    for here, there in pairwise(best.values()):
        start, end = ((_x(study, group, slots), axis.y(group)) for group in (here, there))
        axis.segment(start, end, style, (here, there))
    for group in groups:
        axis.point(_x(study, group, slots), group, style)


def _x(study: Study, group: Group, slots: dict[str, float]) -> float:
    """Return a group's x coordinate. Strategies of one slot are drawn side by side."""
    names = list(strategy_styles(study))
    return slots[group.format] + _DODGE * ((len(names) - 1) / 2 - names.index(group.strategy))


def _figures(axis: MetricAxis, facet: Facet, slots: dict[str, float]) -> None:
    """Label each point with its height: above it at the highest point of a slot, and below it at the others."""
    metric = axis.study.metric
    for name in slots:
        here = [group for groups in facet.strategies.values() for group in groups if group.format == name]
        for rank, group in enumerate(sorted(here, key=axis.y, reverse=True)):
            text = (
                metric.show(axis.y(group) / metric.scale)
                + (DIVERGED if group.diverged else "")
                + seed_mark(axis.study, group)
            )
            color = strategy_styles(axis.study)[group.strategy].color
            axis.write(_x(axis.study, group, slots), group, text, color, above=rank == 0)


def _format_axis(axes: Axes, slots: dict[str, float], bits: Bits) -> None:
    """Label each slot with its format, and each group of slots with its bit width."""
    names = [short(name, _MOST_LETTERS) for name in slots]
    crowded = len(slots) > _MOST_SLOTS_UPRIGHT or len(names) * max(map(len, names)) > _MOST_LETTERS_UPRIGHT
    axes.set_xticks(list(slots.values()), names)
    axes.tick_params(axis="x", length=0, pad=2, rotation=90 if crowded else 0)
    below = 4 + max(map(height_pt, axes.get_xticklabels())) if crowded else 13
    for width in dict.fromkeys(bits.values()):
        group = [x for name, x in slots.items() if bits[name] == width]
        axes.annotate(
            "unknown" if width is None else f"{width:.3g}" if crowded else f"{width:.3g} bits",
            ((group[0] + group[-1]) / 2, 0),
            xycoords=("data", "axes fraction"),
            xytext=(0, -below),
            textcoords="offset points",
            ha="center",
            va="top",
            fontweight="bold",
        )


PLOTS = [
    Plot(
        "accuracy_vs_bits",
        "{metric} against bits",
        "The {metric} of each format, with the fewest bits on the left and a line for each way of scaling. A dashed "
        "line is the margin.",
        "runs of reduced formats",
        draw,
        "enough",
    )
]
