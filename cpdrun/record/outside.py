"""Runs of other tools: what a report needs of one, written as a run of ours leaves it.

A report reads run directories and nothing else, so what was trained elsewhere and is written here gets the same answer,
table, tests and pictures. docs/record.md lists the files and their keys.
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
from cpdrun.record import given
from cpdrun.record.entries import Ending, Outcome, Result
from cpdrun.record.files import read_json, read_json_lines, remove, write_json, write_json_lines, write_text
from cpdrun.record.foreign import read_manifest
from cpdrun.record.given import GivenError
from cpdrun.record.layout import RunDir, SweepDir
from cpdrun.record.lock import claim, locked, release
from cpdrun.record.measure import Measure, known_measure
from cpdrun.record.version import VERSION, newer

_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # libyaml is ten times as fast
_LONGEST_NAME = 60  # characters of a format in a folder's name


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
    """Write one finished run of any tool under `sweep_folder`, for `cpdrun report FOLDER`; returns the run's folder.

    A csv of somebody else's, with the columns fmt, bits, seed, acc and loss::

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

    format         `fp32` is what the others are compared with. One that cpdrun does not know needs `bits`, those of a
                   value with its share of a scale; `exponent_bits` besides, if it is fp32 by another name (32 and 8).
    seed           runs that differ in it alone are one row of the table; those of one seed are compared in pairs.
    metrics        stored values: an accuracy is a share from 0 to 1, a time in seconds.
    directions     of each metric that cpdrun does not know: "higher" or "lower", whichever is better. Or what it is:
                   "accuracy" (the share of test samples answered right) or another "share" from 0 to 1, shown per cent;
                   a loss in "nats" or "bits"; a `Measure`.
    aps, world_size  were gradients scaled (auto-precision scaling); how many workers exchanged them.
    config         what else tells this run from others, {"model": "resnet50", "optim": {"lr": .1}}: a key whose value
                   differs between runs is an axis of the report.
    rows           the curve: an epoch each, {"epoch": 1, "test_accuracy": .9}, epochs counted from 1 and rising.
    judged_by      the metric that a report asks for; the first of `metrics` by default.
    diverged       its loss was not finite: it counts as no better than a guess, whatever was measured, and may have no
                   metrics, or some that are None or NaN.
    failed         it ended with an error of its own and has no result: if the baseline's run of that seed ended well,
                   it counts as the worst outcome, and its format is not certified. `metrics` may be empty.
    test_samples   how many a test accuracy is over: its interval then has their error in it.
    num_classes    by which a model that only guesses is told from one that learnt.
    train_seconds, bytes_per_step   seconds of training; bytes that a worker sent in a step.
    parameters     values that are trained; with the bytes and the workers they give the bits a parameter a step.
    env            what it was made with, {"torch": "2.9.0"}: a report says where it differs between runs.
    replace        put this in place of other results of the same settings and seed.

    Numbers may be numpy's. Written again with the same values nothing changes, so a loop that was killed is typed
    again; the run counts from the moment its last file is whole. Raises GivenError (a ValueError) in one line for a
    value that no record can hold, whose meaning is open, or that contradicts what is there; CannotWriteError where
    the folder cannot be written.
    """
    facts = given.format_facts(format, bits, exponent_bits)
    settings: dict[str, Any] = {
        "format": format,
        "aps": given.flag("aps", aps),
        "seed": given.whole("seed", seed, 0),
    }
    if world_size is not None:
        settings["world_size"] = given.whole("world_size", world_size, 1)
    settings |= given.config(config or {}, aps=settings["aps"])
    has_failed = given.flag("failed", failed)
    if has_failed and diverged:
        raise GivenError("a run is either diverged or failed")
    values = given.metrics(metrics, diverged=given.flag("diverged", diverged) or has_failed)
    if judged_by is not None and judged_by not in values and not (diverged or failed):
        raise GivenError(f"judged_by={judged_by!r} is no metric of this run; there are: {', '.join(values)}")
    result = Result(
        Ending.DIVERGED if diverged else Ending.FINISHED,
        metrics=values,
        measures=given.measures(values, directions),
        judged_by=judged_by or next(iter(values), None),
        test_samples=_or_none(given.whole, "test_samples", test_samples, 1),
        num_classes=_or_none(given.whole, "num_classes", num_classes, 1),
        train_seconds=_or_none(given.number, "train_seconds", train_seconds, 0),
        parameters=_or_none(given.whole, "parameters", parameters, 1),
        wire={}
        if bytes_per_step is None
        else {"bytes_per_step_real_worker": given.number("bytes_per_step", bytes_per_step, 0)},
    )
    files = {
        "config": _as_yaml(settings),
        "facts": facts,
        "rows": _curve(rows, result.measures),
        "env": given.plain("env", env or {}),
        "done": None if has_failed else result.as_json(),
    }
    sweep = SweepDir(Path(sweep_folder))
    with writing(sweep.path):
        return _write(sweep, _name(settings), files, replace=replace)


def _write(sweep: SweepDir, name: str, files: Mapping[str, Any], *, replace: bool) -> Path:
    run = sweep.run(name)
    sweep.path.mkdir(parents=True, exist_ok=True)
    _introduce(sweep)
    run.path.mkdir(parents=True, exist_ok=True)
    if (fd := claim(run)) is None:
        raise GivenError(f"{run.path} is being written by another process")
    try:
        if run.done.exists():
            if _holds(run, files):
                return run.path
            _refuse(run, files["done"] or {"metrics": {}}) if not replace else remove(run.done)
        _fill(run, files)
    finally:
        release(run, fd)
    return run.path


def _fill(run: RunDir, files: Mapping[str, Any]) -> None:
    """done.json comes last: a writer that was killed has left no run that counts."""
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


def _holds(run: RunDir, files: Mapping[str, Any]) -> bool:
    """Whether all of it is there already. The settings are: the folder's name has their hash."""
    return (
        read_json(run.done) == files["done"]
        and read_json(run.format_facts) == files["facts"]
        and list(read_json_lines(run.metrics)) == files["rows"]
        and (read_json(run.env) or {}) == files["env"]
    )


def _refuse(run: RunDir, done: Mapping[str, Any]) -> None:
    there = run.result()
    if problem := newer(read_json(run.done)):
        raise GivenError(f"{run.done} {problem}")
    values = {} if there is None else there.metrics
    differ = [key for key in {**values, **done["metrics"]} if values.get(key) != done["metrics"].get(key)]
    what = (
        f"{differ[0]}={values.get(differ[0])}, not {done['metrics'].get(differ[0])}" if differ else "others"
    )
    raise GivenError(
        f"{run.path} has results of these settings and this seed already ({what}): what tells the two runs apart "
        "belongs into config=, and replace=True puts these in their place"
    )


def _introduce(sweep: SweepDir) -> None:
    """sweep.yaml, where there is none. It lists no runs, so that `cpdrun sweep` leaves the folder alone."""
    with locked(sweep.lock):
        try:
            read_manifest(sweep)
        except FileNotFoundError:
            said = {
                "record": VERSION,
                "sweep": sweep.path.resolve().name,
                "written_by": "cpdrun.record.write_run",
                "versions": {"cpdrun": __version__},
            }
            write_text(sweep.manifest, yaml.safe_dump(said, sort_keys=False))
        except ValueError as error:
            raise GivenError(f"{sweep.manifest} {error}") from None


def _name(settings: Mapping[str, Any]) -> str:
    """`af4-w8-s0-1f0c2d3e4a`: for people; the hash of the settings tells runs apart."""
    slug = [re.sub(r"[^\w-]+", "-", settings["format"])[:_LONGEST_NAME].strip("-") or "format"]
    slug += ["aps"] if settings["aps"] else []
    slug += [f"w{settings['world_size']}"] if "world_size" in settings else []
    return "-".join([*slug, f"s{settings['seed']}", identity_hash(settings)])


def _as_yaml(settings: Mapping[str, Any]) -> str:
    text = yaml.dump(settings, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    try:
        parse_yaml(text.encode())
    except ValueError as error:
        raise GivenError(f"config {error}") from None
    return text


def _curve(rows: Iterable[Mapping[str, Any]], measures: Mapping[str, Measure]) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; what is not finite is null there."""
    made: list[dict[str, Any]] = []
    if not isinstance(rows, Iterable) or isinstance(rows, str | Mapping):
        raise GivenError(f"rows={rows!r}: a list of mappings is wanted, one for each epoch")
    for i, row in enumerate(rows):
        if not isinstance(row, Mapping) or "epoch" not in row:
            raise GivenError(f"rows[{i}]={row!r}: a mapping with an epoch is wanted, {{'epoch': 1, ...}}")
        epoch = given.whole(f"rows[{i}] epoch", row["epoch"], 0)
        if made and epoch <= made[-1]["epoch"]:
            raise GivenError(f"rows[{i}] epoch={epoch} follows epoch {made[-1]['epoch']}: they must rise")
        step = {"step": given.whole(f"rows[{i}] step", row["step"], 0)} if "step" in row else {}
        layers = {"layers": given.plain(f"rows[{i}].layers", row["layers"])} if "layers" in row else {}
        values = {key: value for key, value in row.items() if key not in ("epoch", "step", "layers")}
        values = given.metrics(values, diverged=True)
        for name, value in values.items():
            given.check_share(f"rows[{i}] {name}", value, measures.get(name) or known_measure(name))
        made.append({"epoch": epoch, **step, **values, **layers})
    return made


def _or_none(check: Any, name: str, value: Any, *bounds: Any) -> Any:
    return None if value is None else check(name, value, *bounds)
