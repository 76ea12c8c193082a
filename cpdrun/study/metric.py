"""Define the class `Metric`: a metric's direction, its display, and the value of a model that learned nothing.

A baseline that did not learn cannot be used for a comparison. A model that guesses among K classes has an accuracy of
1/K and a cross-entropy of ln K. A run learned if

- its accuracy is at least 2/K, or at least a tenth of the way from 1/K to 1 (Cohen's kappa of 0.1); or
- its loss is below 95% of a guessing model's loss.

These thresholds are heuristic, but most runs are far from them.
"""

import itertools
import math
import re
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
    """A metric, such as `test_accuracy`, with its direction and unit.

    Direction and unit come from the run's record, or else from the table in `cpdrun.record.measure`. If both lack the
    metric, higher is assumed to be better.

    Attributes:
        name: The name of the metric.
        declared: The direction and the unit in the run's record. None if it has none.
        decimals: The number of decimals of shown values. None for the default: 1 for a fraction, otherwise 4.
    """

    name: str
    declared: Measure | None = None
    decimals: int | None = None

    @classmethod
    def of(cls, name: str, runs: pd.DataFrame) -> "Metric":
        """Create a metric with the direction and unit that the runs declare.

        Raises:
            ReportError: The runs declare different directions.
        """
        said = zip(runs.get("run:measures", ()), runs.get("run:name", ()), strict=True)
        by_run = {run: one[name] for one, run in said if isinstance(one, dict) and one.get(name)}
        ways = {measure.higher_is_better: run for run, measure in by_run.items()}
        if len(ways) > 1:
            raise ReportError(
                f"the runs disagree about whether higher values of {name} are better: {ways[True]} says yes, "
                f"{ways[False]} says no; correct `measures` in one done.json, or report the two sweeps separately"
            )
        return cls(name, next(iter(by_run.values()), None))

    @property
    def is_known(self) -> bool:
        """Whether the direction is known."""
        return self.declared is not None or known_measure(self.name) is not None

    @property
    def measure(self) -> Measure:
        """The direction and the unit."""
        return self.declared or known_measure(self.name) or Measure(higher_is_better=True)

    @property
    def is_fraction(self) -> bool:
        """Whether values are shown in percent."""
        return self.measure.shown == "percent"

    @property
    def counts_samples(self) -> bool:
        """Whether the metric is a share of test samples, unlike an IoU."""
        return self.measure.of_samples

    @property
    def higher_is_better(self) -> bool:
        """Whether larger values are better."""
        return self.measure.higher_is_better

    @property
    def words(self) -> str:
        """The name as words for sentences, such as `test accuracy` and `test mean IoU`."""
        return re.sub(r"\biou\b", "IoU", self.name.replace("_", " "))

    @property
    def title(self) -> str:
        """The title for headings and axes, such as `test accuracy, %`."""
        return self.words + (", %" if self.is_fraction else "")

    @property
    def scale(self) -> float:
        """The factor from stored to shown values: 100 for a fraction, otherwise 1."""
        return 100.0 if self.is_fraction else 1.0

    @property
    def unit(self) -> str:
        """The unit of a value in a sentence: `%` for a fraction, otherwise ""."""
        return "%" if self.is_fraction else ""

    @property
    def points(self) -> str:
        """The unit of a difference: ` points` for a fraction, otherwise ""."""
        return " points" if self.is_fraction else ""

    @property
    def digits(self) -> int:
        """The number of decimals of shown values."""
        return self.decimals if self.decimals is not None else 1 if self.is_fraction else 4

    def with_digits(self, margin: float, values: Iterable[float]) -> "Metric":
        """Return the metric with enough decimals to show the margin and to distinguish values.

        A fraction gets at least 1 decimal, and as many as the margin's first digit needs. Another metric gets at least
        4 decimals, as many as a tenth of the margin needs, and as many as distinguish the values, up to SIGNIFICANT
        digits of the smallest. The limit is MOST_DIGITS.

        Args:
            margin: The margin in the unit in which values are shown. If it is NaN, 2% of the smallest value is used.
            values: The compared values in the stored unit, such as the means of all groups.
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
        """Return a difference as text, such as `+0.1`, or `-` if it is not finite."""
        if not math.isfinite(value):
            return "-"
        return ("\N{MINUS SIGN}" if value < 0 else "+") + self.show(abs(value))

    def show_tolerance(self, shown: float) -> str:
        """Return a margin as text, such as `0.5 points`, or `the margin` for NaN."""
        if math.isnan(shown):
            return "the margin"
        unit = (" point" if shown == 1 else " points") if self.is_fraction else ""
        return f"{shown:g}{unit}"

    def show_between(self, value: float, low: float, high: float) -> str:
        """Return a difference with its interval, such as `−0.39 [−0.84, +0.06]`, or `-` for NaN."""
        return "-" if math.isnan(value) else f"{self.show_gap(value)} {self.show_ends(low, high)}"

    def show_ends(self, low: float, high: float) -> str:
        """Return an interval as text, such as `[−0.84, +0.06]`. Finite ends of fractions are clipped to ±100 points."""
        if self.is_fraction:
            low, high = (max(-1.0, min(end, 1.0)) if math.isfinite(end) else end for end in (low, high))
        return f"[{self.show_gap(low)}, {self.show_gap(high)}]"

    def show_gap(self, value: float) -> str:
        """Return a difference with its sign. Points have two decimals below 1, one below 10, and none above."""
        sign = "−" if value < 0 else "+"
        if math.isinf(value):
            return f"{sign}∞"
        shown = abs(value) * self.scale
        digits = (2 if shown < 0.995 else 1 if shown < 9.95 else 0) if self.is_fraction else self.digits
        return f"{sign}{shown:.{digits}f}"


# If the metric's worst value is unknown, a diverged run counts as worse than the baseline by this many margins.
TOLERANCES = 10
# This number is assumed for older records, only to find baselines that may not have learned.
CLASSES_IF_UNKNOWN = 10


def guess(metric: Metric, classes: float) -> float:
    """Return the metric of a model that guesses, in the stored unit. NaN if unknown."""
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
    """Return True if a value is clearly better than a guess, by the rules of this module.

    The result is None if a guess is unknown or the value is not finite. Values are in the stored unit.
    """
    by_chance = guess(metric, classes)
    if not (math.isfinite(by_chance) and math.isfinite(value)):
        return None
    if metric.is_fraction:
        return value >= min(2 * by_chance, by_chance + 0.1 * (1 - by_chance))
    return value < 0.95 * by_chance


def worst(metric: Metric, classes: float, baseline: Sequence[float], tolerance: float) -> float:
    """Return the value that a diverged run counts as, in the stored unit.

    This is 0 for a fraction, and a guess for a loss. If a guess is unknown, it is the baseline's mean made worse by
    TOLERANCES margins.
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
    """Return how many decimals show a positive number's first digit. 0 for other numbers."""
    return -math.floor(math.log10(size)) if size > 0 and math.isfinite(size) else 0
