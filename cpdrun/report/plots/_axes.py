"""Quantities that plots draw along an axis, with their labels, units and scales."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, LogLocator, MaxNLocator

from cpdrun.report.cost import COSTS
from cpdrun.report.tables import show_bits
from cpdrun.study.metric import Metric


@dataclass(frozen=True)
class Axis:
    """A quantity that plots draw along an axis.

    Attributes:
        label: The label of the axis.
        unit: The unit; "" if there is none or if `show` adds it to each number.
        scale: Where the ticks are: at round numbers ("linear", "log") or at powers of 2 ("log2").
        show: Formats the label of a tick.
        is_count: Whether the ticks are whole numbers.
    """

    label: str
    unit: str = ""
    scale: Literal["linear", "log", "log2"] = "linear"
    show: Callable[[float], str] = "{:g}".format
    is_count: bool = False

    @property
    def title(self) -> str:
        return f"{self.label}, {self.unit}" if self.unit else self.label

    def apply_to_x(self, axes: Axes, values: Collection[float], *, at_values: bool = False) -> None:
        """Set the scale, the ticks and the label of a panel's x axis.

        With `at_values`, the ticks are at `values` (the drawn values) instead of at round numbers. Ticks whose labels
        would touch are dropped.
        """
        if self.scale != "linear":
            axes.set_xscale("log", base=2 if self.scale == "log2" else 10)
        span = max(values) / min(values) if self.scale != "linear" else 0.0
        if at_values:
            ticks = spaced(sorted(values), ratio=max(span**0.09, 1.0))
            axes.xaxis.set_major_locator(FixedLocator(ticks))
            axes.xaxis.set_major_formatter(FixedFormatter([self.show(tick) for tick in ticks]))
        else:
            axes.xaxis.set_major_locator(self._locator(span))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: self.show(x)))
        axes.minorticks_off()
        axes.set_xlabel(self.title)

    def _locator(self, span: float) -> MaxNLocator | LogLocator:
        if self.scale == "linear" or span < 4:
            return MaxNLocator(5, steps=[1, 2, 5, 10], integer=self.is_count)
        if self.scale == "log2":
            return LogLocator(base=4 if span > 128 else 2, numticks=12)
        return LogLocator(base=10, subs=(1, 2, 5) if span < 100 else (1,), numticks=12)


def spaced(values: Collection[float], ratio: float) -> list[float]:
    """Drop values (ascending) that are within `ratio` times the last kept value."""
    kept: list[float] = []
    for value in values:
        if not kept or value > kept[-1] * ratio or value == kept[-1] == 0:
            kept.append(value)
    return kept


def metric_axis(metric: Metric) -> Axis:
    """Return the axis of the metric, whose label says if lower is better."""
    label = metric.title if metric.higher_is_better else f"{metric.title} (lower is better)"
    return Axis(label)


AXES = {
    "bytes": Axis("sent by a worker each step", "", "log", COSTS["bytes"].show),
    "sent_bits": Axis("sent by a worker", "bits per parameter and step", "log2", show_bits),
    "kept": Axis("kept by a worker", "", "log", COSTS["kept"].show),
    "bitops": Axis("bit operations of a worker's step", "", "log", COSTS["bitops"].show),
    "area": Axis(
        "transistors of a multiply-accumulate unit, mean over a step", "", "log", COSTS["area"].show
    ),
    "step_time": Axis("predicted time of a step", "ms", "log"),
    "workers": Axis("workers", "", "log2", "{:.0f}".format),
    "chain": Axis("longest chain of rounded additions", "", "log2", "{:.0f}".format),
    "fewest_bits": Axis("fewest bits"),
    "pairs": Axis("pairs of runs", is_count=True),
    "evidence": Axis("evidence", "powers of ten"),
    "exponent": Axis("value", "as a power of two", is_count=True),
    "speedup": Axis("speed-up over one worker", "", "log2"),
}
