"""Compute the costs that a report plots the metric against. Each group of runs has one value for each cost.

    bytes    The bytes that a worker sends per step. The exchange recorded them.
    kept     The bytes that a worker stores for the weights and the optimizer state, with each value in its format. If
             all compared groups recorded the bytes of their activations, these are included.
    bitops   The bit operations of a step: for each multiply-accumulate, the product of both operands' bit widths
             (arXiv 2005.07093, section 4.1).
    area     The transistors of a multiply-accumulate unit according to area.csv, averaged over the multiply-accumulates
             of a step. Twice the area means twice the silicon for the same step in the same time.

Bit operations and area count only the multiply-accumulates. If a record lacks a required value, the group's cost is
unknown and a reason is given. Nothing is estimated.

scripts/research/area creates area.csv with Yosys. If area.csv lacks a unit, the reason names the command that adds it.

Hardware accumulates products of integers in an integer accumulator. The emulation accumulates them in fp32. Therefore,
if both operands are integers, an fp32 accumulator is looked up as an integer accumulator.
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

# A multiply-accumulate unit: the format of the narrower operand, of the other operand, and of the accumulator.
Unit = tuple[str, str, str]
# The cost of each group whose cost is known, and the reasons why the costs of the other groups are unknown.
Found = tuple[dict[Group, float], list[str]]

KEPT = ("model_bytes", "optimizer_bytes")
ACTIVATIONS = "activation_bytes"


@cache
def mac_table() -> dict[Unit, int]:
    """Return the number of transistors of each multiply-accumulate unit.

    A unit consists of a multiplier and an adder, each followed by a rounding.
    """
    return {(row["a"], row["b"], row["accumulator"]): int(row["mac"]) for row in area_rows()}


def area_rows() -> list[dict[str, str]]:
    """Return the rows of area.csv as dictionaries keyed by column name. All values are text."""
    lines = (resources.files(__package__) / "area.csv").read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def unit_of(a: str, b: str, accumulator: str) -> Unit:
    """Return the key of a unit in `mac_table`.

    If both operands are integers, an fp32 accumulator is replaced by an integer accumulator.
    """
    of_integers = is_integer(a) and is_integer(b) and accumulator == "fp32"
    return a, b, integers(a, b) if of_integers else accumulator


def integers(a: str, b: str) -> str:
    """Return the accumulator format for products of two integer formats.

    The accumulator has 16 bits more than a product, and at least 32 bits.
    """
    return f"int{max(32, int(a[3:]) + int(b[3:]) + 16)}"


def why_missing(missing: Unit) -> str:
    """Return why a unit is missing from the table. If a command can add the unit, the text names it."""
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


def bit_operations(group: Group) -> float:
    """Return the bit operations that a worker performs per step.

    Return NaN if they were not recorded or if some products were not counted.
    """
    found = group.products or {}
    return math.nan if found.get("uncounted") else _positive(found.get("bit_operations_per_step"))


def transistors(group: Group) -> tuple[float, list[Unit]]:
    """Return the transistors of a unit, averaged over the multiply-accumulates of a step.

    Returns:
        The mean and an empty list. If the mean is unknown, NaN and the units that are missing from the table.
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
    """Return the recorded products as tuples. Malformed rows of the record are left out.

    Returns:
        For each product, the formats of both operands, the format of the accumulator, and the number of
        multiply-accumulates per step.
    """
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
    """Return the bytes that a worker sends per step, for each group."""
    known = {group: group.wire_bytes for group in groups if group.wire_bytes > 0}
    return known, _some_lack(groups, known, "records do not say what was sent")


def kept_bytes(groups: Sequence[Group]) -> Found:
    """Return the bytes that a worker stores, for each group.

    Activations are included only if all groups with a known cost recorded them.
    """
    have = [g for g in groups if all(math.isfinite(g.figures.get(part, math.nan)) for part in KEPT)]
    with_activations = all(math.isfinite(g.figures.get(ACTIVATIONS, math.nan)) for g in have)
    parts = (*KEPT, ACTIVATIONS) if with_activations else KEPT
    known = {group: sum(group.figures[part] for part in parts) for group in have}
    return known, _some_lack(groups, known, "records do not say what was kept")


def bit_operation_counts(groups: Sequence[Group]) -> Found:
    """Return the bit operations that a worker performs per step, for each group."""
    known = {group: count for group in groups if (count := bit_operations(group)) > 0}
    return known, _some_lack(groups, known, _without_products(groups))


def transistor_counts(groups: Sequence[Group]) -> Found:
    """Return the mean number of transistors of a multiply-accumulate unit, for each group."""
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
    """Return the reason why the multiply-accumulates per step are unknown."""
    for products in (group.products for group in groups if group.products):
        if (names := products.get("uncounted")) and isinstance(names, list):
            return f"multiply-accumulates of {names[0]} are not counted"
        if problem := products.get("problem"):
            return f"multiply-accumulates were not counted ({problem})"
    return "an earlier version trained the runs and did not count the multiply-accumulates of a step"


def _some_lack(groups: Sequence[Group], known: dict[Group, float], why: str) -> list[str]:
    if len(known) == len(groups):
        return []
    return [why if not known else f"for {len(groups) - len(known)} of {len(groups)} groups, {why}"]
