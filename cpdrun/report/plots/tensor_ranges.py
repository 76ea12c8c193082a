"""Plot the exponents of every tensor next to the range of the format that the tensor is rounded to.

Each row shows one role: gradients between workers, weights, activations, output gradients or updates. The bars show the
share of all values in each binade, floor(log2 |x|), over the steps and layers that one run observed.

The left column shows the unscaled values. In the right column, each layer of each step is multiplied by the power of
two with which it just fits the format. Gradients are scaled as APS scales them, which leaves room for the sum of the
workers in one chain (Han et al., arXiv 1911.08907: shift = emax - max ceil(log2 |g N|)). The other roles are scaled by
the largest value of each tensor alone.

If the runs do not round a role, the plot shows the range of the gradients' format, to which the role could be rounded.
For a format with scales, the plot shows the range of its elements. The plot reads the observed.npz of the baseline
(observe=N), or of another run if the baseline was not observed.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cpdrun.report.plots import NotDrawnError
from cpdrun.report.plots._grid import caption
from cpdrun.report.style import COLUMN_IN, FIGURE_SIZE, FP32, WITH_APS, WITHOUT_APS
from cpdrun.report.svg import hover
from cpdrun.study.axes import formats
from cpdrun.study.axes.titles import short
from cpdrun.study.diagnosis.addition_chain import workers_per_scale
from cpdrun.study.diagnosis.run_comparison import row_of
from cpdrun.study.groups.group import Group
from cpdrun.study.runs.observed import Observed, ObservedStep, read_observed
from cpdrun.study.study import Study

TITLE = "Why: the exponents of every tensor"
QUESTION = "why"
ALT = (
    "The share of gradients, weights, activations, output gradients and updates in each power of two, beside the range "
    "of their format, as they are and scaled."
)
OF_CASES = None

_NAMES = {
    "gradient": "gradients",
    "weight": "weights",
    "activation": "activations",
    "output_gradient": "output gradients",
    "update": "updates",
}
_KEYS = {"weight": "weights", "activation": "activations", "output_gradient": "errors", "update": "update"}
_IN_RULES = {"weight": "weight", "activation": "input", "output_gradient": "output_gradient"}
# A rule that rounds to at least this many bits hardly changes a tensor, so its format is not shown.
_WIDE_BITS = 16
# The share of the smallest values that the x axis leaves out.
_LEAST = 1e-3


class Limits(NamedTuple):
    """The range of a format.

    Attributes:
        name: The name of the format.
        low: The exponent of the smallest subnormal value.
        high: The exponent of the largest value.
        is_used: Whether the run rounds the role to the format.
    """

    name: str
    low: int
    high: int
    is_used: bool


def draw(study: Study) -> Figure:
    """Return the figure, with a row for each observed role.

    Raises:
        NotDrawnError: No run was observed, or no format has a range of exponents.
    """
    observed = _first_observed(study)
    source = _narrowest(study)
    row = row_of(study, source.runs[0]) if source is not None and source.runs else {}
    drawn = [(role, limits) for role in observed.looks if (limits := _limits(role, row, source)) is not None]
    if not drawn:
        raise NotDrawnError("no format that these runs round to has a range of exponents")
    figure = Figure(figsize=(2 * COLUMN_IN, 0.45 + 0.78 * len(drawn)), layout="constrained")
    axes = figure.subplots(len(drawn), 2, squeeze=False)
    for (role, limits), pair in zip(drawn, axes, strict=True):
        workers = _room(role, row, observed.workers)
        before, after = _counts(observed.looks[role], limits.high, workers)
        ends = _ends(before, after, limits)
        for each, counts in zip(pair, (before, after), strict=True):
            _histogram(each, counts, limits, ends)
        pair[0].set_ylabel(
            f"{_NAMES[role]}\n{short(limits.name)}{'' if limits.is_used else ', as if'}", fontsize=6.5
        )
    axes[0][0].set_title("as they are", loc="left", fontsize=7)
    axes[0][1].set_title("scaled by a power of two a layer", loc="left", fontsize=7)
    for each in axes[-1]:
        each.set_xlabel("value, as a power of two")
    caption(
        figure,
        [],
        "bars: share of the values in each power of two; band: what the format reaches, its smallest subnormal to its "
        "largest value; as if: a role that the run does not round",
        f"{observed.steps} steps of one run",
    )
    return figure


def _first_observed(study: Study) -> Observed:
    """Return what the baseline observed, or what another run observed if the baseline was not observed.

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
    """Return the group that rounds to the fewest bits, or None if no group rounds."""
    rounding = [group for group in study.groups if not group.is_baseline and group.runs]
    return min(rounding, key=lambda group: (group.bits or math.inf, not group.aps), default=None)


def _limits(role: str, row: Mapping[str, Any], source: Group | None) -> Limits | None:
    used = _format_of(role, row)
    name = used or (str(row.get("format")) if row else None)
    ranged = _range(name) or (_range(str(source.format)) if source is not None else None)
    name = name if _range(name) else str(source.format) if source is not None else ""
    return None if ranged is None else Limits(name, *ranged, used is not None and _range(used) is not None)


def _format_of(role: str, row: Mapping[str, Any]) -> str | None:
    """Return the format to which a run's config rounds a role, or None if the config does not round the role."""
    if role == "gradient":
        name = str(row.get("format"))
        return None if formats.is_baseline(name) else name
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


def _range(name: str | None) -> tuple[int, int] | None:
    """Return the exponents of the smallest subnormal and the largest value of a format, or None if it has no range.

    For a format with scales, these are the exponents of its elements.
    """
    fmt = formats.parse(name)
    fmt = getattr(fmt, "element", None) or fmt
    if getattr(fmt, "exponent_bits", None) is None or formats.is_baseline(name):
        return None
    return fmt.emin - fmt.mantissa_bits, fmt.emax


def _room(role: str, row: Mapping[str, Any], workers: int) -> int:
    """Return the number of workers for whose sum a scale leaves room."""
    if role != "gradient":
        return 1
    return workers_per_scale({key: row.get(f"sync.{key}") for key in ("order", "group_size")}, workers)


def _counts(layers: Mapping[str, list[ObservedStep]], high: int, workers: int) -> tuple[Counter, Counter]:
    before, after = Counter(), Counter()
    for look in (look for looks in layers.values() for look in looks if look.largest > 0):
        shift = high - math.ceil(math.log2(look.largest * workers))
        for k, count in look.counts.items():
            before[k] += count
            after[k + shift] += count
    return before, after


def _ends(before: Counter, after: Counter, limits: Limits) -> tuple[float, float]:
    """Return the limits of the x axis that both histograms share.

    The axis contains the range of the format and all values but the smallest, whose share is below `_LEAST`.
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
    for k, count in sorted(counts.items()):
        if k >= ends[0]:
            inside = limits.low <= k <= limits.high
            color = WITH_APS.color if inside else WITHOUT_APS.color
            bar = axes.bar(k, 100 * count / total, width=0.9, color=color)[0]
            hover(
                bar, f"2^{k}: {100 * count / total:.2g} % of the values, {'in' if inside else 'out of'} range"
            )
    below = sum(count for k, count in counts.items() if k < limits.low) / total
    above = sum(count for k, count in counts.items() if k > limits.high) / total
    text = f"{100 * below:.0f} % below" + (f", {100 * above:.2g} % above" if above > 0 else "")
    axes.text(0.02, 0.95, text, transform=axes.transAxes, va="top", fontsize=FIGURE_SIZE)
    axes.set_xlim(*ends)
    axes.grid(visible=False)
    axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
