"""Compute the result of a script's run from the metrics that it logged.

This includes the choice of the deciding metric, its direction, and the value that counts.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpdrun.config.script import NO_METRIC, SCRIPT, direction_of, judged_by
from cpdrun.errors import FAILED, UserError
from cpdrun.record import Best, Ending, LoggedRow, Progress, Result
from cpdrun.record.measure import MEASURES

TEST_NAMES = ("val", "test", "eval", "dev")


class NoResultError(UserError):
    """The script ended without an error, but its deciding metric was not found."""

    exit_code = FAILED


@dataclass
class Values:
    """The values of one metric.

    Attributes:
        last: The last value, or None if it was not finite.
        least: The smallest finite value and its epoch.
        greatest: The largest finite value and its epoch.
    """

    last: float | None
    least: tuple[float, int] | None = None
    greatest: tuple[float, int] | None = None

    def add(self, value: float | None, epoch: int) -> None:
        """Add the value that was logged in an epoch."""
        self.last = value
        if value is None or not math.isfinite(value):
            self.last = None
            return
        if self.least is None or value < self.least[0]:
            self.least = value, epoch
        if self.greatest is None or value > self.greatest[0]:
            self.greatest = value, epoch


class Tally:
    """The metrics of all rows so far."""

    def __init__(self) -> None:
        self.metrics: dict[str, Values] = {}
        self.epoch, self.step = 0, 0
        self._rows = self._read = 0
        self._rest = b""

    def follow(self, path: Path) -> bool:
        """Add the rows that were appended to a metrics.jsonl since the last call. Return whether there were any."""
        try:
            with path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return False
        self._read += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            try:
                row = LoggedRow.read(json.loads(line))
            except (ValueError, RecursionError):
                continue
            if row is not None:
                self.add(row)
        return bool(lines)

    def add(self, row: LoggedRow) -> None:
        """Add one row."""
        self._rows += 1
        self.epoch = self.epoch if row.epoch is None else int(row.epoch)
        self.step = self.step if row.step is None else row.step
        where = self.epoch or self.step or self._rows
        for name, value in row.metrics.items():
            self.metrics.setdefault(name, Values(None)).add(value, where)

    def judge(self, script: Mapping[str, Any]) -> str | None:
        """Return the name of the deciding metric, or None if no metric was logged.

        This is the metric that the settings name. If they name none, it is the first metric of a test set, or else the
        first metric. Metrics with a known direction take precedence.
        """
        named = judged_by(script)
        if named is not None:
            return named
        known = [name for name in self.metrics if direction_of(name, script["direction"])] or list(
            self.metrics
        )
        tests = (name for name in known if name.lower().startswith(TEST_NAMES))
        return next(tests, next(iter(known), None))

    def progress(self, script: Mapping[str, Any], updated: float) -> Progress:
        """Return the content of status.json. `updated` is a Unix timestamp."""
        judge = self.judge(script)
        values = self.metrics.get(judge) if judge else None
        return Progress(
            self.epoch, self.step, judged_by=judge, value=values.last if values else None, updated=updated
        )


def result(tally: Tally, config: Mapping[str, Any], seconds: float, attached: Mapping[str, Any]) -> Result:
    """Return the content of done.json for a script that ended without an error.

    Args:
        tally: Everything that the script logged.
        config: The run's config.
        seconds: The wall time of the script.
        attached: The recorded facts about what was intercepted (`attached_facts`). Of these, done.json contains the
            bytes sent, the number of gradient values, the longest chain of rounded additions, and the operations of the
            first step.

    Raises:
        NoResultError: The deciding metric was not logged.
    """
    script = config[SCRIPT]
    judge = tally.judge(script)
    if judge not in tally.metrics:
        raise NoResultError(_no_metric(judge, tally, script))
    directions = {name: direction_of(name, script["direction"]) for name in tally.metrics}
    metrics = {name: values.last for name, values in tally.metrics.items()}
    best = _best(tally.metrics[judge], directions[judge])
    diverged = metrics[judge] is None
    if script["value"] == "best" and best is not None and not diverged:
        metrics[judge] = best[0]
    gradients, products = (_mapping(attached.get(key)) for key in ("gradients", "products"))
    wire = gradients.get("wire")
    return Result(
        status=Ending.DIVERGED if diverged else Ending.FINISHED,
        metrics=metrics,
        measures={
            name: MEASURES[direction] for name, direction in directions.items() if direction is not None
        },
        judged_by=judge,
        best=None if best is None else Best(judge, *best),
        train_seconds=seconds,
        wall_seconds=seconds,
        wire=dict(wire) if isinstance(wire, Mapping) else {},
        parameters=gradients.get("values") or None,
        longest_chain=gradients.get("longest_chain"),
        products=dict(_mapping(products.get("step"))) or None,
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _best(values: Values, direction: str | None) -> tuple[float, int] | None:
    return None if direction is None else values.least if direction == "min" else values.greatest


def _no_metric(judge: str | None, tally: Tally, script: Mapping[str, Any]) -> str:
    if judge is None:
        return (
            f"{NO_METRIC} logged no metric. Say how the script prints it, for example "
            "script.metrics.val_loss='val loss {number}', or call run.log(val_loss=...) in the script"
        )
    pattern = script["metrics"].get(judge)
    how = f"no line of its output matches {pattern!r}" if pattern else f"nothing is called {judge!r}"
    found = f". It logged {', '.join(tally.metrics)}" if tally.metrics else ""
    return f"{NO_METRIC} never logged {judge}: {how}{found}"
