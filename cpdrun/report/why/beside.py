"""The runs beside a run that differ from it in one knob alone, of the same seed: what they reach is measured.

A knob is what one turns to lose less: the format of the sum, how it is scaled, its order, Kahan's or stochastic
rounding, error feedback, layers in fp32, the recipe.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpdrun.config.overrides import typed_form
from cpdrun.record import RunDir, State
from cpdrun.report.why.knobs import FORMAT, knob
from cpdrun.report.why.seen import Seen, seen
from cpdrun.report.why.standing import RunStanding, RunVerdict, against, row_of
from cpdrun.study.axes import formats
from cpdrun.study.collect import CASE, CORE_AXES, SEED, config_keys, identity, may_be_axis
from cpdrun.study.runs.history import rows_of
from cpdrun.study.study import Study

LEAST = 0.2  # of what is lost: who gets less of it back has hardly turned the right knob
NO_KNOBS = ("observe",)  # what is looked at changes nothing
_SAID = ("format", "aps", "recipe")  # of several keys of one knob, those that say it all


@dataclass(frozen=True)
class Beside:
    """A run that differs in one knob, and what it reached."""

    knob: str
    words: list[str]  # key=value, as they are typed to get it
    run: RunDir
    stands: RunStanding
    seen: Seen


def beside(study: Study, run: RunDir, stands: RunStanding) -> list[Beside]:
    """Those that have ended, held against the same baseline as `run`, which stands as it `stands`, and lost less; the
    best first of what costs no bits. Of formats those of as many bits, and of the wider ones the narrowest."""
    keys = [*CORE_AXES, *study.axes]  # what the runs differ in
    runs = study.runs
    own = row_of(study, run)
    done = (runs["run:state"] == State.DONE) & runs["run:problem"].isna()
    seed = identity(own.get(SEED))
    baselines = {one.name for group in study.groups if group.is_baseline for one in group.runs}
    found = []
    for row in runs[done & (runs[SEED].map(identity) == seed)].to_dict("records"):
        changed = _changed(row, own, keys)
        if CASE in changed:  # a name; what it settles is the knob
            changed = _changed(
                row, own, [key for key in config_keys(runs) if may_be_axis(key) or key in CORE_AXES]
            )
            changed = [key for key in changed if key not in (CASE, *NO_KNOBS)]
        knobs = {knob(key) for key in changed}
        if len(knobs) == 1 and None not in knobs and row["run:name"] not in baselines:
            other = RunDir(Path(row["run:path"]))
            theirs = against(study, row, stands)
            if math.isfinite(theirs.lost) and not theirs.lost >= stands.lost:
                words = _words(changed, row)
                found.append(Beside(knobs.pop(), words, other, theirs, seen(rows_of(other))))
    mine = formats.bits(own.get("format")) or 0

    def cheap_and_good(one: Beside) -> tuple:
        """First what is within the tolerance, then what sends no more bits, then what loses less."""
        wider = one.knob == FORMAT and (formats.bits(one.words[0].partition("=")[2]) or 0) > mine
        return one.stands.verdict is not RunVerdict.WITHIN, wider, one.stands.lost

    return sorted(_fewest_bits(found, own), key=cheap_and_good)


def _changed(row: Mapping[str, Any], own: Mapping[str, Any], keys: Iterable[str]) -> list[str]:
    return [key for key in keys if identity(row.get(key)) != identity(own.get(key))]


def is_mend(study: Study, stands: RunStanding, one: Beside) -> bool:
    """Whether it loses so much less than a run that stands as it `stands` that one would turn that knob."""
    if one.stands.verdict is RunVerdict.WITHIN:
        return True
    if not math.isfinite(stands.lost):
        return True
    return stands.lost - one.stands.lost > max(study.tolerance / study.metric.scale, LEAST * stands.lost)


def _fewest_bits(found: list[Beside], own: Mapping[str, Any]) -> list[Beside]:
    """Without formats of fewer bits and without all but the narrowest of the wider ones."""
    bits = {one.run: formats.bits(one.words[0].partition("=")[2]) for one in found if one.knob == FORMAT}
    mine = formats.bits(own.get("format")) or 0
    wider = sorted((size, i) for i, size in enumerate(bits.values()) if size is not None and size > mine)
    narrowest = list(bits)[wider[0][1]] if wider else None
    return [one for one in found if one.knob != FORMAT or bits[one.run] == mine or one.run == narrowest]


def _words(changed: list[str], row: Mapping[str, Any]) -> list[str]:
    said = [key for key in changed if key in _SAID] or [
        key for key in changed if not key.endswith("_target_")
    ]
    return [f"{key}={typed_form(_value(row.get(key)))}" for key in said]


def _value(value: Any) -> Any:
    """A list stands in its column as JSON."""
    return json.loads(value) if isinstance(value, str) and value.startswith("[") else value
