"""The metric that judges a run, as text, and the best result of a sweep so far."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cpdrun.config.identity import hash_in
from cpdrun.record import Ending, Result
from cpdrun.record.measure import Measure, known_measure
from cpdrun.shell.sanitize import visible

ACCURACY = "test_accuracy"


@dataclass(frozen=True)
class Deciding:
    """The metric by which a run is judged, with its value.

    Attributes:
        metric: The name of the metric.
        value: The value as it is stored.
        measure: The unit and direction of the metric. None if unknown.
    """

    metric: str
    value: float
    measure: Measure | None

    @property
    def shown(self) -> str:
        """The value as text, such as `97.2%` or `0.4123`."""
        is_percent = self.measure is not None and self.measure.shown == "percent"
        return f"{100 * self.value:.1f}%" if is_percent else f"{self.value:.4g}"

    @property
    def text(self) -> str:
        """The metric with its value, such as `test accuracy 97.2%`."""
        return f"{visible(self.metric).replace('_', ' ')} {self.shown}"


def deciding(result: Result, metric: str | None = None) -> Deciding | None:
    """Return the metric that judges a result, with its value.

    This is `metric` if it is given and has a value, or else the metric that the run names, or else the test accuracy.
    If none has a value, None is returned.
    """
    for name in (metric, result.judge, ACCURACY):
        value = result.metrics.get(name) if name else None
        if name and value is not None:
            return Deciding(name, value, result.measures.get(name) or known_measure(name))
    return None


@dataclass
class BestResult:
    """The best result among the finished runs of a sweep.

    Attributes:
        label: The label of the run, or "" if no run has finished or the direction of the metric is unknown.
        result: The metric that judges the run, with its value.
    """

    label: str = ""
    result: Deciding | None = None

    def add(self, label: str, result: Result | None) -> None:
        """Replace the best result by the given one if that is better.

        A result is ignored if the run diverged, the value is not finite, or the direction of the metric is unknown. It
        is also ignored if its metric differs from that of the best result so far.
        """
        if result is None or result.status is Ending.DIVERGED or (found := deciding(result)) is None:
            return
        if found.measure is None or not math.isfinite(found.value):
            return
        if self.result is not None:
            gain = found.value - self.result.value
            is_better = gain > 0 if found.measure.higher_is_better else gain < 0
            if found.metric != self.result.metric or not is_better:
                return
        self.label, self.result = label, found

    @property
    def text(self) -> str:
        """The result and its run, such as `best so far 98.1% (convnet-fp32-w8-s0)`, or "" if there is none."""
        return "" if self.result is None else f"best so far {self.result.shown} ({self.label})"


def label_of(name: str, values: Sequence[str] = ()) -> str:
    """Return the name of a run without its hash, followed by the values on axes that the name does not contain."""
    digest = hash_in(name)
    return visible(" ".join([name.removesuffix(f"-{digest}") if digest else name, *values]))


def duration(seconds: float) -> str:
    """Return a duration as text, such as `3.2 s`, `4 min 05 s`, or `2 h 10 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s"
