"""Runs of the same seed that differ from a run in one tunable setting and lost less: measured improvements."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpdrun.config.overrides import typed_form
from cpdrun.record import RunDir, State
from cpdrun.study.axes import formats
from cpdrun.study.collect import CASE, CORE_AXES, SEED, config_keys, identity, may_be_axis
from cpdrun.study.diagnosis.gradient_statistics import GradientStatistics, gradient_statistics
from cpdrun.study.diagnosis.run_comparison import RunComparison, RunVerdict, compare_row, row_of
from cpdrun.study.diagnosis.tunables import FORMAT, tunable
from cpdrun.study.runs.history import rows_of
from cpdrun.study.study import Study

LEAST_GAIN = 0.2  # of the loss in quality; a smaller gain does not count as an improvement
IGNORED = ("observe",)  # settings that change no result
_SUFFICIENT = (
    "format",
    "aps",
    "recipe",
)  # if one of these changed, the keys that follow from it are not listed


@dataclass(frozen=True)
class Neighbor:
    """A run that differs in one tunable setting.

    Attributes:
        tunable: The setting, such as "order".
        words: key=value as one types them to get this run.
    """

    tunable: str
    words: list[str]
    run: RunDir
    comparison: RunComparison
    statistics: GradientStatistics


def find_neighbors(study: Study, run: RunDir, comparison: RunComparison) -> list[Neighbor]:
    """Return the finished neighbors of a run that lost less than it, compared with the same baseline.

    Neighbors within the margin come first, then those with no more bits, then those that lost least. Formats of fewer
    bits are left out, and of the wider formats only the narrowest is kept.
    """
    keys = [*CORE_AXES, *study.axes]
    runs = study.runs
    own = row_of(study, run)
    done = (runs["run:state"] == State.DONE) & runs["run:problem"].isna()
    seed = identity(own.get(SEED))
    baselines = {one.name for group in study.groups if group.is_baseline for one in group.runs}
    found = []
    for row in runs[done & (runs[SEED].map(identity) == seed)].to_dict("records"):
        changed = _changed(row, own, keys)
        if CASE in changed:  # the name of a case stands for the settings of its own
            every = [key for key in config_keys(runs) if may_be_axis(key) or key in CORE_AXES]
            changed = [key for key in _changed(row, own, every) if key not in (CASE, *IGNORED)]
        tunables = {tunable(key) for key in changed}
        if len(tunables) == 1 and None not in tunables and row["run:name"] not in baselines:
            other = RunDir(Path(row["run:path"]))
            theirs = compare_row(study, row, comparison)
            if math.isfinite(theirs.lost) and not theirs.lost >= comparison.lost:
                statistics = gradient_statistics(rows_of(other))
                found.append(Neighbor(tunables.pop(), _words(changed, row), other, theirs, statistics))
    own_bits = formats.bits(own.get("format")) or 0

    def cost(one: Neighbor) -> tuple:
        is_wider = (_format_bits(one) or 0) > own_bits
        return one.comparison.verdict is not RunVerdict.WITHIN, is_wider, one.comparison.lost

    return sorted(_fewest_bits(found, own_bits), key=cost)


def is_improvement(study: Study, comparison: RunComparison, neighbor: Neighbor) -> bool:
    """Return whether a neighbor loses so much less than the run that its setting is worth changing."""
    if neighbor.comparison.verdict is RunVerdict.WITHIN or not math.isfinite(comparison.lost):
        return True
    gain = comparison.lost - neighbor.comparison.lost
    return gain > max(study.tolerance / study.metric.scale, LEAST_GAIN * comparison.lost)


def _changed(row: Mapping[str, Any], own: Mapping[str, Any], keys: Iterable[str]) -> list[str]:
    return [key for key in keys if identity(row.get(key)) != identity(own.get(key))]


def _format_bits(neighbor: Neighbor) -> float | None:
    """Return the bits of a neighbor's format; None if it differs in another setting."""
    return formats.bits(neighbor.words[0].partition("=")[2]) if neighbor.tunable == FORMAT else None


def _fewest_bits(found: list[Neighbor], own_bits: float) -> list[Neighbor]:
    """Return the neighbors without formats of fewer bits, and with only the narrowest of the wider formats."""
    wider = [(bits, i) for i, one in enumerate(found) if (bits := _format_bits(one) or 0) > own_bits]
    narrowest = found[min(wider)[1]] if wider else None
    return [
        one
        for one in found
        if one.tunable != FORMAT or one is narrowest or (_format_bits(one) or math.nan) == own_bits
    ]


def _words(changed: list[str], row: Mapping[str, Any]) -> list[str]:
    keys = [key for key in changed if key in _SUFFICIENT]
    keys = keys or [key for key in changed if not key.endswith("_target_")]
    return [f"{key}={typed_form(_value(row.get(key)))}" for key in keys]


def _value(value: Any) -> Any:
    """Decode a list, which a table holds as JSON."""
    return json.loads(value) if isinstance(value, str) and value.startswith("[") else value
