"""From the rows of metrics.jsonl to the run's result: which value counts, and which way is better."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cpdrun.config.script import SCRIPT, direction_of, judged_by
from cpdrun.errors import FAILED, UserError
from cpdrun.record import Best, Ending, LoggedRow, Progress, Result, RunDir
from cpdrun.record.measure import MEASURES

TEST_NAMES = ("val", "test", "eval")


class NoResultError(UserError):
    """The script ended well and left nothing to report."""

    exit_code = FAILED


@dataclass
class Values:
    """Of one metric: the last (None: it was not finite), and the least and the greatest, with their epochs."""

    last: float | None
    least: tuple[float, int] | None = None
    greatest: tuple[float, int] | None = None

    def add(self, value: float | None, epoch: int) -> None:
        self.last = value
        if value is None or not math.isfinite(value):
            self.last = None
            return
        if self.least is None or value < self.least[0]:
            self.least = value, epoch
        if self.greatest is None or value > self.greatest[0]:
            self.greatest = value, epoch


class Tally:
    """Reads metrics.jsonl as it grows; called again it goes on where it was."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self.metrics: dict[str, Values] = {}
        self.epoch, self.step = 0, 0
        self._rows = self._read = 0
        self._rest = b""

    def look(self) -> bool:
        """Whether there was something new."""
        try:
            with self.run.metrics.open("rb") as file:
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
                self._add(row)
        return bool(lines)

    def _add(self, row: LoggedRow) -> None:
        self._rows += 1
        self.epoch = self.epoch if row.epoch is None else int(row.epoch)
        self.step = self.step if row.step is None else row.step
        where = self.epoch or self.step or self._rows
        for name, value in row.metrics.items():
            self.metrics.setdefault(name, Values(None)).add(value, where)

    def judge(self, script: Mapping[str, Any]) -> str | None:
        """The metric that the run is judged by; None where nothing was logged."""
        named = judged_by(script)
        if named is not None:
            return named
        tests = (name for name in self.metrics if name.lower().startswith(TEST_NAMES))
        return next(tests, next(iter(self.metrics), None))

    def progress(self, script: Mapping[str, Any], updated: float) -> Progress:
        judge = self.judge(script)
        values = self.metrics.get(judge) if judge else None
        return Progress(
            self.epoch, self.step, judged_by=judge, value=values.last if values else None, updated=updated
        )


def result(tally: Tally, config: Mapping[str, Any], seconds: float, gradients: Mapping[str, Any]) -> Result:
    """What done.json says of a script that ended well. Raises NoResultError where the metric asked for was not logged.

    gradients: what Hold.facts() said of them; of it the bytes on the wire, how many values they are of,
    and the longest chain.
    """
    script = config[SCRIPT]
    judge = tally.judge(script)
    if judge not in tally.metrics:
        raise NoResultError(_never_logged(judge, tally, script))
    ways = {name: direction_of(name, script["direction"]) for name in tally.metrics}
    metrics = {name: values.last for name, values in tally.metrics.items()}
    best = _best(tally.metrics[judge], ways[judge])
    diverged = metrics[judge] is None
    if script["value"] == "best" and best is not None and not diverged:
        metrics[judge] = best[0]
    wire = gradients.get("wire")
    return Result(
        status=Ending.DIVERGED if diverged else Ending.FINISHED,
        metrics=metrics,
        measures={name: MEASURES[way] for name, way in ways.items() if way is not None},
        judged_by=judge,
        best=None if best is None else Best(judge, *best),
        train_seconds=seconds,
        wall_seconds=seconds,
        wire=dict(wire) if isinstance(wire, Mapping) else {},
        parameters=gradients.get("values") or None,
        longest_chain=gradients.get("longest_chain"),
    )


def _best(values: Values, way: str | None) -> tuple[float, int] | None:
    return None if way is None else values.least if way == "min" else values.greatest


def _never_logged(judge: str | None, tally: Tally, script: Mapping[str, Any]) -> str:
    if judge is None:
        return (
            "the script ended well and logged no metric: say how it prints one, "
            "script.metrics.val_loss='val loss ([0-9.]+)', or call run.log(val_loss=...)"
        )
    pattern = script["metrics"].get(judge)
    how = f"no line of its output matches {pattern!r}" if pattern else f"nothing is called {judge!r}"
    others = f"; it logged {', '.join(tally.metrics)}" if tally.metrics else ""
    return f"the script ended well and never logged {judge}: {how}{others}"
