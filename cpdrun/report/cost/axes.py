"""The costs that a report draws the metric against, each a number for every group of runs.

    bytes    a worker sends them each step                                  recorded by the exchange
    kept     what a worker keeps: weights, optimizer's state and, where all
             that are compared record it, what a batch leaves behind        recorded, each value in its format
    bitops   multiply-accumulates of a step times the bits of both operands (arXiv 2005.07093, section 4.1)
    area     transistors of a multiply-accumulate unit, the mean over the step's multiply-accumulates: twice of it,
             twice the silicon for the same step in the same time           area.csv

Bit operations and area are of the products alone. What a record lacks is NaN here, with a reason: nothing is guessed.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cpdrun.report.cost import area
from cpdrun.study.groups.group import Group

Found = tuple[dict[Group, float], list[str]]  # the cost of those that have one, and why others have none

KEPT = ("model_bytes", "optimizer_bytes")
ACTIVATIONS = "activation_bytes"


@dataclass(frozen=True)
class Cost:
    """One of them. title: of an axis; says: behind a number, in a sentence."""

    key: str
    name: str
    title: str
    says: str
    show: Callable[[float], str]
    find: Callable[[Sequence[Group]], Found]
    has_no_other: bool = (
        False  # whether no other sentence of a report speaks of it: its front is told without a knee too
    )


def show_bytes(count: float) -> str:
    """`42 B`, `13.2 kB`, `1.4 MB`: decimal, as networks are measured."""
    if not math.isfinite(count):
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"


def show_count(count: float) -> str:
    """`512`, `59.2 M`, `7.58 G`."""
    if not math.isfinite(count):
        return "-"
    for unit in ("", "k", "M", "G", "T", "P"):
        if count < 1000 or unit == "P":
            break
        count /= 1000
    return f"{count:.3g} {unit}".rstrip()


def show_transistors(count: float) -> str:
    """`11,232`."""
    return f"{count:,.0f}" if math.isfinite(count) else "-"


def bit_operations(group: Group) -> float:
    """Of a worker's step; NaN where its record lacks them, or where not all that multiplies was counted."""
    found = group.products or {}
    return math.nan if found.get("uncounted") else _positive(found.get("bit_operations_per_step"))


def transistors(group: Group) -> tuple[float, list[area.Unit]]:
    """Of a unit, the mean over a step's multiply-accumulates; and the units that the table lacks."""
    counts: dict[area.Unit, float] = {}
    for kind in kinds(group.products):
        unit = area.unit(*kind[:3])
        counts[unit] = counts.get(unit, 0.0) + kind[3]
    known, total = area.table(), sum(counts.values())
    missing = [unit for unit in counts if unit not in known]
    if missing or not total or not bit_operations(group) > 0:
        return math.nan, missing
    return sum(known[unit] * macs for unit, macs in counts.items()) / total, []


def kinds(products: dict[str, Any] | None) -> list[tuple[str, str, str, float]]:
    """Both operands, accumulator and multiply-accumulates of each kind of product that a record names."""
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


def _sent(groups: Sequence[Group]) -> Found:
    known = {group: group.wire_bytes for group in groups if group.wire_bytes > 0}
    return known, _some_lack(groups, known, "records do not say what was sent")


def _kept(groups: Sequence[Group]) -> Found:
    have = [g for g in groups if all(math.isfinite(g.figures.get(part, math.nan)) for part in KEPT)]
    with_activations = all(math.isfinite(g.figures.get(ACTIVATIONS, math.nan)) for g in have)
    parts = (*KEPT, ACTIVATIONS) if with_activations else KEPT
    known = {group: sum(group.figures[part] for part in parts) for group in have}
    return known, _some_lack(groups, known, "records do not say what was kept")


def _bit_operations(groups: Sequence[Group]) -> Found:
    known = {group: count for group in groups if (count := bit_operations(group)) > 0}
    return known, _some_lack(groups, known, _without_products(groups))


def _area(groups: Sequence[Group]) -> Found:
    known: dict[Group, float] = {}
    missing: dict[area.Unit, None] = {}
    for group in groups:
        count, lacks = transistors(group)
        missing |= dict.fromkeys(lacks)
        if count > 0:
            known[group] = count
    why = [area.why_missing(unit) for unit in missing]
    return known, why or _some_lack(groups, known, _without_products(groups))


def _without_products(groups: Iterable[Group]) -> str:
    """Why there are no multiply-accumulates, in words."""
    said = [group.products for group in groups if group.products]
    for products in said:
        if (names := products.get("uncounted")) and isinstance(names, list):
            return f"multiply-accumulates of {names[0]} are not counted"
        if problem := products.get("problem"):
            return f"multiply-accumulates were not counted ({problem})"
    return "records lack the multiply-accumulates of a step (a run records them since they are counted)"


def _some_lack(groups: Sequence[Group], known: dict[Group, float], why: str) -> list[str]:
    if len(known) == len(groups):
        return []
    return [why if not known else f"of {len(groups) - len(known)} of {len(groups)}, {why}"]


COSTS = {
    cost.key: cost
    for cost in (
        Cost("bytes", "bytes moved", "sent by a worker each step", "a step", show_bytes, _sent),
        Cost("kept", "bytes kept", "kept by a worker", "a worker", show_bytes, _kept),
        Cost("bitops", "bit operations", "bit operations of a worker's step", "bit operations a step", show_count,
             _bit_operations, True),
        Cost("area", "area", "transistors a multiply-accumulate unit, mean over a step", "transistors a unit",
             show_transistors, _area, True),
    )
}  # fmt: skip
