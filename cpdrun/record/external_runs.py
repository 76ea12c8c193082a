"""Write runs of other tools as run directories.

A report reads only run directories, so these runs get the same answer, tables, tests and plots as runs of cpdrun.
docs/record.md describes the files, and docs/reference/record.md lists their keys.
"""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from cpdrun import __version__
from cpdrun.config.identity import identity_hash
from cpdrun.config.yaml_files import parse_yaml
from cpdrun.errors import writing
from cpdrun.record import validation
from cpdrun.record.entries import Ending, Outcome, Result
from cpdrun.record.files import read_json, read_json_lines, remove, write_json, write_json_lines, write_text
from cpdrun.record.layout import RunDir, SweepDir
from cpdrun.record.lock import claim, locked, release
from cpdrun.record.measure import Measure, known_measure
from cpdrun.record.validation import InvalidValueError
from cpdrun.record.version import VERSION, newer
from cpdrun.record.yaml_files import read_manifest

_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # libyaml is ten times as fast
_MAX_FORMAT_LENGTH = 60  # the largest number of characters of a format's name in a folder's name


def write_run(
    sweep_folder: str | os.PathLike[str],
    *,
    format: str,
    seed: int,
    metrics: Mapping[str, float],
    directions: Mapping[str, str | Measure] | None = None,
    aps: bool = False,
    world_size: int | None = None,
    bits: float | None = None,
    exponent_bits: int | None = None,
    config: Mapping[str, Any] | None = None,
    rows: Iterable[Mapping[str, Any]] = (),
    judged_by: str | None = None,
    diverged: bool = False,
    failed: bool = False,
    test_samples: int | None = None,
    num_classes: int | None = None,
    train_seconds: float | None = None,
    bytes_per_step: float | None = None,
    parameters: int | None = None,
    env: Mapping[str, Any] | None = None,
    replace: bool = False,
) -> Path:
    """Write a finished run of another tool, so that `cpdrun report` can read it, and return the run's folder.

    The following lines import a CSV file with the columns fmt, bits, seed, acc and loss::

        import csv
        from cpdrun.record import write_run

        for row in csv.DictReader(open("theirs.csv")):
            write_run(
                "results/theirs",
                format=row["fmt"],
                bits=float(row["bits"]),
                seed=int(row["seed"]),
                metrics={"test_accuracy": float(row["acc"]), "val_loss": float(row["loss"])},
                directions={"val_loss": "lower"},
            )

    Numbers may be NumPy scalars. Writing a run again with the same values changes nothing, so a loop that was killed
    can be started again. A run counts once its last file is complete.

    Args:
        sweep_folder: The folder of the sweep. It is created if it does not exist.
        format: The name of the number format. All others are compared with `fp32`. A format that cpdrun does not know
            also needs `bits`.
        seed: Runs that differ only in the seed are one row of the table. Runs with the same seed are compared in pairs.
        metrics: The final metrics by name. An accuracy is a share from 0 to 1, and a time is in seconds.
        directions: For each metric that cpdrun does not know, which values are better ("higher" or "lower"), or its
            kind: "accuracy" (the share of correct test samples), another "share" from 0 to 1 (shown in percent), a loss
            in "nats" or "bits", or a `Measure`.
        aps: Whether gradients were scaled by auto-precision scaling.
        world_size: The number of workers that exchanged gradients.
        bits: The bits of a value, including its share of a scale.
        exponent_bits: The exponent bits of the format.
        config: Further settings that distinguish runs, such as {"model": "resnet50", "optim": {"lr": 0.1}}. A setting
            whose value differs between runs is an axis of the report.
        rows: The learning curve, one mapping per epoch, such as {"epoch": 1, "test_accuracy": 0.9}. Epochs start at 1
            and increase.
        judged_by: The metric that a report judges by. The default is the first of `metrics`.
        diverged: Whether the loss was not finite. Such a run counts as no better than a guess, whatever its metrics. It
            may have no metrics, or metrics that are None or NaN.
        failed: Whether the run ended with an error and has no result. If the baseline's run with the same seed
            finished, the failed run counts as the worst outcome, and its format is not certified. `metrics` may be
            empty.
        test_samples: The number of test samples of an accuracy. Intervals then include their sampling error.
        num_classes: The number of classes. It distinguishes a model that learned from one that guesses.
        train_seconds: The training time in seconds.
        bytes_per_step: The bytes that a worker sent per step.
        parameters: The number of trained values. With `bytes_per_step` and `world_size`, it gives the bits sent per
            parameter and step.
        env: The environment of the run, such as {"torch": "2.9.0"}. Reports list differences between runs.
        replace: Whether to replace existing results with the same settings and seed.

    Raises:
        InvalidValueError: A value cannot be recorded, its meaning is ambiguous, or it contradicts existing results. The
            message is one line. This is a ValueError.
        CannotWriteError: The folder cannot be written.
    """
    facts = validation.format_facts(format, bits, exponent_bits)
    settings: dict[str, Any] = {
        "format": format,
        "aps": validation.boolean("aps", aps),
        "seed": validation.integer("seed", seed, 0),
    }
    if world_size is not None:
        settings["world_size"] = validation.integer("world_size", world_size, 1)
    settings |= validation.config(config or {}, aps=settings["aps"])
    has_failed = validation.boolean("failed", failed)
    if has_failed and diverged:
        raise InvalidValueError("a run cannot be both diverged and failed")
    values = validation.metrics(metrics, diverged=validation.boolean("diverged", diverged) or has_failed)
    if judged_by is not None and judged_by not in values and not (diverged or failed):
        raise InvalidValueError(
            f"judged_by={judged_by!r} is not a metric of this run; allowed: {', '.join(values)}"
        )
    result = Result(
        Ending.DIVERGED if diverged else Ending.FINISHED,
        metrics=values,
        measures=validation.measures(values, directions),
        judged_by=judged_by or next(iter(values), None),
        test_samples=_or_none(validation.integer, "test_samples", test_samples, 1),
        num_classes=_or_none(validation.integer, "num_classes", num_classes, 1),
        train_seconds=_or_none(validation.number, "train_seconds", train_seconds, 0),
        parameters=_or_none(validation.integer, "parameters", parameters, 1),
        wire={}
        if bytes_per_step is None
        else {"bytes_per_step_real_worker": validation.number("bytes_per_step", bytes_per_step, 0)},
    )
    files = {
        "config": _as_yaml(settings),
        "facts": facts,
        "rows": _curve(rows, result.measures),
        "env": validation.plain("env", env or {}),
        "done": None if has_failed else result.as_json(),
    }
    sweep = SweepDir(Path(sweep_folder))
    with writing(sweep.path):
        return _write(sweep, _name(settings), files, replace=replace)


def _write(sweep: SweepDir, name: str, files: Mapping[str, Any], *, replace: bool) -> Path:
    run = sweep.run(name)
    sweep.path.mkdir(parents=True, exist_ok=True)
    _write_manifest(sweep)
    run.path.mkdir(parents=True, exist_ok=True)
    if (fd := claim(run)) is None:
        raise InvalidValueError(f"{run.path} is being written by another process")
    try:
        if run.done.exists():
            if _is_same(run, files):
                return run.path
            _refuse(run, files["done"] or {"metrics": {}}) if not replace else remove(run.done)
        _write_files(run, files)
    finally:
        release(run, fd)
    return run.path


def _write_files(run: RunDir, files: Mapping[str, Any]) -> None:
    """Write the files of a run. done.json comes last, so that a run whose writer was killed does not count."""
    write_text(run.config, files["config"])
    write_json(run.format_facts, files["facts"])
    for path, content, write in (
        (run.metrics, files["rows"], write_json_lines),
        (run.env, files["env"], write_json),
    ):
        write(path, content) if content else remove(path)
    if files["done"] is not None:
        write_json(run.done, files["done"])
    elif (last := run.last_attempt()) is None or last.outcome() is None:
        write_json(run.new_attempt().exit, Outcome(Ending.FAILED, 1, reason="written as failed").as_json())


def _is_same(run: RunDir, files: Mapping[str, Any]) -> bool:
    """Return whether a run already has these files. The folder's name contains a hash of the settings."""
    return (
        read_json(run.done) == files["done"]
        and read_json(run.format_facts) == files["facts"]
        and list(read_json_lines(run.metrics)) == files["rows"]
        and (read_json(run.env) or {}) == files["env"]
    )


def _refuse(run: RunDir, done: Mapping[str, Any]) -> None:
    """Raise InvalidValueError with a message that describes how the existing results differ."""
    there = run.result()
    if problem := newer(read_json(run.done)):
        raise InvalidValueError(f"{run.done} {problem}")
    values = {} if there is None else there.metrics
    differ = [key for key in {**values, **done["metrics"]} if values.get(key) != done["metrics"].get(key)]
    what = (
        f"{differ[0]}={values.get(differ[0])}, not {done['metrics'].get(differ[0])}"
        if differ
        else "other values"
    )
    raise InvalidValueError(
        f"{run.path} already has results with these settings and this seed ({what}). Pass what distinguishes the "
        "two runs in config=, or replace=True to replace the results"
    )


def _write_manifest(sweep: SweepDir) -> None:
    """Write sweep.yaml if it does not exist. It lists no runs, so `cpdrun sweep` does not change the folder."""
    with locked(sweep.lock):
        try:
            read_manifest(sweep)
        except FileNotFoundError:
            manifest = {
                "record": VERSION,
                "sweep": sweep.path.resolve().name,
                "written_by": "cpdrun.record.write_run",
                "versions": {"cpdrun": __version__},
            }
            write_text(sweep.manifest, yaml.safe_dump(manifest, sort_keys=False))
        except ValueError as error:
            raise InvalidValueError(f"{sweep.manifest} {error}") from None


def _name(settings: Mapping[str, Any]) -> str:
    """Return the name of a run's folder, such as `af4-w8-s0-1f0c2d3e4a`, which ends with the hash of its settings."""
    slug = [re.sub(r"[^\w-]+", "-", settings["format"])[:_MAX_FORMAT_LENGTH].strip("-") or "format"]
    slug += ["aps"] if settings["aps"] else []
    slug += [f"w{settings['world_size']}"] if "world_size" in settings else []
    return "-".join([*slug, f"s{settings['seed']}", identity_hash(settings)])


def _as_yaml(settings: Mapping[str, Any]) -> str:
    text = yaml.dump(settings, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    try:
        parse_yaml(text.encode())
    except ValueError as error:
        raise InvalidValueError(f"config {error}") from None
    return text


def _curve(rows: Iterable[Mapping[str, Any]], measures: Mapping[str, Measure]) -> list[dict[str, Any]]:
    """Return the rows of metrics.jsonl. Values that are not finite become None."""
    curve: list[dict[str, Any]] = []
    if not isinstance(rows, Iterable) or isinstance(rows, str | Mapping):
        raise InvalidValueError(f"rows={rows!r} must be a list of mappings, one for each epoch")
    for i, row in enumerate(rows):
        if not isinstance(row, Mapping) or "epoch" not in row:
            raise InvalidValueError(
                f"rows[{i}]={row!r} must be a mapping with an epoch, such as {{'epoch': 1, ...}}"
            )
        epoch = validation.integer(f"rows[{i}] epoch", row["epoch"], 0)
        if curve and epoch <= curve[-1]["epoch"]:
            raise InvalidValueError(
                f"rows[{i}] epoch={epoch} follows epoch {curve[-1]['epoch']}; epochs must increase"
            )
        step = {"step": validation.integer(f"rows[{i}] step", row["step"], 0)} if "step" in row else {}
        layers = {"layers": validation.plain(f"rows[{i}].layers", row["layers"])} if "layers" in row else {}
        values = {key: value for key, value in row.items() if key not in ("epoch", "step", "layers")}
        values = validation.metrics(values, diverged=True)
        for name, value in values.items():
            validation.check_share(f"rows[{i}] {name}", value, measures.get(name) or known_measure(name))
        curve.append({"epoch": epoch, **step, **values, **layers})
    return curve


def _or_none(check: Any, name: str, value: Any, *bounds: Any) -> Any:
    return None if value is None else check(name, value, *bounds)
