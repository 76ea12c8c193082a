"""A metric: which way is better, and how its values are shown."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from cpdrun.stats.intervals import Interval

# Metrics measured as a fraction 0..1, shown as points (per cent); everything else is shown as it is.
_FRACTIONS = ("accuracy", "top1", "top5", "iou", "f1", "precision", "recall")
_LOWER_IS_BETTER = ("loss", "perplexity", "bits_per", "error", "seconds", "bytes", "distance")


@dataclass(frozen=True)
class Metric:
    """A name out of done.json's `metrics`, e.g. `test_accuracy`."""

    name: str

    @property
    def is_fraction(self) -> bool:
        return any(word in self.name.lower() for word in _FRACTIONS)

    @property
    def counts_samples(self) -> bool:
        """Whether it is the share of the test samples that were answered right; an IoU, say, is another fraction."""
        return any(word in self.name.lower() for word in ("accuracy", "top1", "top5"))

    @property
    def higher_is_better(self) -> bool:
        return not any(word in self.name.lower() for word in _LOWER_IS_BETTER)

    @property
    def title(self) -> str:
        """For headings and axes: `test accuracy, %`."""
        return self.name.replace("_", " ") + (", %" if self.is_fraction else "")

    @property
    def difference_title(self) -> str:
        """For the column of differences: a better value is a positive difference, whichever way the metric points."""
        return "vs fp32" if self.higher_is_better else "vs fp32 (+: better)"

    @property
    def scale(self) -> float:
        """Stored values times this are shown values: a fraction is shown in points."""
        return 100.0 if self.is_fraction else 1.0

    @property
    def unit(self) -> str:
        """For sentences, after a number: ` %`, or nothing."""
        return " %" if self.is_fraction else ""

    @property
    def default_tolerance(self) -> float:
        """How much worse than fp32 still counts as equal, in shown units: half a point, or 0.05 of a loss."""
        return 0.5 if self.is_fraction else 0.05

    @property
    def digits(self) -> int:
        """Decimals of a shown value."""
        return 1 if self.is_fraction else 4

    def show(self, value: float, half_width: float = math.nan) -> str:
        """`98.9 ± 0.2`, `98.9` where there is no interval, `-` where there is no value."""
        if not math.isfinite(value):
            return "-"
        text = f"{value * self.scale:.{self.digits}f}"
        if math.isfinite(half_width):
            text += f" ± {half_width * self.scale:.{self.digits}f}"
        return text

    def show_interval(self, interval: Interval) -> str:
        """As `show`; `99.2 +0.6/−1.3` where the ends are not equally far, as near 100 %."""
        if not (math.isfinite(interval.mean) and interval.is_known):
            return self.show(interval.mean)
        below, above = interval.mean - interval.low, interval.high - interval.mean
        down, up = (f"{distance * self.scale:.{self.digits}f}" for distance in (below, above))
        if down == up:
            return self.show(interval.mean, below)
        return f"{self.show(interval.mean)} +{up}/\N{MINUS SIGN}{down}"

    def show_difference(self, value: float, half_width: float = math.nan) -> str:
        """As `show`, with the sign always: `+0.1 ± 0.3`, `−0.2`."""
        if not math.isfinite(value):
            return "-"
        sign = "\N{MINUS SIGN}" if value < 0 else "+"
        return sign + self.show(abs(value), half_width)


# What a data set is judged by where it is not the accuracy: segmentation, text by bytes, text by tokens.
_OWN = ("test_mean_iou", "test_bits_per_byte", "test_perplexity", "test_accuracy", "test_loss")


def own_metric(names: Iterable[str]) -> str | None:
    """Of the metrics of a run, the one that its data is judged by; None where we know none of them."""
    known = set(names)
    return next((name for name in _OWN if name in known), None)
