"""Plot the exponents of tensors next to the ranges of formats, to show why a format fails and how a scale helps.

`exponent_ranges` shows the gradients of each layer. In its heat map, each layer has one line per epoch, from the
smallest to the largest gradient. Bars above it show the unscaled ranges of the formats. Blue lines show the range of
the narrowest format after APS has moved its top to the layer's largest gradient. The right panel shows the share of
gradients that underflow. The plot reads `layers` in metrics.jsonl, {name: {"exponent_min", "exponent_max", "underflow",
"overflow"}}, in which exponents are floor(log2 |g|) of the smallest and the largest nonzero gradient.

`tensor_ranges` shows all tensors of one observed run (observed.npz), with a row per role such as weights. Bars show the
share of values in each binade, floor(log2 |x|), over the observed steps and layers. On the left, values are not scaled.
On the right, each layer of each step is multiplied by the power of two with which it just fits the format. For
gradients, as in APS, the sum over workers must fit (Han et al., arXiv 1911.08907: shift = emax - max ceil(log2 |g N|)).
If the runs do not round a role, the range of the gradients' format is shown. For a format with scales, it is that of
its elements.
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cpdrun.record import RunDir
from cpdrun.report.plots import NotDrawnError, Plot
from cpdrun.report.plots._axes import AXES
from cpdrun.report.plots._panels import caption, new_figure
from cpdrun.report.result_text import describe_group
from cpdrun.report.style import COLUMN_IN, FIGURE_SIZE, FP32, WITH_APS, WITHOUT_APS, strategy_styles
from cpdrun.report.svg import hover
from cpdrun.study import formats
from cpdrun.study.axes import plain, short
from cpdrun.study.gradient_sums import workers_per_scale
from cpdrun.study.group import Facet, Group
from cpdrun.study.records import Observed, ObservedStep, read_observed, rows_of
from cpdrun.study.run_comparison import row_of
from cpdrun.study.study import Study

# ---- the gradients of each layer

_MOST_LAYERS = 24
# The page replaces pure white and pure black by the colors of its theme. These colors differ slightly from both, so
# that the page keeps them.
_ON_DARK, _ON_LIGHT = "#fefefe", "#010101"
# The recorded values of one epoch as layers[name][key], with the keys exponent_min, exponent_max, and so on.
Layers = dict[str, dict[str, Any]]


def draw_gradients(study: Study) -> Figure:
    """Draw the gradients of the first facet whose runs recorded exponents.

    Raises:
        NotDrawnError: No run recorded the exponents of its layers, or all exponents are unknown.
    """
    facet, recorded = _first_recorded(study)
    source = max(recorded, key=lambda group: (formats.bits(group.format) or 0, not group.aps))
    epochs = _layers(source.runs[:1])  # The heat map shows one run.
    every = math.ceil(len(epochs[-1]) / _MOST_LAYERS)
    layers = list(epochs[-1])[::every]
    compared = [group for group in recorded if not group.is_baseline and study.bits_axis.is_of_gradients]
    reduced = [group for group in compared if formats.is_floating(group.format)]
    names = sorted({group.format for group in reduced}, key=formats.order)
    figure, top, left, right = _layout(len(names), len(layers))
    _heat_map(left, epochs, layers)
    if names:
        _format_bars(top, names)
        _shifted_range(left, epochs, layers, names[0])
        _lost(right, study, [(group, recorded[group]) for group in reduced], layers)
    heading = f"gradients of {describe_group(study, source).split(':')[0][:90]}"
    top.set_title(heading, loc="left", fontsize=6.5)
    caption(figure, study, "exponent_ranges", [facet], narrowest=names[0] if names else "", every=every)
    return figure


def _layout(n_formats: int, n_layers: int) -> tuple[Figure, Axes, Axes, Axes]:
    """Return a figure with axes for the format bars, the heat map and the underflow.

    Without formats, the figure has only the axes of the heat map, which are returned three times.
    """
    height_in = 1.3 + 0.11 * n_formats + 0.2 * n_layers
    if not n_formats:
        figure = new_figure(1.4 * COLUMN_IN, height_in)
        axes = figure.subplots()
        return figure, axes, axes, axes
    figure = new_figure(2 * COLUMN_IN, height_in)
    heights = [0.11 * n_formats + 0.1, 0.2 * n_layers]
    (top, corner), (left, right) = figure.subplots(2, 2, height_ratios=heights, width_ratios=[3, 2])
    corner.remove()
    top.sharex(left)
    return figure, top, left, right


def _first_recorded(study: Study) -> tuple[Facet, dict[Group, list[Layers]]]:
    for facet in study.facets:
        found = {group: layers for group in facet.groups if (layers := _layers(group.runs))}
        if found:
            return facet, found
    raise NotDrawnError("no run recorded its layers' exponents")


def _layers(runs: Sequence[RunDir]) -> list[Layers]:
    """Return the recorded layers of each epoch of some runs, without epochs that recorded none."""
    recorded = [row.layers or {} for run in runs for row in rows_of(run)]
    epochs = [{name: one for name, one in layers.items() if isinstance(one, dict)} for layers in recorded]
    return [layers for layers in epochs if layers]


def _heat_map(axes: Axes, epochs: list[Layers], layers: list[str]) -> None:
    ranges = [[_layer_range(epoch, layer) for epoch in epochs] for layer in layers]
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
    axes.set_xlabel(AXES["exponent"].title.replace("value", "gradient"))
    axes.grid(visible=False)


def _layer_range(epoch: Layers, layer: str) -> tuple[int, int] | None:
    """Return the exponents of a layer's smallest and largest nonzero gradient, or None."""
    values = epoch.get(layer) or {}
    low, high = values.get("exponent_min"), values.get("exponent_max")
    return None if low is None or high is None else (int(low), int(high))


def _format_bars(axes: Axes, names: list[str]) -> None:
    """Draw the range of each format, from its smallest subnormal to its largest value."""
    for i, name in enumerate(names):
        low, high = _range(name)
        bar = axes.barh(i, high - low, left=low, height=0.75, color=FP32.color, alpha=0.45)[0]
        hover(bar, f"{name}: from 2^{low} to below 2^{high + 1}")
        axes.annotate(
            short(name), (high, i), (2, 0), textcoords="offset points", va="center", fontsize=FIGURE_SIZE
        )
    axes.set_yticks([])
    axes.tick_params(axis="x", length=0, labelbottom=False)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.grid(visible=False)


def _shifted_range(axes: Axes, epochs: list[Layers], layers: list[str], name: str) -> None:
    low, high = _range(name)
    for i, layer in enumerate(layers):
        if pair := _layer_range(epochs[-1], layer):
            y, right = i + 0.28, pair[1] + 0.5
            line = axes.plot(
                [right - (high - low) - 1, right], [y, y], "|-", color=WITH_APS.color, linewidth=1.6
            )[0]
            hover(
                line,
                f"{plain(layer)}: {name} with APS reaches from 2^{pair[1] - (high - low)} to 2^{pair[1]}",
            )
    axes.autoscale(enable=True, axis="x")


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
            axes.text(
                j, i, f"{100 * share:.0f}", ha="center", va="center", color=color, fontsize=FIGURE_SIZE,
                in_layout=False,  # The layout is computed faster without the texts inside the axes.
            )  # fmt: skip
    axes.set_xticks(range(len(columns)), [short(group.name) for group, _ in columns], rotation=90)
    for tick, (group, _) in zip(axes.get_xticklabels(), columns, strict=True):
        tick.set_color(strategy_styles(study)[group.strategy].color)
    axes.set_yticks(range(len(layers)), [])
    axes.set_xlabel("lost as too small, %; " + ", ".join(strategy_styles(study)))
    axes.grid(visible=False)


# ---- every tensor of one run

_NAMES = {
    "gradient": "gradients",
    "weight": "weights",
    "activation": "activations",
    "output_gradient": "output gradients",
    "update": "updates",
}
_KEYS = {"weight": "weights", "activation": "activations", "output_gradient": "errors", "update": "update"}
_IN_RULES = {"weight": "weight", "activation": "input", "output_gradient": "output_gradient"}
# The formats of rules that round to this many bits or more are not shown, because they hardly change a tensor.
_WIDE_BITS = 16
# The x axis leaves out the smallest values, up to this share of all values.
_LEAST = 1e-3


class Limits(NamedTuple):
    """The range of exponents to draw for a role: from the smallest subnormal to the largest value.

    If `is_used` is False, the run does not round the role to the named format, but could.
    """

    name: str
    low: int
    high: int
    is_used: bool


def draw_tensors(study: Study) -> Figure:
    """Draw the observed tensors, with a row per role.

    Raises:
        NotDrawnError: No run was observed, or the runs round to no format that has a range of exponents.
    """
    observed = _first_observed(study)
    source = _narrowest(study)
    row = row_of(study, source.runs[0]) if source is not None and source.runs else {}
    drawn = [(role, limits) for role in observed.looks if (limits := _limits(role, row, source)) is not None]
    if not drawn:
        raise NotDrawnError("none of these runs uses a format with an exponent range")
    figure = new_figure(2 * COLUMN_IN, 0.55 + 0.78 * len(drawn))
    axes = figure.subplots(len(drawn), 2, squeeze=False)
    for (role, limits), pair in zip(drawn, axes, strict=True):
        workers = _room(role, row, observed.workers)
        before, after = _counts(observed.looks[role], limits.high, workers)
        ends = _ends(before, after, limits)
        for each, counts in zip(pair, (before, after), strict=True):
            _histogram(each, counts, limits, ends)
        name = f"{_NAMES[role]}\n{limits.name}{'' if limits.is_used else ', as if'}"
        pair[0].set_ylabel(name, fontsize=6, rotation=0, ha="right", va="center")
    axes[0][0].set_title("without a scale", loc="left", fontsize=7)
    axes[0][1].set_title("with a power of two as a scale for each layer", loc="left", fontsize=7)
    for each in axes[-1]:
        each.set_xlabel(AXES["exponent"].title)
    caption(figure, study, "tensor_ranges", steps=observed.steps)
    return figure


def _first_observed(study: Study) -> Observed:
    """Return the observed tensors of one run, preferably of the baseline.

    If no run of the study was observed, the runs of the sweeps' predictions are searched.

    Raises:
        NotDrawnError: No run was observed.
    """
    runs = [run for group in sorted(study.groups, key=lambda one: not one.is_baseline) for run in group.runs]
    folders = {run.sweep.path: run.sweep for run in runs}
    beside = [run for sweep in folders.values() for run in sweep.prediction.runs()]
    for run in (*runs, *beside):
        if run.observed.is_file() and (found := read_observed(run)) is not None and found.looks:
            return found
    raise NotDrawnError(
        "no run was observed: `cpdrun predict exp=NAME` observes one, or observe=16 in a sweep"
    )


def _narrowest(study: Study) -> Group | None:
    """Return the candidate with the fewest bits that has runs, or None."""
    rounding = [group for group in study.groups if not group.is_baseline and group.runs]
    return min(rounding, key=lambda group: (group.bits or math.inf, not group.aps), default=None)


def _limits(role: str, row: Mapping[str, Any], source: Group | None) -> Limits | None:
    """Return the range to draw for a role; None without a format that has exponents.

    The first known range is used: of the role's own format, of the run's gradient format, of the format of `source`,
    the run's group. `row` is the run's row in the table of runs.
    """
    used = _format_of(role, row)
    for name in (used or str(row.get("format")), str(source.format) if source is not None else ""):
        if _has_range(name):
            return Limits(short(name), *_range(name), is_used=used is not None and _has_range(used))
    return None


def _format_of(role: str, row: Mapping[str, Any]) -> str | None:
    """Return the format to which a config rounds a role, or None."""
    if role == "gradient":
        return None if formats.is_baseline(row.get("format")) else str(row.get("format"))
    name = row.get(f"precision.{_KEYS[role]}")
    if isinstance(name, str) and not formats.is_baseline(name):
        return name
    rules = row.get("precision.rules")
    for rule in json.loads(rules) if isinstance(rules, str) else ():
        roles = rule.get("role")
        named = roles if isinstance(roles, list) else [roles]
        if _IN_RULES.get(role) in named and (formats.bits(rule.get("format")) or _WIDE_BITS) < _WIDE_BITS:
            return str(rule["format"])
    return None


def _element(name: str) -> Any:
    """Parse a format. A format with scales is replaced by the format of its elements."""
    fmt = formats.parse(name)
    return getattr(fmt, "element", None) or fmt


def _has_range(name: str) -> bool:
    """Return True if the named format is reduced and has a range of exponents."""
    return getattr(_element(name), "exponent_bits", None) is not None and not formats.is_baseline(name)


def _range(name: str) -> tuple[int, int]:
    """Return the exponents of a format's smallest subnormal and largest value."""
    fmt = _element(name)
    return fmt.emin - fmt.mantissa_bits, fmt.emax


def _room(role: str, row: Mapping[str, Any], workers: int) -> int:
    """Return the number of workers whose sum a scale must leave room for.

    It is 1 for roles other than gradients, which are not summed over workers.
    """
    if role != "gradient":
        return 1
    return workers_per_scale({key: row.get(f"sync.{key}") for key in ("order", "group_size")}, workers)


def _counts(layers: Mapping[str, list[ObservedStep]], high: int, workers: int) -> tuple[Counter, Counter]:
    before: Counter[int] = Counter()
    after: Counter[int] = Counter()
    for look in (look for looks in layers.values() for look in looks if look.largest > 0):
        shift = high - math.ceil(math.log2(look.largest * workers))
        for k, count in look.counts.items():
            before[k] += count
            after[k + shift] += count
    return before, after


def _ends(before: Counter, after: Counter, limits: Limits) -> tuple[float, float]:
    """Return the x limits that both histograms share.

    They include the format's range, and all values except for a share of at most `_LEAST` of the smallest ones.
    """
    low = min(_quantile(before), _quantile(after), limits.low)
    high = max(max(before, default=limits.high), max(after, default=limits.high), limits.high)
    return low - 1.5, high + 1.5


def _quantile(counts: Counter) -> int:
    total, so_far = sum(counts.values()), 0.0
    for k in sorted(counts):
        so_far += counts[k]
        if so_far > _LEAST * total:
            return k
    return 0


def _histogram(axes: Axes, counts: Counter, limits: Limits, ends: tuple[float, float]) -> None:
    total = sum(counts.values()) or 1
    axes.axvspan(limits.low - 0.5, limits.high + 0.5, color=FP32.color, alpha=0.16, linewidth=0)
    shown = {k: 100 * count / total for k, count in sorted(counts.items()) if k >= ends[0]}
    is_inside = [limits.low <= k <= limits.high for k in shown]
    colors = [WITH_APS.color if inside else WITHOUT_APS.color for inside in is_inside]
    bars = axes.bar(list(shown), list(shown.values()), width=0.9, color=colors)
    for bar, (k, share), inside in zip(bars, shown.items(), is_inside, strict=True):
        hover(bar, f"2^{k}: {share:.2g}% of the values, {'in' if inside else 'out of'} range")
    below = sum(count for k, count in counts.items() if k < limits.low) / total
    above = sum(count for k, count in counts.items() if k > limits.high) / total
    text = f"{100 * below:.0f}% below" + (f", {100 * above:.2g}% above" if above > 0 else "")
    axes.text(0.02, 0.95, text, transform=axes.transAxes, va="top", fontsize=FIGURE_SIZE)
    axes.set_xlim(*ends)
    axes.grid(visible=False)
    axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))


PLOTS = [
    Plot(
        "exponent_ranges",
        "Why: the exponents of the gradients",
        "The powers of two that the gradients of each layer span, epoch by epoch, next to the range of each format, "
        "and the share of gradients that became 0.",
        "runs that recorded the exponents of their layers",
        draw_gradients,
        "why",
    ),
    Plot(
        "tensor_ranges",
        "Why: the exponents of every tensor",
        "The share of gradients, weights, activations, output gradients and updates in each power of two, next to the "
        "range of their format, without and with a scale.",
        "a run that was observed (`cpdrun predict exp=NAME`, or observe=16 in a sweep)",
        draw_tensors,
        "why",
        of_cases=None,
    ),
]
