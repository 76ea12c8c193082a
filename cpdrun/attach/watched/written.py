"""Metrics that a script writes into files of its own: JSON lines as they grow, TensorBoard's event files at the end.

What was in them before the script started is another's and is passed over.
"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cpdrun.record import LoggedRow

STEPS = ("step", "global_step")


class JsonLines:
    """The rows that a script adds to a file, which need not be there yet; one that it writes anew is read anew."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = path.stat().st_size if path.exists() else 0
        self._rest = b""

    def rows(self) -> Iterator[LoggedRow]:
        """Those since the last call."""
        try:
            with self.path.open("rb") as file:
                if self.path.stat().st_size < self._read:
                    self._read, self._rest = 0, b""
                file.seek(self._read)
                data = file.read()
        except OSError:
            return
        self._read += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict) and (row := row_of(value)) is not None:
                yield row

    def last(self) -> Iterator[LoggedRow]:
        """The rest, though its last line may lack its end."""
        yield from self.rows()
        if self._rest.strip():
            rest, self._rest = self._rest, b""
            try:
                value = json.loads(rest)
            except (ValueError, RecursionError):
                return
            if isinstance(value, dict) and (row := row_of(value)) is not None:
                yield row


def row_of(value: Mapping[str, Any]) -> LoggedRow | None:
    """The numbers of a JSON object as a row; None where it has none. NaN is a number, as Python writes it; a null is no
    value, as scripts write it on the steps that they do not evaluate."""
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
    """The scalars of every event file below `folder` that were written after `since` (seconds since 1970), in the order
    of their times. Needs the package tensorboard."""
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
    """Of an event's value, as old and new writers store it; None of a picture or a histogram."""
    if value.HasField("simple_value"):
        return value.simple_value
    if value.metadata.plugin_data.plugin_name == "scalars" and value.HasField("tensor"):
        from tensorboard.util.tensor_util import make_ndarray

        return float(make_ndarray(value.tensor).item())
    return None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
