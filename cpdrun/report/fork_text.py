"""Show fork tests as sentences, as text and as numbers: the gap of the training loss over the steps."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import pandas as pd

from cpdrun.report.render import render_lines
from cpdrun.report.tables import Shown
from cpdrun.study.fork_test import PARTS, ForkTest, MeanGap
from cpdrun.study.metric import Metric

HEADER = [
    *("candidate", "pairs", "1st quarter", "2nd quarter", "3rd quarter", "4th quarter"),
    "change over all steps",
]
MOST_DECIMALS = 12


def sentences(tests: Sequence[ForkTest], metric: Metric, confidence: float) -> list[str]:
    """Say which runs are compared, how each gap changes, and how much two forks of the baseline differ.

    Args:
        tests: The fork tests.
        metric: The metric that decides.
        confidence: The confidence of each interval in percent.
    """
    found = []
    for test in tests:
        shown = _metric(test, metric)
        found += render_lines(
            "fork_test.j2",
            test=test,
            confidence=f"{confidence:g}",
            gap=lambda gap, shown=shown: _gap(gap, shown) + shown.points,
            size=lambda value, shown=shown: shown.show(value) + shown.points,
        )
    return found


def shown(tests: Sequence[ForkTest], metric: Metric) -> Shown:
    """Return the gaps of the loss to the baseline as a table. Each candidate and each control has a row."""
    has_settings = any(test.setting for test in tests)
    rows = []
    for test in tests:
        of_test, setting = _metric(test, metric), [test.setting] if has_settings else []
        for each in test.candidates:
            gaps = [_gap(gap, of_test) for gap in (*each.parts, each.growth)]
            rows.append([*setting, each.candidate, str(each.pairs), *gaps])
        if (control := test.control) is not None:
            sizes = [f"±{of_test.show(size)}" for size in (*control.parts, control.growth)]
            rows.append([*setting, f"{test.baseline}, other seeds", "-", *sizes])
    return Shown([*(["setting"] if has_settings else []), *HEADER], rows, 2 if has_settings else 1)


def numbers(tests: Sequence[ForkTest]) -> pd.DataFrame:
    """Return the gaps as numbers in the stored unit, with one row for each candidate and part of the steps.

    The growth has the part "all". A control has no interval, and its `mean` is the root mean square
    difference.
    """
    return pd.DataFrame([row for test in tests for row in _number_rows(test)])


def _number_rows(test: ForkTest) -> Iterator[dict[str, Any]]:
    parts = [*range(1, PARTS + 1), "all"]
    ends = [*test.steps, (test.steps[0][0], test.steps[-1][1])]
    about = {"setting": test.setting, "baseline": test.baseline, "metric": test.metric}
    places = [
        {"part": part, "first_step": a, "last_step": b} for part, (a, b) in zip(parts, ends, strict=True)
    ]
    for each in test.candidates:
        for place, gap in zip(places, (*each.parts, each.growth), strict=True):
            yield {**about, "candidate": each.candidate, "pairs": each.pairs, **place, **vars(gap)}
    if (control := test.control) is not None:
        for place, size in zip(places, (*control.parts, control.growth), strict=True):
            yield {
                **about,
                "candidate": f"{test.baseline}, other seeds",
                "pairs": control.seeds,
                **place,
                "mean": size,
            }


def _metric(test: ForkTest, metric: Metric) -> Metric:
    """Return the compared metric with two significant digits of a typical gap, and at least four decimals."""
    metric = metric if metric.name == test.metric else Metric(test.metric)
    sizes = [abs(gap.mean) for each in test.candidates for gap in each.parts]
    typical = median(sizes) * metric.scale
    decimals = 1 - math.floor(math.log10(typical)) if typical > 0 else 0
    return replace(metric, decimals=min(max(decimals, 2 if metric.is_fraction else 4), MOST_DECIMALS))


def _gap(gap: MeanGap, metric: Metric) -> str:
    """Return a gap with its interval, or without an interval if the pairs do not limit it."""
    if math.isinf(gap.low) and math.isinf(gap.high):
        return metric.show_gap(gap.mean)
    return metric.show_between(gap.mean, gap.low, gap.high)
