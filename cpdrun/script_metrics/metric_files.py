"""Read the metrics that a script writes to files: JSON lines and CSV while they grow, TensorBoard events at the end.

Rows that were there before the script started belong to an earlier run and are skipped.
"""

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cpdrun.record import LoggedRow

STEPS = ("step", "global_step")
Parser = Callable[[bytes], LoggedRow | None]  # takes one line and returns its metrics


class GrowingFile:
    """A line-based file to which a script appends rows.

    If the file becomes shorter, the script has rewritten it, and it is read again from its first line.

    Args:
        path: The file. It need not exist yet.
        make_parser: Returns a parser of the lines of the file, to be called from the first line on.
        from_start: Also return the rows that the file contains already.
    """

    def __init__(self, path: Path, make_parser: Callable[[], Parser], *, from_start: bool = False) -> None:
        self.path, self._make_parser = path, make_parser
        self._parse = make_parser()
        self._skipped = 0 if from_start or not path.exists() else path.stat().st_size
        self._read = 0
        self._rest = b""

    def rows(self) -> Iterator[LoggedRow]:
        """Yield the rows that were added since the last call."""
        try:
            with self.path.open("rb") as file:
                if self.path.stat().st_size < self._read:
                    self._parse, self._read, self._skipped, self._rest = self._make_parser(), 0, 0, b""
                file.seek(self._read)
                data = file.read()
        except OSError:
            return
        end_of_line = self._read - len(self._rest)
        self._read += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            end_of_line += len(line) + 1
            row = self._parse(line)
            if row is not None and end_of_line > self._skipped:
                yield row

    def last(self) -> Iterator[LoggedRow]:
        """Yield the remaining rows, including a last line without a newline."""
        yield from self.rows()
        rest, self._rest = self._rest, b""
        if rest.strip() and (row := self._parse(rest)) is not None:
            yield row


def json_parser() -> Parser:
    """Return a parser for lines that each contain one JSON object."""

    def parse(line: bytes) -> LoggedRow | None:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            return None
        return row_of(value) if isinstance(value, dict) else None

    return parse


def csv_parser() -> Parser:
    """Return a parser for the lines of a CSV file with one header line. Cells without a number are skipped."""
    header: list[str] = []

    def parse(line: bytes) -> LoggedRow | None:
        cells = next(csv.reader([line.decode("utf-8", "replace").strip("\r\ufeff")]), [])
        if not header:
            header.extend(cell.strip() for cell in cells)
            return None
        return row_of({name: _number(cell) for name, cell in zip(header, cells, strict=False) if name})

    return parse


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def row_of(value: Mapping[str, Any]) -> LoggedRow | None:
    """Return the numbers of a mapping as a row, or None if it has none.

    A number that is not finite becomes None, which marks a diverged value. A null is no value: scripts write it for
    steps that they do not evaluate.
    """
    numbers = {
        str(key): _finite(one)
        for key, one in value.items()
        if isinstance(one, int | float) and not isinstance(one, bool)
    }
    epoch = numbers.pop("epoch", None)
    steps = [numbers.pop(name, None) for name in STEPS]
    step = next((int(one) for one in steps if one is not None), None)
    return LoggedRow(epoch, step, numbers) if numbers else None


def tensorboard_rows(folder: Path, since: float) -> Iterator[LoggedRow]:
    """Yield the scalars of all event files below `folder` with a time after `since`, in the order of their times.

    Needs the package tensorboard.

    Args:
        folder: The log directory of the script.
        since: A Unix timestamp.
    """
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    events = []
    for path in sorted(folder.rglob("*tfevents*")):
        for event in EventFileLoader(str(path)).Load():
            if event.wall_time < since:
                continue
            for value in event.summary.value:
                if (number := _scalar(value)) is not None:
                    events.append((event.wall_time, event.step, value.tag, number))
    for _, step, tag, number in sorted(events, key=lambda event: event[:2]):
        yield LoggedRow(None, step, {tag: _finite(number)})


def _scalar(value: Any) -> float | None:
    """Return the scalar in an event's value, in the old or the new encoding; None for an image or a histogram."""
    if value.HasField("simple_value"):
        return value.simple_value
    if value.metadata.plugin_data.plugin_name == "scalars" and value.HasField("tensor"):
        from tensorboard.util.tensor_util import make_ndarray

        return float(make_ndarray(value.tensor).item())
    return None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
