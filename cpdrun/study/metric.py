"""Define a metric: its direction, its display format, and the values to expect from a model that learned nothing.

A baseline that did not learn cannot be used for a comparison. A model that guesses among K classes has an accuracy of
1 / K and a cross-entropy of ln K. These rules decide whether a run learned:

- For accuracy, there are two thresholds: 2 / K, and a tenth of the way from 1 / K to 1 (Cohen's kappa of 0.1). The
  run learned if its accuracy reaches the smaller of them.
- For a loss, the run learned if its loss is below 95 % of a guessing model's loss.

The thresholds are heuristic. Runs that learn and runs that do not are usually far from them.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import pandas as pd

from cpdrun.record.measure import Measure, known_measure
from cpdrun.study import ReportError

MOST_DIGITS = 12  # Values are shown with at most this many decimals.
SIGNIFICANT = 4  # To distinguish values, decimals are added up to this number of significant digits.


@dataclass(frozen=True)
class Metric:
    """A metric in done.json's `metrics`, such as `test_accuracy`, with its direction and unit.

    The direction and the unit come from the run's record. If the record does not contain them, they come from the table
    in `cpdrun.record.measure`. If the table does not contain the metric either, higher is assumed to be better, values
    are shown unchanged, and `is_known` is False.

    Attributes:
        name: The name of the metric.
        declared: The direction and the unit from the run's record. None if the record does not contain them.
        decimals: The number of decimals of shown values. None for the default, which is 1 for a fraction and 4
            otherwise.
    """

    name: str
    declared: Measure | None = None
    decimals: int | None = None

    @classmethod
    def of(cls, name: str, runs: pd.DataFrame) -> "Metric":
        """Create the metric, with the direction and the unit that the first run declares, if any.

        Args:
            name: The name of the metric.
            runs: The runs, as `collect` returns them.

        Raises:
            ReportError: The runs declare different directions, so that the sign of a difference has no meaning.
        """
        said = zip(runs.get("run:measures", ()), runs.get("run:name", ()), strict=True)
        by_run = {run: one[name] for one, run in said if isinstance(one, dict) and one.get(name)}
        ways = {measure.higher_is_better: run for run, measure in by_run.items()}
        if len(ways) > 1:
            raise ReportError(
                f"the runs do not agree which way of {name} is better: higher says {ways[True]}, lower {ways[False]}; "
                f"correct `measures` in the done.json of either, or report the two sweeps separately"
            )
        return cls(name, next(iter(by_run.values()), None))

    @property
    def is_known(self) -> bool:
        """Whether the metric's direction is known, from the run's record or the table in `cpdrun.record.measure`."""
        return self.declared is not None or known_measure(self.name) is not None

    @property
    def measure(self) -> Measure:
        """The direction and the unit. If they are unknown, higher is assumed to be better."""
        return self.declared or known_measure(self.name) or Measure(higher_is_better=True)

    @property
    def is_fraction(self) -> bool:
        """Whether the metric is a fraction. Fractions are shown in percent."""
        return self.measure.shown == "percent"

    @property
    def counts_samples(self) -> bool:
        """Whether the metric is the share of correctly answered test samples.

        An IoU, for example, is a fraction but does not count samples.
        """
        return self.measure.of_samples

    @property
    def higher_is_better(self) -> bool:
        """Whether larger values are better."""
        return self.measure.higher_is_better

    @property
    def title(self) -> str:
        """The title for headings and axes, such as `test accuracy, %`."""
        return self.name.replace("_", " ") + (", %" if self.is_fraction else "")

    @property
    def scale(self) -> float:
        """The factor that converts stored values to shown values: 100 for a fraction, and 1 otherwise."""
        return 100.0 if self.is_fraction else 1.0

    @property
    def unit(self) -> str:
        """The unit to append to a value in a sentence: ` %` for a fraction, and "" otherwise."""
        return " %" if self.is_fraction else ""

    @property
    def points(self) -> str:
        """The unit to append to a difference: ` points` for a fraction, and "" otherwise."""
        return " points" if self.is_fraction else ""

    @property
    def digits(self) -> int:
        """The number of decimals of a shown value."""
        return self.decimals if self.decimals is not None else 1 if self.is_fraction else 4

    def with_digits(self, margin: float, values: Iterable[float]) -> "Metric":
        """Return the metric with enough decimals to show the margin and to distinguish the compared values.

        A fraction gets as many decimals as the margin's first digit needs, but at least 1. Any other metric gets the
        largest of these numbers:

        - 4 decimals;
        - as many as a tenth of the margin needs;
        - as many as are needed to distinguish the values, but no more than the smallest value needs for SIGNIFICANT
          digits, because further digits are noise.

        No metric gets more than MOST_DIGITS decimals.

        Args:
            margin: The margin in the unit in which values are shown. If it is NaN, 2 % of the smallest value is used.
            values: The compared values, such as the means of all groups, in the unit of the stored metric.
        """
        if self.is_fraction:
            return replace(self, decimals=min(max(1, _decimals(margin)), MOST_DIGITS))
        sizes = sorted({abs(value) * self.scale for value in values if math.isfinite(value) and value})
        smallest = sizes[0] if sizes else math.nan
        gap = min((b - a for a, b in itertools.pairwise(sizes)), default=math.nan)
        apart = min(_decimals(gap), _decimals(smallest) + SIGNIFICANT - 1)
        needed = max(4, 1 + _decimals(0.02 * smallest if math.isnan(margin) else margin), apart)
        return replace(self, decimals=min(needed, MOST_DIGITS))

    def show(self, value: float) -> str:
        """Return a value as text, such as `98.9`, or `-` if it is not finite."""
        return f"{value * self.scale:.{self.digits}f}" if math.isfinite(value) else "-"

    def show_difference(self, value: float) -> str:
        """Return a difference as text, such as `+0.1` or `−0.2`, or `-` if it is not finite."""
        if not math.isfinite(value):
            return "-"
        return ("\N{MINUS SIGN}" if value < 0 else "+") + self.show(abs(value))

    def show_tolerance(self, shown: float) -> str:
        """Return a margin as text, such as `1 point`, `0.5 points`, or `0.05`. For NaN, return `the margin`.

        Args:
            shown: The margin in the unit in which values are shown.
        """
        if math.isnan(shown):
            return "the margin"
        unit = (" point" if shown == 1 else " points") if self.is_fraction else ""
        return f"{shown:g}{unit}"

    def show_between(self, value: float, low: float, high: float) -> str:
        """Return a difference and its interval as text, such as `−0.39 [−0.84, +0.06]`.

        If the difference is NaN, return `-`. If an end of the interval is not known yet, it is infinite.
        """
        return "-" if math.isnan(value) else f"{self.show_gap(value)} {self.show_ends(low, high)}"

    def show_ends(self, low: float, high: float) -> str:
        """Return the interval of a difference as text, such as `[−0.84, +0.06]`.

        For a fraction, finite ends are clipped to ±100 points.
        """
        if self.is_fraction:
            low, high = (max(-1.0, min(end, 1.0)) if math.isfinite(end) else end for end in (low, high))
        return f"[{self.show_gap(low)}, {self.show_gap(high)}]"

    def show_gap(self, value: float) -> str:
        """Return a difference with its sign as text.

        Points are shown with two decimals if the difference is below 1, one if it is below 10, and none above.
        """
        sign = "−" if value < 0 else "+"
        if math.isinf(value):
            return f"{sign}∞"
        shown = abs(value) * self.scale
        digits = (2 if shown < 0.995 else 1 if shown < 9.95 else 0) if self.is_fraction else self.digits
        return f"{sign}{shown:.{digits}f}"


# If the metric's worst value is unknown, a diverged run counts as worse than the baseline by this many margins.
TOLERANCES = 10
# Older records lack the number of classes. For them, this number is assumed, only to find baselines that may not have
# learned.
CLASSES_IF_UNKNOWN = 10


def guess(metric: Metric, classes: float) -> float:
    """Return the value of the metric for a model that guesses, in the unit of the stored metric.

    If the value is unknown, return NaN.

    Args:
        metric: The metric.
        classes: The number of classes. NaN if it is unknown.
    """
    name = metric.name.lower()
    if not (math.isfinite(classes) and classes > 1):
        return math.nan
    if "top5" in name:
        return min(5 / classes, 1.0)
    if metric.is_fraction:
        return 1 / classes
    if "perplexity" in name:
        return float(classes)
    return {"nats": math.log(classes), "bits": math.log2(classes)}.get(metric.measure.shown, math.nan)


def learnt(metric: Metric, value: float, classes: float) -> bool | None:
    """Return whether a run with this value learned (see the module's docstring).

    If the value of a guessing model is unknown, or if `value` is not finite, return None.

    Args:
        metric: The metric.
        value: The run's value, in the unit of the stored metric.
        classes: The number of classes. NaN if it is unknown.
    """
    by_chance = guess(metric, classes)
    if not (math.isfinite(by_chance) and math.isfinite(value)):
        return None
    if metric.is_fraction:
        return value >= min(2 * by_chance, by_chance + 0.1 * (1 - by_chance))
    return value < 0.95 * by_chance


def worst(metric: Metric, classes: float, baseline: Sequence[float], tolerance: float) -> float:
    """Return the value that a diverged run counts as.

    For a fraction, this is 0. For a loss, it is the value of a model that guesses. If that value is unknown, it is the
    mean of the baseline's values, made worse by TOLERANCES margins.

    Args:
        metric: The metric.
        classes: The number of classes. NaN if it is unknown.
        baseline: The values of the baseline's runs.
        tolerance: The margin in the unit of the stored metric.
    """
    if metric.is_fraction:
        return 0.0
    by_chance = guess(metric, classes)
    if math.isfinite(by_chance):
        return by_chance
    healthy = [value for value in baseline if math.isfinite(value)]
    sign = -1 if metric.higher_is_better else 1
    return (fmean(healthy) if healthy else 0.0) + sign * TOLERANCES * tolerance


def _decimals(size: float) -> int:
    """Return the number of decimals that are needed to show a positive number's first digit. For others, return 0."""
    return -math.floor(math.log10(size)) if size > 0 and math.isfinite(size) else 0
