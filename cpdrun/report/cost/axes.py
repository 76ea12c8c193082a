"""Compute the costs against which a report draws the metric. Each cost is a number for each group of runs.

    bytes    The bytes that a worker sends each step, as the exchange recorded them.
    kept     The bytes that a worker keeps, with each value in its format, as the run recorded them: weights and
             optimizer state, and also activations if all compared groups recorded them.
    bitops   The multiply-accumulates of a step times the bits of both operands (arXiv 2005.07093, section 4.1).
    area     The transistors of a multiply-accumulate unit, averaged over the multiply-accumulates of a step, from
             area.csv. Twice the area means twice the silicon for the same step in the same time.

Bit operations and area count only the multiply-accumulates. If a record lacks a figure, the cost is unknown (NaN) and a
reason is given. No figure is estimated.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cpdrun.report.cost import area
from cpdrun.study.group import Group

# The costs of the groups whose cost is known, and the reasons why the other groups have none.
Found = tuple[dict[Group, float], list[str]]

KEPT = ("model_bytes", "optimizer_bytes")
ACTIVATIONS = "activation_bytes"


@dataclass(frozen=True)
class Cost:
    """A cost of a group of runs.

    Attributes:
        key: The name on the command line.
        name: The name in a sentence.
        title: The label of a plot's axis.
        says: The words that follow the number in a sentence.
        show: Format a cost with its unit prefix.
        find: Return the costs of groups, and the reasons why some groups have none.
        has_no_other: Whether the front is described even without a knee, because no other sentence of a report
            mentions this cost.
    """

    key: str
    name: str
    title: str
    says: str
    show: Callable[[float], str]
    find: Callable[[Sequence[Group]], Found]
    has_no_other: bool = False


def show_bytes(count: float, digits: int = 3) -> str:
    """Return bytes with a decimal unit, as for networks: `42 B`, `13.2 kB`, `1.4 MB`. NaN and inf become `-`.

    Args:
        count: The number of bytes.
        digits: The number of significant digits.
    """
    if not math.isfinite(count):
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.{digits}g} {unit}"


def show_count(count: float, digits: int = 3) -> str:
    """Return a count with a decimal prefix: `512`, `59.2 M`, `7.58 G`. NaN and inf become `-`.

    Args:
        count: The count.
        digits: The number of significant digits.
    """
    if not math.isfinite(count):
        return "-"
    for unit in ("", "k", "M", "G", "T", "P"):
        if count < 1000 or unit == "P":
            break
        count /= 1000
    return f"{count:.{digits}g} {unit}".rstrip()


def show_transistors(count: float) -> str:
    """Return a count with commas, such as `11,232`. NaN and inf become `-`."""
    return f"{count:,.0f}" if math.isfinite(count) else "-"


def bit_operations(group: Group) -> float:
    """Return the bit operations of a worker's step, or NaN if they are unknown or some products were not counted."""
    found = group.products or {}
    return math.nan if found.get("uncounted") else _positive(found.get("bit_operations_per_step"))


def transistors(group: Group) -> tuple[float, list[area.Unit]]:
    """Return the transistors of a unit, averaged over the multiply-accumulates of a step.

    Returns:
        The mean and no units, or NaN and the units that are missing from the table.
    """
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
    """Return the reason why the multiply-accumulates of a step are not known."""
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
