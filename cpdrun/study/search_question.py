"""What a search asked, or a sweep that was given the words of one, out of its folder's sweep.yaml: a report answers the
same unless another question is typed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from cpdrun.config.margin import Typed, parse_margin
from cpdrun.record import SweepDir, read_manifest
from cpdrun.stats.ledger import Ledger, Start, read_starts
from cpdrun.study.axes import formats
from cpdrun.study.axes.titles import axis_text
from cpdrun.study.collect import config_keys
from cpdrun.study.errors import ReportUsageError
from cpdrun.study.metric import Metric

CONFIDENCE = 95.0  # per cent, where nobody asked for another


@dataclass(frozen=True)
class Asked:
    """What was no search's, or is not to be read, is None or empty."""

    tolerance: Typed | None = None  # the margin as it is shown (points of a share), or text such as "2%"
    confidence: float | None = None  # per cent
    metric: str | None = None
    baseline: Mapping[str, Any] = field(default_factory=dict)  # the values that name it
    axis: str | None = None  # of bits, along which was searched
    starts: tuple[Start, ...] = ()  # of the chains that do not start at their widest width
    ledger: Ledger = field(default_factory=Ledger, compare=False)
    by: str = "search"

    def said(self, metric: Metric, *, tolerance: bool, confidence: bool) -> str:
        """Which of these the report took over. "" for none."""
        parts = []
        if tolerance and self.tolerance is not None:
            is_percentage = isinstance(self.tolerance, str)
            shown = self.tolerance if is_percentage else metric.show_tolerance(self.tolerance)
            parts.append(f"a margin of {shown}")
        if confidence and self.confidence is not None:
            parts.append(f"{self.confidence:g} % confidence")
        return f"as the {self.by} asked: {', '.join(parts)}; --tol and --ci ask otherwise" if parts else ""


def baseline_of(runs: pd.DataFrame, typed: Mapping[str, Any] | None, question: Asked) -> Mapping[str, Any]:
    """The values that name what is compared with: those that were typed, else as the search asked. Raises
    ReportUsageError for what none of `runs` has."""
    for key, value in (typed or {}).items():
        known = sorted({axis_text(found) for found in runs[key]}) if key in config_keys(runs) else []
        if not known:
            raise ReportUsageError(f"--baseline {key}={axis_text(value)}: the runs have no key {key!r}")
        if not any(formats.same(value, found) for found in runs[key]):
            there = ", ".join(known)
            raise ReportUsageError(
                f"--baseline {key}={axis_text(value)}: no run has that; there are: {there}"
            )
    return question.baseline if typed is None else typed


def asked(sweeps: Sequence[SweepDir]) -> Asked:
    """Return the search question that all `sweeps` share, or an empty one if they are not searches or differ.

    Several sweeps together count as a new question, so its ledger is empty.
    """
    questions = [_asked(sweep) for sweep in sweeps]
    first = questions[0] if questions else Asked()
    if any(question != first for question in questions):
        return Asked()
    return first if len(questions) < 2 else replace(first, ledger=Ledger())


def _asked(sweep: SweepDir) -> Asked:
    try:
        manifest = read_manifest(sweep)
    except (OSError, ValueError):
        return Asked()
    block = manifest.get("search") if isinstance(manifest, Mapping) else None
    if not isinstance(block, Mapping):
        return Asked()
    tolerance, confidence = _margin(block.get("tolerance")), _number(block.get("confidence"))
    metric, baseline = block.get("metric"), block.get("baseline_values", block.get("baseline"))
    return Asked(
        tolerance,
        confidence if confidence is not None and 0 < confidence < 100 else None,
        metric if isinstance(metric, str) else None,
        baseline if isinstance(baseline, Mapping) else {},
        axis if isinstance(axis := block.get("axis"), str) else None,
        read_starts(block.get("start")),
        Ledger.read(block.get("ledger"), block.get("family")),
        "search" if "baseline" in block else "sweep",
    )


def _margin(value: object) -> Typed | None:
    try:
        return parse_margin(value)
    except ValueError:
        return None


def _number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None
