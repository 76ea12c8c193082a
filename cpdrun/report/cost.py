"""Define the costs that a report plots the metric against, and format the table of predicted step times."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from cpdrun.costmodel import Calibration, ForecastRow
from cpdrun.costmodel.costs import Found, bit_operation_counts, kept_bytes, sent_bytes, transistor_counts
from cpdrun.study.group import Group


@dataclass(frozen=True)
class Cost:
    """A kind of cost that each group of runs has.

    Attributes:
        key: The name of the cost on the command line.
        name: The name of the cost in a sentence.
        title: The axis label of a plot.
        says: The text that follows the number in a sentence.
        show: A function that formats a value with its unit or prefix.
        find: A function that returns the costs of groups, and the reasons why some groups' costs are unknown.
        has_no_other: Whether no other sentence of a report mentions this cost. If true, the report describes the Pareto
            front even if it has no knee.
    """

    key: str
    name: str
    title: str
    says: str
    show: Callable[[float], str]
    find: Callable[[Sequence[Group]], Found]
    has_no_other: bool = False


def show_bytes(count: float, digits: int = 3) -> str:
    """Format a number of bytes with a decimal unit, such as `42 B`, `13.2 kB`, or `1.4 MB`.

    NaN and inf become `-`.

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
    """Format a count with a decimal prefix, such as `512`, `59.2 M`, or `7.58 G`. NaN and inf become `-`.

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
    """Format a count with thousands separators, such as `11,232`. NaN and inf become `-`."""
    return f"{count:,.0f}" if math.isfinite(count) else "-"


COSTS = {
    cost.key: cost
    for cost in (
        Cost("bytes", "bytes moved", "sent by a worker each step", "a step", show_bytes, sent_bytes),
        Cost("kept", "bytes kept", "kept by a worker", "a worker", show_bytes, kept_bytes),
        Cost("bitops", "bit operations", "bit operations of a worker's step", "bit operations a step", show_count,
             bit_operation_counts, True),
        Cost("area", "area", "transistors a multiply-accumulate unit, mean over a step", "transistors a unit",
             show_transistors, transistor_counts, True),
    )
}  # fmt: skip


@dataclass
class CalibrateDocument:
    """The measurements of this machine, and the predicted step times on other networks.

    Attributes:
        calibration: The file with the measurements.
        measured: The measurements.
        forecast: The predicted step times.
    """

    calibration: Path
    measured: Calibration
    forecast: list[ForecastRow]


def forecast_table(title: str, rows: Sequence[ForecastRow]) -> Table:
    """Return a table of the milliseconds per step and the speed-up.

    The table has one row for each number of workers and one column for each format.
    """
    found = {(row.workers, row.format): f"{1e3 * row.total_s:.3g} ms\n{row.speedup:.3g}x" for row in rows}
    names = list(dict.fromkeys(row.format for row in rows))
    table = Table(title=title, box=None, padding=(0, 2, 0, 0), title_justify="left")
    for heading in ("workers", *names):
        table.add_column(heading, justify="right", no_wrap=heading != "workers")
    for workers in dict.fromkeys(row.workers for row in rows):
        table.add_row(str(workers), *(found[workers, name] for name in names))
    return table
