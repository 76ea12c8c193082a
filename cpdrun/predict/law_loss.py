"""What a law of loss says of an experiment's runs: its parameters, its test on the largest size, other sizes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cpdrun.errors import UserError
from cpdrun.predict.law_read import Row, Study, data_read, element_and_block, number, parameters, rounded
from cpdrun.stats.robust_fit import ends
from cpdrun.stats.scaling_law import FORMS, HeldOut, Law, NoLawError, Runs, hold_out_largest
from cpdrun.study.collect import identity

LOSS = "metric:test_loss"
MARGIN = 0.05  # in the unit of the loss
PLAIN = "nothing rounded"
PARAMETERS, DATA = "parameters", "data"


@dataclass(frozen=True)
class Asked:
    """A size to predict, as it was typed, and its N and D."""

    text: str
    parameters: float
    data: float


@dataclass
class LossLaws:
    """Both forms, fitted to all runs and, where three sizes allow it, tested; `names` of formats by (E, M, B)."""

    study: Study
    runs: Runs
    unit: str
    names: dict[tuple[float, float, float], str]
    bits: dict[tuple[float, float, float], tuple[float, float]]
    laws: dict[str, Law]
    held: dict[str, HeldOut]
    notes: list[str]

    @property
    def best(self) -> str:
        """The form that told the largest size with the least error, or else fits all runs best."""
        if self.held:
            return min(self.held, key=lambda form: self.held[form].error)
        return min(self.laws, key=lambda form: float(np.mean(np.abs(self.laws[form].fitted.left_over))))


def fit_losses(study: Study, **settings: Any) -> LossLaws:
    """Raises NoLawError where the runs hold none."""
    rows, names, bits, notes, unit = _rows(study)
    runs = Runs.of(rows) if rows else None
    if runs is None:
        raise NoLawError(
            f"a law of loss needs finished runs with a finite loss: {study.source} has none of use"
        )
    laws = {form: Law(form, runs, **settings) for form in FORMS}
    held = {}
    try:
        held = {form: hold_out_largest(form, runs, **settings) for form in FORMS}
    except NoLawError as error:
        notes.append(f"not tested: {error}")
    return LossLaws(study, runs, unit, names, bits, laws, held, notes)


def _rows(study: Study) -> tuple[list[Row], dict, dict, list[str], str]:
    found, names, bits, notes = [], {}, {}, list(study.notes)
    left: dict[str, int] = {}
    units = {data_read(row)[1] for row in study.rows}
    for row in study.rows:
        loss, read = number(row.get(LOSS)), rounded(row)
        fmt = read.narrowest
        element = element_and_block(fmt) if fmt is not None else (math.nan,) * 3
        why = (
            "diverged" if row.get("diverged") is True or not (math.isfinite(loss) and loss > 0)
            else "without a number of values that share a scale" if element is None
            else "without a size or an amount of data" if not all(
                value > 0 for value in (parameters(row), data_read(row)[0]))
            else ""
        )  # fmt: skip
        if why:
            left[why] = left.get(why, 0) + 1
            continue
        if fmt is not None:
            names[element] = fmt.name
            bits[element] = tuple(_bits(one) for one in (read.weight, read.activation))
        found.append(
            {
                "parameters": parameters(row), "data": data_read(row)[0], "loss": loss,
                "exponent_bits": element[0], "mantissa_bits": element[1], "block": element[2],
                "weight_bits": _bits(read.weight), "activation_bits": _bits(read.activation),
                "group": (parameters(row), data_read(row)[0], row.get("seed")),
            }
        )  # fmt: skip
    notes += [f"{count} runs left out: {why}" for why, count in left.items()]
    if len(units) > 1:
        raise NoLawError(
            f"some runs say how many steps they have and others epochs: {', '.join(sorted(units))}"
        )
    return found, names, bits, notes, next(iter(units), "tokens")


def _bits(fmt: Any) -> float:
    """Of an element: 4 of mxfp4."""
    if fmt is None:
        return math.inf
    return float(getattr(fmt, "of", fmt).bits)


def asked_of(text: str, laws: LossLaws) -> Asked | None:
    """`parameters=1e9,data=2e10`, or config keys that size or data follow: `model.width=512,max_steps=1000`. None where
    nothing of it is of size or data. Raises UserError."""
    values = pairs(text)
    largest = laws.study.rows[int(np.argmax([parameters(row) for row in laws.study.rows]))]
    size, data = max(laws.runs.parameters), max(laws.runs.data)
    used = False
    for key, value in values.items():
        if key == PARAMETERS:
            size, used = value, True
        elif key in (DATA, "tokens", "samples") or (key == "epochs" and laws.unit == "epochs"):
            data, used = value, True
        elif key == "max_steps" and laws.unit != "epochs":
            data, used = value * data_read({**largest, "max_steps": 1})[0], True
        elif key != "world_size":
            size, used = _size_at(key, value, laws), True
    if not (size > 0 and data > 0):
        raise UserError(f"--at {text}: sizes and data are above 0")
    return Asked(text, size, data) if used else None


def pairs(text: str) -> dict[str, float]:
    """`a=1,b=2e9` as numbers. Raises UserError."""
    found = {}
    for word in text.split(","):
        key, equals, value = word.partition("=")
        if key.strip() in found:
            raise UserError(f"--at {text}: {key.strip()} has two values; each --at asks one")
        try:
            found[key.strip()] = float(value)
        except ValueError:
            equals = ""
        if not equals or not math.isfinite(found.get(key.strip(), math.nan)):
            raise UserError(f"--at {text}: write KEY=NUMBER,..., such as --at parameters=1e9,data=2e10")
    return found


def _size_at(key: str, value: float, laws: LossLaws) -> float:
    """Parameters at a value of a config key that settles them, by a parabola through what was trained: exact for a
    width, but for what is rounded to a multiple of 32. Raises UserError."""
    known = {
        number(row.get(key)): parameters(row)
        for row in laws.study.rows
        if math.isfinite(number(row.get(key))) and parameters(row) > 0
    }
    alone = {identity(row.get(key)): parameters(row) for row in laws.study.rows}
    settles = len(known) > 1 and all(
        alone[identity(row.get(key))] == parameters(row) for row in laws.study.rows
    )
    if not settles:
        varying = [axis for axis in laws.study.axes if axis.startswith("model.")]
        raise UserError(
            f"--at {key}={value:g}: the size of these models does not follow {key}; there are {PARAMETERS}, {DATA}, "
            f"max_steps, world_size{''.join(f', {axis}' for axis in varying)}"
        )
    x, y = np.array(sorted(known)), np.array([known[at] for at in sorted(known)])
    powers = np.stack([x, x**2], axis=1)[:, : min(len(x), 2)]
    weights = np.linalg.lstsq(powers / y[:, None], np.ones(len(y)), rcond=None)[0]
    return float(sum(weight * value ** (i + 1) for i, weight in enumerate(weights)))


def predicted(laws: LossLaws, form: str, asked: Asked, ci: float) -> list[dict[str, Any]]:
    """A row a format, nothing rounded first: the loss, how much more than with nothing rounded, and how many of the
    draws are within MARGIN of it."""
    formats: Sequence[Any] = [None, *sorted(laws.names, key=lambda fmt: laws.names[fmt])]
    rows = Runs.of([_at(asked, fmt, laws.bits) for fmt in formats])
    law, tolerance = laws.laws[form], MARGIN
    found, every = law.predict(rows, ci), law.draws(rows)
    table = []
    for i, fmt in enumerate(formats):
        more = every[:, i] - every[:, 0]
        low, high = ends(more[1:], float(more[0]), ci)
        table.append(
            {
                "format": PLAIN if fmt is None else laws.names[fmt],
                "loss": float(found.loss[i]), "low": float(found.low[i]), "high": float(found.high[i]),
                "more": float(more[0]), "more_low": low, "more_high": high,
                "tolerance": tolerance, "within": float(np.mean(more[1:] <= tolerance)),
            }
        )  # fmt: skip
    return table


def _at(asked: Asked, fmt: Any, bits: Mapping[Any, tuple[float, float]]) -> dict[str, Any]:
    element, widths = (fmt, bits[fmt]) if fmt is not None else ((math.nan,) * 3, (math.inf, math.inf))
    return {
        "parameters": asked.parameters, "data": asked.data, "loss": 1.0,
        "exponent_bits": element[0], "mantissa_bits": element[1], "block": element[2],
        "weight_bits": widths[0], "activation_bits": widths[1], "group": "",
    }  # fmt: skip


def beyond(laws: LossLaws, asked: Asked) -> tuple[float, float]:
    """How many times larger (or smaller, as large a factor) than anything trained; 1 within."""
    return tuple(
        float(max(1.0, value / max(seen), min(seen) / value))
        for value, seen in ((asked.parameters, laws.runs.parameters), (asked.data, laws.runs.data))
    )
