"""Read the metrics of a script's run from all sources: its output, the files that it wrote, and its record.

If the metric settings of a finished run change, `read_again` computes the result again from the stored output, without
training.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from cpdrun.config.script import FILES, METRIC_SETTINGS, NO_METRIC, SCRIPT, filled, reports_by_itself
from cpdrun.record import (
    LoggedRow,
    Result,
    RunDir,
    is_claimed,
    open_record,
    read_config,
    read_object,
    write_json,
    write_text,
)
from cpdrun.record.files import write_json_lines
from cpdrun.script_metrics.lines import Lines
from cpdrun.script_metrics.metric_files import GrowingFile, csv_parser, json_parser, tensorboard_rows
from cpdrun.script_metrics.patterns import Patterns
from cpdrun.script_metrics.result import Tally, result

READ_BYTES = 1 << 20


def reads_output(script: Mapping[str, Any]) -> bool:
    """Return whether printed lines are searched for metrics while the script runs.

    Without `script.metrics`, they are searched at the end, and only if the script logged nothing in another way.
    """
    return bool(script["metrics"]) or not (any(script.get(key) for key in FILES) or reports_by_itself(script))


def growing_files(config: Mapping[str, Any], run: RunDir, *, from_start: bool = False) -> list[GrowingFile]:
    """Return the JSON lines and CSV files that the run's script writes."""
    parsers = {"jsonl": json_parser, "csv": csv_parser}
    return [
        GrowingFile(_place(config, run, path), parser, from_start=from_start)
        for key, parser in parsers.items()
        if (path := config[SCRIPT].get(key))
    ]


def tensorboard_events(config: Mapping[str, Any], run: RunDir, since: float) -> Iterator[LoggedRow]:
    """Yield the TensorBoard scalars that the run's script wrote after `since` (a Unix timestamp)."""
    if folder := config[SCRIPT]["tensorboard"]:
        yield from tensorboard_rows(_place(config, run, folder), since)


def printed_rows(run: RunDir, script: Mapping[str, Any]) -> Iterator[LoggedRow]:
    """Yield the metrics that rank 0 printed, from the logs of all attempts."""
    patterns = Patterns(script)
    for attempt in run.attempts():
        lines = Lines()
        try:
            file = open_record(attempt.rank_log(0))
        except OSError:
            continue
        with file:
            while data := file.read(READ_BYTES):
                yield from filter(None, map(patterns.row, lines.feed(data)))
            yield from filter(None, map(patterns.row, lines.last()))


def attached_facts(run: RunDir) -> dict[str, Any]:
    """Return what cpdrun intercepted in the script, as recorded in env.json, or {} if it intercepted nothing."""
    attached = (read_object(run.env) or {}).get("attached")
    return attached if isinstance(attached, dict) else {}


def has_other_settings(run: RunDir, config: Mapping[str, Any]) -> bool:
    """Return whether a script's run ended without an error, but with other metric settings than `config`."""
    if not run.config.is_file() or is_claimed(run):
        return False
    before = read_config(run).get(SCRIPT)
    if not isinstance(before, dict):
        return False
    is_same = all(before.get(key) == config[SCRIPT][key] for key in METRIC_SETTINGS)
    return not is_same and (run.result() is not None or _ended_without_metric(run))


def read_again(run: RunDir, config: Mapping[str, Any]) -> Result:
    """Read the stored metrics of a finished run with the metric settings of `config`, and record the new result.

    Raises:
        NoResultError: The stored output lacks the deciding metric. The record is left unchanged.
    """
    before, script = read_config(run), config[SCRIPT]
    old = before[SCRIPT]
    printed = list(printed_rows(run, script)) if reads_output(script) else []
    for file in growing_files(config, run, from_start=True):
        printed += file.last()
    printed += tensorboard_events(config, run, 0.0)
    names = {name for row in printed for name in row.metrics} | set(old["metrics"])
    if not old["metrics"] and reads_output(old):
        names |= {name for row in printed_rows(run, old) for name in row.metrics}
    remaining = [
        LoggedRow(row.epoch, row.step, {name: v for name, v in row.metrics.items() if name not in names})
        for row in run.logged()
    ]
    rows = [*(row for row in remaining if row.metrics), *printed]
    tally = Tally()
    for row in rows:
        tally.add(row)
    done = run.result()
    seconds = (done and done.wall_seconds) or _seconds_of_last_attempt(run)
    found = result(tally, config, seconds, attached_facts(run))
    write_json_lines(run.metrics, [row.as_json() for row in rows])
    write_json(run.done, found.as_json())
    before[SCRIPT] = {**old, **{key: script[key] for key in METRIC_SETTINGS}}
    write_text(run.config, yaml.dump(before, Dumper=yaml.CSafeDumper, sort_keys=False))
    return found


def _ended_without_metric(run: RunDir) -> bool:
    attempt = run.last_attempt()
    outcome = attempt.outcome() if attempt is not None else None
    return outcome is not None and NO_METRIC in outcome.reason


def _seconds_of_last_attempt(run: RunDir) -> float:
    attempt = run.last_attempt()
    outcome = attempt.outcome() if attempt is not None else None
    if outcome is None or outcome.started is None or outcome.ended is None:
        return 0.0
    return outcome.ended - outcome.started


def _place(config: Mapping[str, Any], run: RunDir, path: str) -> Path:
    """Return the location of a file or folder of the script. The path is relative to the script's working directory."""
    folder = filled(config[SCRIPT]["work_dir"], config, run.path)
    return Path(folder) / filled(path, config, run.path)
