"""Compute the costs that a report plots against the metric.

    bytes    The bytes that a worker sends per step, as recorded.
    kept     The bytes that a worker stores for weights and optimizer state, each value in its format. Activations are
             included if all compared groups recorded them.
    bitops   The bit operations of a step: the product of both operands' bit widths, summed over multiply-accumulates
             (arXiv 2005.07093, section 4.1).
    area     The mean number of transistors of the multiply-accumulate units of a step (area.csv). Twice the area means
             twice the silicon for the same step in the same time.

Bit operations and area count only multiply-accumulates. Nothing is estimated: if a record lacks a value, the cost is
unknown and a reason is given. scripts/research/area creates area.csv with Yosys.

The emulation accumulates products of integers in fp32, but hardware uses an integer accumulator. Therefore, the area of
a product of integers is looked up with an integer accumulator.
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

# A multiply-accumulate unit: the formats of the narrower operand, the other operand, and the accumulator.
Unit = tuple[str, str, str]
# The known costs, and the reasons why other groups have none.
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
    """Return the rows of area.csv as dictionaries of text."""
    lines = (resources.files(__package__) / "area.csv").read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def unit_of(a: str, b: str, accumulator: str) -> Unit:
    """Return the key of a unit in `mac_table`. If both operands are integers, an integer accumulator replaces fp32."""
    of_integers = is_integer(a) and is_integer(b) and accumulator == "fp32"
    return a, b, integers(a, b) if of_integers else accumulator


def integers(a: str, b: str) -> str:
    """Return the accumulator format of integer products. It has 16 bits more than a product, and at least 32."""
    return f"int{max(32, int(a[3:]) + int(b[3:]) + 16)}"


def why_missing(missing: Unit) -> str:
    """Return why a unit is missing, and the command that adds it."""
    a, b, accumulator = missing
    operands = a if a == b else f"{a}x{b}"
    text = f"{a} x {b} summed up in {accumulator} has no known area"
    if is_name(accumulator):
        return f"{text}: such an accumulator cannot be synthesized"
    if len({is_integer(name) for name in missing}) > 1:
        return f"{text}: no unit takes both integers and floating-point numbers"
    return f"{text}: {SCRIPT} {operands} --accumulator {accumulator} adds it"


def is_integer(name: str) -> bool:
    return name.startswith("int") and name[3:].isdigit()


def bit_operations(group: Group) -> float:
    """Return a worker's bit operations per step. NaN if they were not recorded or if some products were not counted."""
    found = group.products or {}
    return math.nan if found.get("uncounted") else _positive(found.get("bit_operations_per_step"))


def coverage(group: Group) -> float:
    """Return the share of the multiply-accumulates with a rounded input or sum, or NaN if this was not recorded."""
    return rounded_share(group.products)


def rounded_share(products: dict[str, Any] | None) -> float:
    """Return the share of a step's recorded multiply-accumulates with a rounded input or sum, or NaN if unknown."""
    found = kinds(products)
    total = sum(macs for *_, macs in found)
    return sum(macs for *kind, macs in found if set(kind) != {"fp32"}) / total if total else math.nan


def not_counted(groups: Iterable[Group]) -> dict[str, str]:
    """Return the candidates whose products were not counted, each with the reason.

    Groups of a study that compares the formats of exchanged gradients are left out, because these formats do not affect
    products.
    """
    return {
        group.name: str(problem)
        for group in groups
        if not (group.is_baseline or group.axis.is_of_gradients)
        and (problem := (group.products or {}).get("problem"))
    }


def transistors(group: Group) -> tuple[float, list[Unit]]:
    """Return the mean transistors of a unit over the multiply-accumulates of a step.

    Returns:
        The mean, or NaN if it is unknown, and the units that are missing from the table.
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
    """Return each recorded product as (format, format, accumulator, multiply-accumulates per step).

    Malformed rows are left out.
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
    """Return the bytes that a worker of each group sends per step."""
    known = {group: group.wire_bytes for group in groups if group.wire_bytes > 0}
    return known, _some_lack(groups, known, "records do not say what was sent")


def kept_bytes(groups: Sequence[Group]) -> Found:
    """Return the bytes that a worker of each group stores.

    Activations are included only if all groups with a known cost recorded them.
    """
    have = [g for g in groups if all(math.isfinite(g.figures.get(part, math.nan)) for part in KEPT)]
    with_activations = all(math.isfinite(g.figures.get(ACTIVATIONS, math.nan)) for g in have)
    parts = (*KEPT, ACTIVATIONS) if with_activations else KEPT
    known = {group: sum(group.figures[part] for part in parts) for group in have}
    return known, _some_lack(groups, known, "records do not say what was kept")


def bit_operation_counts(groups: Sequence[Group]) -> Found:
    """Return the bit operations of a worker per step, for each group."""
    known = {group: count for group in groups if (count := bit_operations(group)) > 0}
    return known, _some_lack(groups, known, _without_products(groups))


def transistor_counts(groups: Sequence[Group]) -> Found:
    """Return the mean transistors of a multiply-accumulate unit, for each group."""
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
    """Return why the multiply-accumulates per step are unknown."""
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
