"""A metric: which way is better, and how its values are shown."""

import math
from dataclasses import dataclass

import pandas as pd

from cpdrun.record.measure import Measure, known_measure
from cpdrun.study.errors import ReportError

MOST_DIGITS = 12  # decimals


@dataclass(frozen=True)
class Metric:
    """A name out of done.json's `metrics`, e.g. `test_accuracy`, and what the record, or else our table, says of it.

    A name that neither knows is taken as higher is better, shown as it is; the answer says so.
    """

    name: str
    declared: Measure | None = None
    show_down_to: float = math.nan  # differences of this size, in shown units, must be visible; NaN: unknown

    @classmethod
    def of(cls, name: str, runs: pd.DataFrame) -> "Metric":
        """As the first of `runs` (of `collect`) declares it that does. Raises ReportError where another says that the
        other way is better: no difference has a sign then."""
        said = zip(runs.get("run:measures", ()), runs.get("run:name", ()), strict=True)
        by_run = {run: one[name] for one, run in said if isinstance(one, dict) and one.get(name)}
        ways = {measure.higher_is_better: run for run, measure in by_run.items()}
        if len(ways) > 1:
            raise ReportError(
                f"the runs do not agree which way of {name} is better: higher says {ways[True]}, lower {ways[False]}; "
                f"mend `measures` in one's done.json, or report the two apart"
            )
        return cls(name, next(iter(by_run.values()), None))

    @property
    def is_known(self) -> bool:
        """Whether the record, or else our table, says which way is better."""
        return self.declared is not None or known_measure(self.name) is not None

    @property
    def measure(self) -> Measure:
        return self.declared or known_measure(self.name) or Measure(higher_is_better=True)

    @property
    def is_fraction(self) -> bool:
        return self.measure.shown == "percent"

    @property
    def counts_samples(self) -> bool:
        """Whether it is the share of the test samples that were answered right; an IoU, say, is another fraction."""
        return self.measure.of_samples

    @property
    def higher_is_better(self) -> bool:
        return self.measure.higher_is_better

    @property
    def title(self) -> str:
        """For headings and axes: `test accuracy, %`."""
        return self.name.replace("_", " ") + (", %" if self.is_fraction else "")

    @property
    def scale(self) -> float:
        """Stored values times this are shown values: a fraction is shown in points."""
        return 100.0 if self.is_fraction else 1.0

    @property
    def unit(self) -> str:
        """For sentences, after a number: ` %`, or nothing."""
        return " %" if self.is_fraction else ""

    @property
    def points(self) -> str:
        """The same of a difference: ` points`, or nothing."""
        return " points" if self.is_fraction else ""

    @property
    def digits(self) -> int:
        """Return the decimals of a shown value: 1 for a share, otherwise enough for a tenth of `show_down_to`."""
        if self.is_fraction:
            return 1
        needed = 1 - math.floor(math.log10(self.show_down_to)) if self.show_down_to > 0 else 0
        return min(max(4, needed), MOST_DIGITS)

    def show(self, value: float) -> str:
        """Return `98.9`; `-` without a value."""
        return f"{value * self.scale:.{self.digits}f}" if math.isfinite(value) else "-"

    def show_difference(self, value: float) -> str:
        """Return `+0.1` or `−0.2`; `-` without a value."""
        if not math.isfinite(value):
            return "-"
        return ("\N{MINUS SIGN}" if value < 0 else "+") + self.show(abs(value))

    def show_tolerance(self, shown: float) -> str:
        """Return `1 point`, `0.5 points` or `0.05`; `the margin` if the number is unknown."""
        if math.isnan(shown):
            return "the margin"
        unit = (" point" if shown == 1 else " points") if self.is_fraction else ""
        return f"{shown:g}{unit}"

    def show_between(self, value: float, low: float, high: float) -> str:
        """Return a difference and its interval, such as `−0.39 [−0.84, +0.06]`; `-` without a value.

        An end that is not known yet is infinite. A known end of a fraction is at most 100 points.
        """
        return "-" if math.isnan(value) else f"{self.show_gap(value)} {self.show_ends(low, high)}"

    def show_ends(self, low: float, high: float) -> str:
        """Return the interval of a difference, such as `[−0.84, +0.06]`."""
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
