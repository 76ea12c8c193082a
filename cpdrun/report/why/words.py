"""Why a run is worse, in sentences: the first has the main reason and the figure that it rests on."""

import math
from collections.abc import Mapping

from cpdrun.report.why.beside import Beside
from cpdrun.report.why.reason import Cause, Reason, reach
from cpdrun.report.why.seen import Moment, RoundedLayer
from cpdrun.report.why.standing import RunStanding, RunVerdict
from cpdrun.stats.moments import is_zero
from cpdrun.study.axes.titles import plain
from cpdrun.study.metric import Metric
from cpdrun.study.study import Study

FLAT = 0.5  # a figure that never falls below that share of its highest is there from end to end
MOST_NAMED = 3
LATER = {  # what a single sum does not show, by a part of the words that were typed
    "stochastic": "unbiased: over steps it averages out",
    "error_feedback=true": "which later steps give back",
}


def share(value: float) -> str:
    """`97 %`, `0.3 %`, `none`; of a share 0..1."""
    if not math.isfinite(value):
        return "an unknown share"
    if value == 0:
        return "none"
    text = f"{100 * value:.2g}" if value < 0.0995 else f"{100 * value:.0f}"
    return "more than 99.9 %" if 0.999 < value < 1 else f"{text} %"


def gap(study: Study, stands: RunStanding) -> str:
    """`88.4 points worse than fp32 (11.0 % against 99.4 %, both of seed 0)`; what is not known is left out."""
    metric, baseline = study.metric, study.baseline_name
    values = f"{_value(metric, stands.value)} against {_value(metric, stands.baseline_value)}"
    same = "the same seed" if stands.same_seed else "the mean of the seeds that have ended"
    then = f" in epoch {stands.epoch}" if stands.epoch is not None else ""
    behind = f"({metric.title.removesuffix(', %')} {values}{then}, {same})"
    if math.isnan(stands.lost):
        return f"not comparable with {baseline}"
    if is_zero(stands.lost):
        return f"as good as {baseline} {behind}"
    amount = f"{metric.show(abs(stands.lost))}{metric.points}"
    return f"{amount} {'worse' if stands.lost > 0 else 'better'} than {baseline} {behind}"


def by_chance(study: Study, stands: RunStanding) -> str:
    """A clause where a difference of shares of the test set is no more than their own error; else "".

    Each share of n samples has the variance p (1 - p) / n; the difference of two within twice the root of their sum
    is what chance makes about every twentieth time.
    """
    samples = study.samples(stands.group) if stands.group is not None else math.nan
    if not (samples > 0 and math.isfinite(stands.lost)):
        return ""
    shares = [
        min(max(value, 0.5 / samples), 1 - 0.5 / samples) for value in (stands.value, stands.baseline_value)
    ]
    error = math.sqrt(sum(p * (1 - p) / samples for p in shares))
    if not 0 < abs(stands.lost) <= 2 * error:
        return ""
    count = round(abs(stands.lost) * samples)
    return f"{count} of {samples:.0f} test samples, no more than chance makes"


def cause(found: Reason, *, aps: bool, chain: int | None, workers: int, together: int) -> str:
    """The main reason as a clause with its figure. chain: the most rounded additions in series; together: workers whose
    sum APS makes room for."""
    seen = found.seen
    names = sorted({layer.format for layer in seen.layers})
    name = plain(", ".join(names))
    off = f"the sum is off by {share(seen.sum_error)} of its length"
    if found.cause is Cause.OVERFLOW:
        return f"{share(seen.overflow)} of the gradients are above the largest value of {name} and become infinite"
    if found.cause is Cause.UNDERFLOW:
        behind = _range(found, aps, together)
        return f"{share(seen.underflow)} of the gradients that workers send become 0 in {name}, and {off}{behind}"
    if found.cause is Cause.ADDITIONS:
        in_series = f"up to {chain} rounded additions in series" if chain else "its rounded additions"
        lost = "none" if seen.underflow == 0 else f"only {share(seen.underflow)}"
        return f"{off} by {in_series} of {workers} workers in {name}, though {lost} of the gradients become 0"
    if found.cause is Cause.SMALL:
        return f"the sum of gradients, in {name}, is hardly the reason: it is off by {share(seen.sum_error)}"
    if found.cause is Cause.EXACT:
        return "nothing between workers, for gradients are summed in fp32; the rest is lost within a worker"
    return "its record says nothing of its layers"


def _range(found: Reason, aps: bool, together: int) -> str:
    """Behind the figure, what the format reaches and what it would have to."""
    seen = found.seen
    limits = reach(found.worst[0].format) if found.worst else None
    if limits is None or seen.low is None or seen.high is None:
        return ""
    name, width = plain(found.worst[0].format), limits[1] - limits[0] + 1
    if not aps:
        theirs = f"the gradients from 2^{seen.low} to 2^{seen.high}"
        return f": {name} reaches from 2^{limits[0]} to 2^{limits[1]}, and {theirs}"
    room = min(width, math.ceil(math.log2(together)))
    if room >= width / 2:
        room_text = f"APS keeps {room} for the sum of {together} workers, which leaves {width - room}"
        return f": of the {width} powers of two of {name}, {room_text}"
    spans = max(moment.span for one in seen.layers for moment in one.moments)
    return (
        f": scaled to its top, {name} has {width} powers of two, and a layer's gradients span up to {spans}"
    )


def layers(found: Reason) -> str:
    """`most in features.2.0.weight (sum off by 75 %, 97 % become 0); ...`, or that all layers lose alike."""
    figures = {layer_figures(one) for one in found.seen.layers}
    if len(figures) == 1 and len(found.seen.layers) > 1:
        return f"all {len(found.seen.layers)} layers alike {figures.pop()}"
    return "most in " + "; ".join(
        f"{plain(one.name)} {layer_figures(one)}" for one in found.worst[:MOST_NAMED]
    )


def layer_figures(one: RoundedLayer) -> str:
    parts = [f"sum off by {share(one.sum_error)}"] if math.isfinite(one.sum_error) else []
    parts += [f"{share(one.underflow)} become 0"] if one.underflow > 0 else []
    parts += [f"{share(one.overflow)} overflow"] if one.overflow > 0 else []
    return f"({', '.join(parts)})" if parts else "(nothing)"


def when(found: Reason) -> str:
    """How the figure that the reason rests on went: from the start, growing, or a time of its own."""
    figures = {
        Cause.OVERFLOW: ("overflow", _overflow),
        Cause.UNDERFLOW: ("the sum's error", _sum_error),
    }
    title, figure = figures.get(found.cause, ("the sum's error", _sum_error))
    course = found.seen.by_epoch(figure)
    if len(course) < 2:
        return ""
    return f"{title} {_course(course)}"


def _course(values: Mapping[int, float]) -> str:
    first, last = min(values), max(values)
    peak = max(values, key=lambda epoch: values[epoch])
    if len({share(value) for value in values.values()}) == 1:
        return f"is {share(values[first])} in every epoch from {first} to {last}"
    ends = f"{share(values[first])} in epoch {first}, {share(values[last])} in epoch {last}"
    if min(values.values()) >= FLAT * values[peak]:
        return f"is there from end to end: {ends}"
    if peak == last:
        return f"grows: {ends}"
    if peak == first:
        return f"falls: {ends}"
    return f"is greatest in epoch {peak}, {share(values[peak])}: {ends}"


def measured(study: Study, one: Beside, own: Reason) -> str:
    """`aps=true: the run reaches 99.2 %, within 0.5 points of fp32, and its sum's error goes from 100 % to 55 %
    (measured)`"""
    metric, stands = study.metric, one.stands
    stand = f"within {metric.show_tolerance(study.tolerance)} of {study.baseline_name}"
    if stands.verdict is not RunVerdict.WITHIN:
        stand = f"{metric.show(abs(stands.lost))}{metric.points} worse than {study.baseline_name}"
    text = f"{plain(' '.join(one.words))}: the run reaches {_value(metric, stands.value)}, {stand}"
    before, after = own.seen.sum_error, one.seen.sum_error
    if math.isfinite(before) and math.isfinite(after):
        text += f", and the sum's error goes from {share(before)} to {share(after)}"
        later = next((why for key, why in LATER.items() if any(key in word for word in one.words)), "")
        text += f" ({later})" if later and after > before else ""
    return f"{text} (measured)"


def _value(metric: Metric, value: float) -> str:
    return f"{metric.show(value)}{metric.unit}" if math.isfinite(value) else "no value"


def _overflow(moment: Moment) -> float:
    return moment.overflow


def _sum_error(moment: Moment) -> float:
    return moment.sum_error
