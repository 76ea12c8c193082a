"""Compute the costs against which a report draws the metric. Each cost is a number for each group of runs.

    bytes    The bytes that a worker sends each step, as the exchange recorded them.
    kept     The bytes that a worker keeps, with each value in its format, as the run recorded them: weights and
             optimizer state, and also activations if all compared groups recorded them.
    bitops   The multiply-accumulates of a step times the bits of both operands (arXiv 2005.07093, section 4.1).
    area     The transistors of a multiply-accumulate unit, averaged over the multiply-accumulates of a step, from
             area.csv. Twice the area means twice the silicon for the same step in the same time.

Bit operations and area count only the multiply-accumulates. If a record lacks a figure, the cost is unknown (NaN) and a
reason is given. No figure is estimated.

scripts/research/area makes area.csv with Yosys. A unit that is missing from it is not estimated from similar units; the
reason names the command that adds it. Hardware accumulates sums of products of integers in integers. The emulation
accumulates them in fp32, so an fp32 accumulator of integer products is looked up as an integer accumulator.
"""

import csv
import math
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from typing import Any

from custom_fp.accumulator import is_name

from cpdrun.study.group import Group

SCRIPT = "PYTHONPATH=scripts python -m research.area"

# The format of the narrower operand, the format of the other operand, and the format of the accumulator.
Unit = tuple[str, str, str]


@cache
def mac_table() -> dict[Unit, int]:
    """Return the transistors of each unit, which has a multiplier, an adder and a rounding after each of them."""
    return {(row["a"], row["b"], row["accumulator"]): int(row["mac"]) for row in area_rows()}


def area_rows() -> list[dict[str, str]]:
    """Return the rows of area.csv as text by column name."""
    lines = (resources.files(__package__) / "area.csv").read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def unit_of(a: str, b: str, accumulator: str) -> Unit:
    """Return the key of a unit in `mac_table`, with an integer accumulator if both operands are integers."""
    of_integers = is_integer(a) and is_integer(b) and accumulator == "fp32"
    return a, b, integers(a, b) if of_integers else accumulator


def integers(a: str, b: str) -> str:
    """Return the accumulator of products of two integers: int32, or 16 bits more than a product if that is wider."""
    return f"int{max(32, int(a[3:]) + int(b[3:]) + 16)}"


def why_missing(missing: Unit) -> str:
    """Return why a unit is missing from the table, with the command that adds it if there is one."""
    a, b, accumulator = missing
    operands = a if a == b else f"{a}x{b}"
    text = f"{a} x {b} summed up in {accumulator} has no known area"
    if is_name(accumulator):
        return f"{text}: such an accumulator cannot be synthesized"
    if len({is_integer(name) for name in missing}) > 1:
        return f"{text}: no unit takes both integers and floating-point numbers"
    return f"{text}: {SCRIPT} {operands} --accumulator {accumulator} adds it"


def is_integer(name: str) -> bool:
    """Return whether a format is an integer format, such as `int8`."""
    return name.startswith("int") and name[3:].isdigit()


# The costs of the groups whose cost is known, and the reasons why the other groups have none.
Found = tuple[dict[Group, float], list[str]]

KEPT = ("model_bytes", "optimizer_bytes")
ACTIVATIONS = "activation_bytes"


def bit_operations(group: Group) -> float:
    """Return the bit operations of a worker's step, or NaN if they are unknown or some products were not counted."""
    found = group.products or {}
    return math.nan if found.get("uncounted") else _positive(found.get("bit_operations_per_step"))


def transistors(group: Group) -> tuple[float, list[Unit]]:
    """Return the transistors of a unit, averaged over the multiply-accumulates of a step.

    Returns:
        The mean and no units, or NaN and the units that are missing from the table.
    """
    counts: dict[Unit, float] = {}
    for kind in kinds(group.products):
        unit = unit_of(*kind[:3])
        counts[unit] = counts.get(unit, 0.0) + kind[3]
    known, total = mac_table(), sum(counts.values())
    missing = [unit for unit in counts if unit not in known]
    if missing or not total or not bit_operations(group) > 0:
        return math.nan, missing
    return sum(known[unit] * macs for unit, macs in counts.items()) / total, []


def kinds(products: dict[str, Any] | None) -> list[tuple[str, str, str, float]]:
    """Return both operand formats, the accumulator format and the multiply-accumulates of each recorded product."""
    found = (products or {}).get("by_format")
    rows = [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []
    read = [(row.get("a"), row.get("b"), row.get("accumulator"), _positive(row.get("macs"))) for row in rows]
    return [
        (a, b, accumulator, macs)
        for a, b, accumulator, macs in read
        if isinstance(a, str) and isinstance(b, str) and isinstance(accumulator, str) and macs > 0
    ]


def _positive(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and value > 0 else math.nan


def sent_bytes(groups: Sequence[Group]) -> Found:
    """Return the bytes that a worker of each group sends per step."""
    known = {group: group.wire_bytes for group in groups if group.wire_bytes > 0}
    return known, _some_lack(groups, known, "records do not say what was sent")


def kept_bytes(groups: Sequence[Group]) -> Found:
    """Return the bytes that a worker of each group keeps."""
    have = [g for g in groups if all(math.isfinite(g.figures.get(part, math.nan)) for part in KEPT)]
    with_activations = all(math.isfinite(g.figures.get(ACTIVATIONS, math.nan)) for g in have)
    parts = (*KEPT, ACTIVATIONS) if with_activations else KEPT
    known = {group: sum(group.figures[part] for part in parts) for group in have}
    return known, _some_lack(groups, known, "records do not say what was kept")


def bit_operation_counts(groups: Sequence[Group]) -> Found:
    """Return the bit operations of a worker's step of each group."""
    known = {group: count for group in groups if (count := bit_operations(group)) > 0}
    return known, _some_lack(groups, known, _without_products(groups))


def transistor_counts(groups: Sequence[Group]) -> Found:
    """Return the mean transistors of a multiply-accumulate unit of each group."""
    known: dict[Group, float] = {}
    missing: dict[Unit, None] = {}
    for group in groups:
        count, lacks = transistors(group)
        missing |= dict.fromkeys(lacks)
        if count > 0:
            known[group] = count
    why = [why_missing(unit) for unit in missing]
    return known, why or _some_lack(groups, known, _without_products(groups))


def _without_products(groups: Iterable[Group]) -> str:
    """Return the reason why the multiply-accumulates of a step are not known."""
    for products in (group.products for group in groups if group.products):
        if (names := products.get("uncounted")) and isinstance(names, list):
            return f"multiply-accumulates of {names[0]} are not counted"
        if problem := products.get("problem"):
            return f"multiply-accumulates were not counted ({problem})"
    return "an earlier version trained the runs and did not count the multiply-accumulates of a step"


def _some_lack(groups: Sequence[Group], known: dict[Group, float], why: str) -> list[str]:
    if len(known) == len(groups):
        return []
    return [why if not known else f"of {len(groups) - len(known)} of {len(groups)}, {why}"]
