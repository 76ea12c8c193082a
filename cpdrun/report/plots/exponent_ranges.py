"""Plot the exponents of gradients next to the ranges of formats, to show why a format fails and how APS helps.

The left panel is a heat map. For each layer, it shows the powers of two between the smallest and the largest gradient,
with one line per epoch from the first at the top to the last at the bottom. The bars above it show the unscaled range
of each format. The blue lines show to where APS shifts the range of the narrowest format: the top of the range moves to
the largest gradient of the layer (shift = emax - E). The right panel shows the share of gradients that underflow in
each format.

The plot reads `layers` in metrics.jsonl: {name: {"exponent_min", "exponent_max", "underflow", "overflow"}}. The
exponents are floor(log2 |g|) of the smallest and largest nonzero gradient. The other figures are shares from 0 to 1.
"""

import math
from collections import defaultdict
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cpdrun.record import EpochRow
from cpdrun.report.plots import NotDrawnError
from cpdrun.report.plots._grid import caption
from cpdrun.report.result_text import describe_group
from cpdrun.report.style import COLUMN_IN, FIGURE_SIZE, FP32, WITH_APS, strategy_styles
from cpdrun.report.svg import hover
from cpdrun.study.axes import formats
from cpdrun.study.axes.titles import plain, short
from cpdrun.study.groups.group import Facet, Group
from cpdrun.study.study import Study

TITLE = "Why: the gradients' exponents"
QUESTION = "why"
ALT = (
    "The powers of two that each layer's gradients span, epoch by epoch, beside the range of each "
    "format, and the share that each lost as too small."
)

_MOST_LAYERS = 24
# The page replaces pure white and black by the colors of its theme, so these colors differ from both a little.
_ON_DARK, _ON_LIGHT = "#fefefe", "#010101"
# The recorded figures of one epoch, by layer and key.
Layers = dict[str, dict[str, Any]]


def draw(study: Study) -> Figure:
    """Return the figure for the first facet whose runs recorded exponents.

    Raises:
        NotDrawnError: No run recorded the exponents of its layers, or all exponents are unknown.
    """
    facet, recorded = _first_recorded(study)
    source = max(recorded, key=lambda group: (formats.bits(group.format) or 0, not group.aps))
    epochs = _layers(study.history(source, 1))  # The heat map shows a single run.
    every = math.ceil(len(epochs[-1]) / _MOST_LAYERS)
    layers = list(epochs[-1])[::every]
    compared = [group for group in recorded if not group.is_baseline and study.bits_axis.is_of_gradients]
    reduced = [group for group in compared if formats.is_floating(group.format)]
    names = sorted({group.format for group in reduced}, key=formats.order)
    height_in = 1.3 + 0.11 * len(names) + 0.2 * len(layers)
    figure = Figure(figsize=(2 * COLUMN_IN, height_in), layout="constrained")
    heights = [0.11 * len(names) + 0.1, 0.2 * len(layers)]
    (top, corner), (left, right) = figure.subplots(2, 2, height_ratios=heights, width_ratios=[3, 2])
    corner.remove()
    top.sharex(left)
    _heat_map(left, epochs, layers)
    if names:
        _format_bars(top, names)
        _shifted_range(left, epochs, layers, names[0])
        _lost(right, study, [(group, recorded[group]) for group in reduced], layers)
    top.set_title(
        f"gradients of {describe_group(study, source).split(':')[0][:90]}", loc="left", fontsize=6.5
    )
    caption(
        figure,
        [facet],
        "left: from the smallest to the largest gradient of a layer, an epoch a line, the last one darkest",
        f"blue: where APS puts the range of {names[0]}" if names else "",
        "right: share of gradients that became 0, mean over epochs and seeds",
        f"one layer of {every} is shown" if every > 1 else "",
    )
    return figure


def _first_recorded(study: Study) -> tuple[Facet, dict[Group, list[Layers]]]:
    for facet in study.facets:
        found = {group: layers for group in facet.groups if (layers := _layers(study.history(group)))}
        if found:
            return facet, found
    raise NotDrawnError("no run recorded its layers' exponents")


def _layers(history: list[EpochRow]) -> list[Layers]:
    """Return the recorded layers of each epoch that has any."""
    recorded = [row.layers or {} for row in history]
    epochs = [{name: one for name, one in layers.items() if isinstance(one, dict)} for layers in recorded]
    return [layers for layers in epochs if layers]


def _heat_map(axes: Axes, epochs: list[Layers], layers: list[str]) -> None:
    ranges = [[_range(epoch, layer) for epoch in epochs] for layer in layers]
    known = [pair for row in ranges for pair in row if pair]
    if not known:
        raise NotDrawnError("the layers' exponents are all unknown")
    low, high = min(low for low, _ in known), max(high for _, high in known)
    n = len(epochs)
    image = np.full((len(layers) * n, high - low + 1), np.nan)
    for i, row in enumerate(ranges):
        for j, pair in enumerate(row):
            if pair:
                image[i * n + j, pair[0] - low : pair[1] - low + 1] = 0.35 + 0.5 * (j + 1) / n
    extent = (low - 0.5, high + 0.5, len(layers) - 0.5, -0.5)
    axes.imshow(image, cmap="Greys", vmin=0, vmax=1, aspect="auto", extent=extent, interpolation="nearest")
    axes.hlines(np.arange(len(layers) - 1) + 0.5, *extent[:2], color="white", linewidth=1.5)
    axes.set_yticks(range(len(layers)), [plain(layer[-28:]) for layer in layers])
    axes.set_xlabel("gradient, as a power of two")
    axes.grid(visible=False)


def _range(epoch: Layers, layer: str) -> tuple[int, int] | None:
    """Return the exponents of the smallest and largest gradient, or None for a layer without nonzero gradients."""
    values = epoch.get(layer) or {}
    low, high = values.get("exponent_min"), values.get("exponent_max")
    return None if low is None or high is None else (int(low), int(high))


def _format_bars(axes: Axes, names: list[str]) -> None:
    """Draw the range of each format, from its smallest subnormal to its largest value."""
    for i, name in enumerate(names):
        low, high = _limits(name)
        bar = axes.barh(i, high - low, left=low, height=0.75, color=FP32.color, alpha=0.45)[0]
        hover(bar, f"{name}: from 2^{low} to below 2^{high + 1}")
        axes.annotate(
            short(name),
            (high, i),
            (2, 0),
            textcoords="offset points",
            va="center",
            fontsize=FIGURE_SIZE,
        )
    axes.set_yticks([])
    axes.tick_params(axis="x", length=0, labelbottom=False)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.grid(visible=False)


def _shifted_range(axes: Axes, epochs: list[Layers], layers: list[str], name: str) -> None:
    low, high = _limits(name)
    for i, layer in enumerate(layers):
        if pair := _range(epochs[-1], layer):
            y, right = i + 0.28, pair[1] + 0.5
            line = axes.plot(
                [right - (high - low) - 1, right], [y, y], "|-", color=WITH_APS.color, linewidth=1.6
            )[0]
            hover(
                line,
                f"{plain(layer)}: {name} with APS reaches from 2^{pair[1] - (high - low)} to 2^{pair[1]}",
            )
    axes.autoscale(enable=True, axis="x")


def _limits(name: str) -> tuple[int, int]:
    """Return the exponents of the smallest subnormal and of the largest value of a format."""
    fmt = formats.parse(name)
    return fmt.emin - fmt.mantissa_bits, fmt.emax


def _lost(axes: Axes, study: Study, recorded: list[tuple[Group, list[Layers]]], layers: list[str]) -> None:
    names = list(strategy_styles(study))
    columns = sorted(
        recorded, key=lambda pair: (names.index(pair[0].strategy), formats.order(pair[0].format))
    )
    lost = np.full((len(layers), len(columns)), np.nan)
    for j, (_, epochs) in enumerate(columns):
        shares = defaultdict(list)
        for epoch in epochs:
            for layer, values in epoch.items():
                if isinstance(values.get("underflow"), int | float):
                    shares[layer].append(values["underflow"])
        lost[:, j] = [np.mean(shares[layer]) if shares[layer] else np.nan for layer in layers]
    axes.imshow(lost, cmap="cividis_r", vmin=0, vmax=1, aspect="auto")
    for (i, j), share in np.ndenumerate(lost):
        if np.isfinite(share):
            color = _ON_DARK if share > 0.5 else _ON_LIGHT
            axes.text(j, i, f"{100 * share:.0f}", ha="center", va="center", fontsize=FIGURE_SIZE, color=color)
    axes.set_xticks(range(len(columns)), [short(group.name) for group, _ in columns], rotation=90)
    for tick, (group, _) in zip(axes.get_xticklabels(), columns, strict=True):
        tick.set_color(strategy_styles(study)[group.strategy].color)
    axes.set_yticks(range(len(layers)), [])
    axes.set_xlabel("lost as too small, %; " + ", ".join(strategy_styles(study)))
    axes.grid(visible=False)
