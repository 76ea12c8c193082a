"""The costs that reports plot the metric against, and the table of predicted step times."""

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
    """A kind of cost.

    Attributes:
        key: The name on the command line.
        name: The name in a sentence.
        title: The axis label of a plot.
        says: The text after the number in a sentence.
        show: Formats a value with its unit or prefix.
        find: Returns the costs of groups, and the reasons why other groups' costs are unknown.
        has_no_other: Whether no other sentence mentions this cost, so that a front without a knee is described too.
    """

    key: str
    name: str
    title: str
    says: str
    show: Callable[[float], str]
    find: Callable[[Sequence[Group]], Found]
    has_no_other: bool = False


def show_bytes(count: float, digits: int = 3) -> str:
    """Format bytes with a decimal unit, such as "13.2 kB". NaN and inf become "-"."""
    if not math.isfinite(count):
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.{digits}g} {unit}"


def show_count(count: float, digits: int = 3) -> str:
    """Format a count with a decimal prefix, such as "59.2 M". NaN and inf become "-"."""
    if not math.isfinite(count):
        return "-"
    for unit in ("", "k", "M", "G", "T", "P"):
        if count < 1000 or unit == "P":
            break
        count /= 1000
    return f"{count:.{digits}g} {unit}".rstrip()


def show_transistors(count: float) -> str:
    """Format a count with thousands separators: "11,232". NaN and inf become "-"."""
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
    """Make a table of step times and speed-ups, with workers down and formats across."""
    found = {(row.workers, row.format): f"{1e3 * row.total_s:.3g} ms\n{row.speedup:.3g}x" for row in rows}
    names = list(dict.fromkeys(row.format for row in rows))
    table = Table(title=title, box=None, padding=(0, 2, 0, 0), title_justify="left")
    for heading in ("workers", *names):
        table.add_column(heading, justify="right", no_wrap=heading != "workers")
    for workers in dict.fromkeys(row.workers for row in rows):
        table.add_row(str(workers), *(found[workers, name] for name in names))
    return table
