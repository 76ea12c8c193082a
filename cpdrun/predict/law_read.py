"""The finished runs that a law is fitted to: of a sweep's folder, or of a committed reference.

A row is what cpdrun.study.collect makes of a run: config keys joined by dots, metric:NAME, memory:NAME, run:NAME.
A reference's values.csv has the axes alone; the other keys are those of its experiment as it is now.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from custom_fp.formats.block import BlockFormat
from custom_fp.formats.names import parse
from custom_fp.formats.protocol import NumberFormat
from custom_fp.formats.scalar import Format

from cpdrun.config.keys import flatten
from cpdrun.errors import UserError
from cpdrun.record import SweepDir, find_sweeps, split_results_dir
from cpdrun.report.claims.values import Values, of_reference, of_runs, references
from cpdrun.study.collect import collect, finished, identity

Row = dict[str, Any]
RULES = "precision.rules"
WIDE = 16  # bits from which a format without blocks counts as nothing rounded


@dataclass
class Study:
    """`rows` of one experiment, what varies in them, where they are from, and what was left out, a line each."""

    name: str
    source: str
    rows: list[Row]
    axes: list[str]
    notes: list[str] = field(default_factory=list)


def read(words: Sequence[str]) -> list[Study]:
    """Each word is a sweep's name or folder, or a committed reference's; `results_dir=PATH` says where sweeps lie.
    Raises UserError."""
    _, names = split_results_dir(words)
    folders = [word for word in words if word not in names]
    if not names:
        raise UserError("--law needs the sweeps to fit: cpdrun predict --law llama_scaling_small")
    return [_read(name, folders) for name in names]


def _read(name: str, folders: Sequence[str]) -> Study:
    try:
        [sweep] = find_sweeps([*folders, name])
    except UserError as missing:
        kept = references()
        folder = Path(name) if "/" in name else kept and kept / name
        values = of_reference(folder) if folder is not None else None
        if values is None:
            there = sorted(path.parent.name for path in kept.glob("*/values.csv")) if kept else []
            also = f"; committed references that have values: {', '.join(there)}" if there else ""
            raise UserError(f"{missing}{also}") from None
        return _of_values(folder.name, values)
    return _of_sweep(sweep)


def _of_sweep(sweep: SweepDir) -> Study:
    values = of_runs(sweep)
    if values is None:
        raise UserError(f"no finished run in {sweep.path}: train some with `cpdrun sweep`")
    rows = finished(collect([sweep])).to_dict("records")
    for row in rows:
        row[RULES] = _rules(row.get(RULES))
        row["diverged"] = row.get("run:status") == "diverged"
        row["num_classes"] = row.get("run:num_classes")
    return Study(sweep.name, str(sweep.path), rows, values.axes)


def _rules(value: Any) -> list[Mapping[str, Any]]:
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return []
    return found if isinstance(found, list) else []


def _of_values(name: str, values: Values) -> Study:
    """With the keys of the experiment of that name, for each cell."""
    configs = _configs(name, values.axes)
    rows, lost = [], 0
    for row in values.rows.to_dict("records"):
        config = configs.get(_cell(row, values.axes))
        if config is None:
            lost += 1
        else:
            rows.append({**config, **row})
    if not rows:
        raise UserError(f"{values.source}: none of its runs is one that exp={name} asks for now")
    notes = [f"{lost} runs of {values.source} are none that exp={name} asks for now"] if lost else []
    return Study(name, values.source, rows, values.axes, notes)


def _configs(name: str, axes: Sequence[str]) -> dict[tuple[str, ...], Row]:
    from cpdrun.sweep import plan

    configs = [dict(flatten(run.config)) for run in plan([f"exp={name}", "seed=0"], imports=False).runs]
    return {_cell(config, axes): config for config in configs}


def _cell(row: Mapping[str, Any], axes: Sequence[str]) -> tuple[str, ...]:
    return tuple(identity(row.get(axis)) for axis in axes)


def number(value: Any) -> float:
    """NaN for what is none."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else math.nan


def parameters(row: Row) -> float:
    """Of the model: as recorded, or the bytes of its float32 weights over four; NaN where neither is known."""
    recorded = number(row.get("run:parameters"))
    return recorded if math.isfinite(recorded) else number(row.get("memory:model_bytes")) / 4


def data_read(row: Row) -> tuple[float, str]:
    """How much a run learnt from, and of what: tokens or samples where the number of steps is given, else epochs."""
    steps, context = number(row.get("max_steps")), number(row.get("data.context"))
    if not math.isfinite(steps):
        return number(row.get("epochs")), "epochs"
    samples = steps * number(row.get("world_size")) * number(row.get("batch_size"))
    return (samples * context, "tokens") if math.isfinite(context) else (samples, "samples")


@dataclass(frozen=True)
class Rounded:
    """What the forward products of a run read: formats of weights and activations; None where nothing is rounded."""

    weight: NumberFormat | None
    activation: NumberFormat | None

    @property
    def narrowest(self) -> NumberFormat | None:
        known = [fmt for fmt in (self.weight, self.activation) if fmt is not None]
        return min(known, key=lambda fmt: fmt.bits, default=None)


def rounded(row: Row) -> Rounded:
    """By the first rule of the run's recipe that reaches all layers in all steps, for each of both."""
    return Rounded(*(_format_of(_rules(row.get(RULES)), role) for role in ("weight", "input")))


def _format_of(rules: Sequence[Mapping[str, Any]], role: str) -> NumberFormat | None:
    for rule in rules:
        part = any(rule.get(key) is not None for key in ("first", "last", "steps"))
        if part or "*" not in _listed(rule.get("modules")) or role not in _listed(rule.get("role")):
            continue
        if "forward" in _listed(rule.get("product") or "forward"):
            return _narrow(str(rule.get("format")))
    return None


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


def _narrow(name: str) -> NumberFormat | None:
    try:
        fmt = parse(name)
    except ValueError:
        return None
    return None if isinstance(fmt, Format) and fmt.bits >= WIDE else fmt


def element_and_block(fmt: NumberFormat) -> tuple[float, float, float] | None:
    """E, M and B of a format in blocks, as arXiv 2501.02423 counts them. It has no integers: here they have no exponent
    and all their digits.
    None where no number of values shares a scale (a scalar format, a whole row or tensor)."""
    if not isinstance(fmt, BlockFormat):
        return None
    block = math.prod(fmt.block) if isinstance(fmt.block, tuple) else fmt.block
    if not isinstance(block, int) or block < 2:
        return None
    if isinstance(fmt.of, Format):
        return float(fmt.of.exponent_bits), float(fmt.of.mantissa_bits), float(block)
    return 0.0, float(fmt.of.bits - 1), float(block)
