"""Read from sweep.yaml the question of a search, or of a sweep that was given a question.

A report answers the same question unless the user types another one.
"""

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

CONFIDENCE = 95.0  # the default confidence in per cent


@dataclass(frozen=True)
class Asked:
    """The question of a search or a sweep. Parts that sweep.yaml lacks or that cannot be read are None or empty.

    Attributes:
        tolerance: The margin in the unit in which the metric is shown (points for a share), or text such as "2%".
        confidence: The confidence in per cent.
        metric: The name of the metric.
        baseline: The values of the baseline, by key.
        axis: The axis of bits that was searched.
        starts: The starts of the chains that do not start at their widest width.
        ledger: The ledger of the tested hypotheses.
        by: The command that recorded the question: "search" or "sweep".
    """

    tolerance: Typed | None = None
    confidence: float | None = None
    metric: str | None = None
    baseline: Mapping[str, Any] = field(default_factory=dict)
    axis: str | None = None
    starts: tuple[Start, ...] = ()
    ledger: Ledger = field(default_factory=Ledger, compare=False)
    by: str = "search"


def baseline_of(runs: pd.DataFrame, typed: Mapping[str, Any] | None, question: Asked) -> Mapping[str, Any]:
    """Return the requested values of the baseline, by key: those that were typed, or else those of the search.

    Args:
        runs: The runs, as `collect` returns them.
        typed: The typed values of the baseline. None if none were typed.
        question: The question of the search.

    Raises:
        ReportUsageError: No run has a typed key or a typed value.
    """
    for key, value in (typed or {}).items():
        known = sorted({axis_text(found) for found in runs[key]}) if key in config_keys(runs) else []
        if not known:
            raise ReportUsageError(f"--baseline {key}={axis_text(value)}: the runs have no key {key!r}")
        if not any(formats.same(value, found) for found in runs[key]):
            there = ", ".join(known)
            raise ReportUsageError(
                f"--baseline {key}={axis_text(value)}: no run has this value; the runs have {there}"
            )
    return question.baseline if typed is None else typed


def asked(sweeps: Sequence[SweepDir]) -> Asked:
    """Return the question that all sweeps share, or an empty question if they have none or their questions differ.

    Several sweeps together count as a new question, so the ledger is empty then.
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
