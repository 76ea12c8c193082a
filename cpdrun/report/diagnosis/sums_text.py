"""Render how a run compares with its baseline and what its sums of gradients lost."""

import math
from collections.abc import Mapping

from cpdrun.stats.means import is_zero
from cpdrun.study.axes import plain
from cpdrun.study.gradient_sums import Cause, EpochStatistics, LayerStatistics, Reason, exponent_range
from cpdrun.study.metric import Metric
from cpdrun.study.run_comparison import Neighbor, RunComparison, RunVerdict
from cpdrun.study.study import Study

CONSTANT = 0.5  # a figure that never falls below this share of its maximum is present throughout
MOST_NAMED = 3
# what a single sum does not show, by a part of the words that were typed
OVER_STEPS = {
    "stochastic": "unbiased, so it averages out over steps",
    "error_feedback=true": "later steps give it back",
}


def share(value: float) -> str:
    """Return a share in [0, 1] as text: `97 %`, `0.3 %`, `none`."""
    if not math.isfinite(value):
        return "an unknown share"
    if value == 0:
        return "none"
    text = f"{100 * value:.2g}" if value < 0.0995 else f"{100 * value:.0f}"
    return "more than 99.9 %" if 0.999 < value < 1 else f"{text} %"


def gap(study: Study, comparison: RunComparison) -> str:
    """Return `88.4 points worse than fp32 (test accuracy 11.0 % against 99.4 %, the same seed)`."""
    metric, baseline = study.metric, study.baseline_name
    values = f"{_value(metric, comparison.value)} against {_value(metric, comparison.baseline_value)}"
    same = "the same seed" if comparison.same_seed else "the mean of the seeds that have ended"
    then = f" in epoch {comparison.epoch}" if comparison.epoch is not None else ""
    behind = f"({metric.title.removesuffix(', %')} {values}{then}, {same})"
    if math.isnan(comparison.lost):
        return f"not comparable with {baseline}"
    if is_zero(comparison.lost):
        return f"as good as {baseline} {behind}"
    amount = f"{metric.show(abs(comparison.lost))}{metric.points}"
    return f"{amount} {'worse' if comparison.lost > 0 else 'better'} than {baseline} {behind}"


def by_chance(study: Study, comparison: RunComparison) -> str:
    """Return a clause if a difference in accuracy is within the error of the test set, else an empty string.

    A share p of n samples has the variance p (1 - p) / n. In one case of twenty, chance alone makes a difference of
    more than twice the root of the sum of both variances.
    """
    samples = study.samples(comparison.group) if comparison.group is not None else math.nan
    if not (samples > 0 and math.isfinite(comparison.lost)):
        return ""
    shares = [
        min(max(value, 0.5 / samples), 1 - 0.5 / samples)
        for value in (comparison.value, comparison.baseline_value)
    ]
    error = math.sqrt(sum(p * (1 - p) / samples for p in shares))
    if not 0 < abs(comparison.lost) <= 2 * error:
        return ""
    count = round(abs(comparison.lost) * samples)
    return f"{count} of {samples:.0f} test samples, no more than chance makes"


def cause(reason: Reason, *, aps: bool, chain: int | None, workers: int, workers_per_scale: int) -> str:
    """Return the main reason as a clause with its figure.

    Args:
        reason: The main reason.
        aps: Whether gradients are scaled by APS.
        chain: The largest number of rounded additions in series; None if unknown.
        workers: The number of workers.
        workers_per_scale: The number of workers for whose sum APS leaves room.
    """
    found = reason.statistics
    names = sorted({layer.format for layer in found.layers})
    name = plain(", ".join(names))
    error = f"the sum is wrong by {share(found.sum_error)} of its norm"
    if reason.cause is Cause.OVERFLOW:
        return (
            f"{share(found.overflow)} of the gradients exceed the largest value of {name} and become infinite"
        )
    if reason.cause is Cause.UNDERFLOW:
        limits = _range(reason, aps, workers_per_scale)
        return f"{share(found.underflow)} of the gradients that workers send become 0 in {name}, and {error}{limits}"
    if reason.cause is Cause.ADDITIONS:
        in_series = f"up to {chain} rounded additions in series" if chain else "its rounded additions"
        lost = "none" if found.underflow == 0 else f"only {share(found.underflow)}"
        although = f"although {lost} of the gradients become 0"
        return f"{error} because of {in_series} of {workers} workers in {name}, {although}"
    if reason.cause is Cause.SMALL:
        only = share(found.sum_error)
        return f"the sum of gradients in {name} is hardly the reason, because it is wrong by only {only}"
    if reason.cause is Cause.EXACT:
        return (
            "nothing between workers, because gradients are summed in fp32; the rest is lost within a worker"
        )
    return "its record has no statistics of its layers"


def _range(reason: Reason, aps: bool, workers: int) -> str:
    """Return a clause about the range that the format represents and the range of the gradients."""
    found = reason.statistics
    limits = exponent_range(reason.worst[0].format) if reason.worst else None
    if limits is None or found.low is None or found.high is None:
        return ""
    name, width = plain(reason.worst[0].format), limits[1] - limits[0] + 1
    if not aps:
        gradients = f"the gradients range from 2^{found.low} to 2^{found.high}"
        return f": {name} represents 2^{limits[0]} to 2^{limits[1]}, and {gradients}"
    room = min(width, math.ceil(math.log2(workers)))
    if room >= width / 2:
        return (
            f": of the {width} powers of two of {name}, APS keeps {room} free for the sum of {workers} workers, which "
            f"leaves {width - room}"
        )
    spans = max(epoch.span for one in found.layers for epoch in one.epochs)
    return (
        f": scaled to its top, {name} has {width} powers of two, and a layer's gradients span up to {spans}"
    )


def layers(reason: Reason) -> str:
    """Return `most in features.2.0.weight (sum wrong by 75 %, 97 % become 0); ...`, or that all lose the same."""
    found = reason.statistics.layers
    figures = {layer_figures(one) for one in found}
    if len(figures) == 1 and len(found) > 1:
        return f"in all {len(found)} layers {figures.pop()}"
    return "most in " + "; ".join(
        f"{plain(one.name)} {layer_figures(one)}" for one in reason.worst[:MOST_NAMED]
    )


def layer_figures(layer: LayerStatistics) -> str:
    parts = [f"sum wrong by {share(layer.sum_error)}"] if math.isfinite(layer.sum_error) else []
    parts += [f"{share(layer.underflow)} become 0"] if layer.underflow > 0 else []
    parts += [f"{share(layer.overflow)} overflow"] if layer.overflow > 0 else []
    return f"({', '.join(parts)})" if parts else "(nothing)"


def when(reason: Reason) -> str:
    """Return how the figure behind the main reason changed over the epochs; empty with fewer than two epochs."""

    def figure(epoch: EpochStatistics) -> float:
        return epoch.overflow if reason.cause is Cause.OVERFLOW else epoch.sum_error

    values = reason.statistics.by_epoch(figure)
    if len(values) < 2:
        return ""
    title = "overflow" if reason.cause is Cause.OVERFLOW else "the sum's error"
    return f"{title} {_course(values)}"


def _course(values: Mapping[int, float]) -> str:
    first, last = min(values), max(values)
    peak = max(values, key=lambda epoch: values[epoch])
    if len({share(value) for value in values.values()}) == 1:
        return f"is {share(values[first])} in every epoch from {first} to {last}"
    ends = f"{share(values[first])} in epoch {first}, {share(values[last])} in epoch {last}"
    if min(values.values()) >= CONSTANT * values[peak]:
        return f"is present throughout: {ends}"
    if peak == last:
        return f"grows: {ends}"
    if peak == first:
        return f"falls: {ends}"
    return f"is largest in epoch {peak} ({share(values[peak])}): {ends}"


def measured(study: Study, neighbor: Neighbor, reason: Reason) -> str:
    """Return what a neighbor reaches, and how the error of its sums compares with that of the run.

    For example `aps=true: the run reaches 99.2 %, within 0.5 points of fp32, and its sum's error goes from 100 % to
    55 % (measured)`.
    """
    metric, comparison = study.metric, neighbor.comparison
    result = f"within {study.margin_text} of {study.baseline_name}"
    if comparison.verdict is not RunVerdict.WITHIN:
        result = f"{metric.show(abs(comparison.lost))}{metric.points} worse than {study.baseline_name}"
    text = f"{plain(' '.join(neighbor.words))}: the run reaches {_value(metric, comparison.value)}, {result}"
    before, after = reason.statistics.sum_error, neighbor.statistics.sum_error
    if math.isfinite(before) and math.isfinite(after):
        text += f", and its sum's error goes from {share(before)} to {share(after)}"
        words = " ".join(neighbor.words)
        later = next((why for key, why in OVER_STEPS.items() if key in words), "")
        text += f" ({later})" if later and after > before else ""
    return f"{text} (measured)"


def _value(metric: Metric, value: float) -> str:
    return f"{metric.show(value)}{metric.unit}" if math.isfinite(value) else "no value"
