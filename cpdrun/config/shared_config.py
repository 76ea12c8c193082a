"""Describe the settings that the runs of a sweep share, for a dry run."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from custom_fp.formats.names import is_own

from cpdrun.config.identity import format_facts
from cpdrun.config.overrides import flatten, get_key, typed_form
from cpdrun.config.plan import Plan
from cpdrun.config.script import FILES, SCRIPT, direction_of, is_script, judged_by, words
from cpdrun.shell.sanitize import visible

# `scaling`, the last part, is shown only if a run uses APS.
PARTS = ("model", "data", "partition", "optim", "schedule", "precision", "sync", "scaling")
MACHINE = ("device", "nproc", "threads", "loaders", "emulation")
# Settings that are shown only if they are set or vary.
FURTHER = ("parameter_groups", "clip_norm", "label_smoothing", "init_from", "init_into", "init_skip")
OURS = "cpdrun."  # the prefix of cpdrun's own classes
MOST_SHOWN = 4  # A setting with more values than this is shown as "(varies)".
# The syncs for which the bytes that a worker sends are known.
SUMS = ("cpdrun.comm.AllReduceSync", "cpdrun.comm.sync.decoded")


def recipe_lines(sweep: Plan) -> Iterator[str]:
    """Yield the lines that describe the runs. Settings that differ between runs are shown with all their values."""
    config = sweep.runs[0].config
    varies = _varying(sweep)

    def value(key: str) -> str:
        if key not in varies:
            return shown(get_key(config, key))
        return "/".join(varies[key]) if len(varies[key]) <= MOST_SHOWN else "(varies)"

    if is_script(config):
        yield from _script_lines(config, varies, value)
        return
    workers, batch = config["world_size"], config["batch_size"]
    step = "" if {"world_size", "batch_size"} & varies.keys() else f", {workers * batch:,} samples per step"
    samples = f"{value('world_size')} workers of {value('batch_size')} samples"
    epochs = "1 epoch" if value("epochs") == "1" else f"{value('epochs')} epochs"
    if value("max_steps") not in ("null", "None"):
        epochs = f"{value('max_steps')} steps"
    yield f"recipe: {epochs}, {samples}{step}"
    scales = any(run.config["aps"] for run in sweep.runs)
    yield from _part_lines(PARTS if scales else PARTS[:-1], config, varies, value)
    yield "  " + ", ".join(f"{key} {value(key)}" for key in MACHINE)
    kept = [
        key for key, given in flatten(config["full_precision"], "full_precision.") if given or key in varies
    ]
    if kept:
        yield "  kept in fp32: " + ", ".join(f"{key} {value(key)}" for key in kept)
    if further := [key for key in FURTHER if config[key] or key in varies]:
        yield "  " + ", ".join(f"{key} {value(key)}" for key in further)


def _part_lines(
    parts: Sequence[str],
    config: Mapping[str, Any],
    varies: Mapping[str, list[str]],
    value: Callable[[str], str],
) -> Iterator[str]:
    """Yield a line for each part, which shows its class and settings, or only its classes if they vary."""
    for part in parts:
        keys = [key for key, _ in flatten(config[part], f"{part}.") if not key.endswith("_target_")]
        if classes := varies.get(f"{part}._target_"):
            yield f"  {part:<10} {' or '.join(map(class_name, classes))}"
            continue
        name = class_name(config[part]["_target_"])
        settings = ", ".join(f"{key.removeprefix(f'{part}.')} {value(key)}" for key in keys)
        yield f"  {part:<10} {name}{f': {settings}' if settings else ''}"


def _script_lines(
    config: Mapping[str, Any], varies: Mapping[str, list[str]], value: Callable[[str], str]
) -> Iterator[str]:
    """Yield the lines that describe a script's first run."""
    script = config[SCRIPT]
    command = ["python", *script["path"].split(), *words(config, Path("RUN_DIR"))]
    front = f"{script['launch_with']} " if script["launch_with"] else ""
    yield f"script: {front}{shlex.join(command)}"
    yield f"  in {script['work_dir']}, processes: {value('nproc')}, workers: {value('world_size')}"
    sources = [f"{name} by {pattern!r}" for name, pattern in script["metrics"].items()]
    sources += [str(script[key]) for key in FILES if script[key]]
    if not script["metrics"]:
        sources.append("printed pairs such as val_loss=0.4")
    judge = judged_by(script)
    counts = (
        f", {judge} ({direction_of(judge, script['direction'])}) decides, its {script['value']} value"
        if judge
        else ""
    )
    yield f"  metrics: {', '.join([*sources, 'run.log()'])}{counts}"
    scales = ["scaling"] if config["aps"] or "aps" in varies else []
    yield from _part_lines(["precision", "sync", *scales], config, varies, value)
    yield "  " + ", ".join(f"{key} {value(key)}" for key in ("device", "threads"))


def bytes_lines(sweep: Plan) -> Iterator[str]:
    """Yield a line with the megabytes that a worker sends per step for a million gradients.

    Reduce-scatter and all-gather send 2 (N - 1) / N values of k bits for each gradient. No line is yielded if a run has
    only one worker or another kind of sync. The user's own formats are not included.
    """
    configs = [run.config for run in sweep.runs]
    if any(config["sync"]["_target_"] not in SUMS or config["world_size"] == 1 for config in configs):
        return
    sizes: dict[str, dict[str, None]] = {}
    for config in configs:
        if not is_own(config["format"]):
            workers = config["world_size"]
            bits = format_facts(config["format"])["bits"]
            size = f"{2 * (workers - 1) / workers * bits / 8:.3g} MB"
            sizes.setdefault(config["format"], {})[size] = None
    said = ", ".join(f"{name} {' to '.join(_ends(list(found)))}" for name, found in sizes.items())
    if said:
        yield f"sent per worker, step and million gradients: {said}"


def _varying(sweep: Plan) -> dict[str, list[str]]:
    """Return the displayed values of each key that differs between runs."""
    found: dict[str, dict[str, None]] = {}
    for run in sweep.runs:
        for key, value in flatten(run.config):
            found.setdefault(key, {})[shown(value)] = None
    return {key: list(values) for key, values in found.items() if len(values) > 1}


def class_name(target: str) -> str:
    """Return the name of a class, without its module if the class is cpdrun's own."""
    return target.rsplit(".", 1)[-1] if target.startswith(OURS) else target


def shown(value: Any) -> str:
    """Return a value as the user would type it, shortened to 60 characters."""
    text = visible(value if isinstance(value, str) else typed_form(value))
    return text if len(text) <= 60 else f"{text[:57]}..."


def _ends(values: list[str]) -> list[str]:
    return values if len(values) == 1 else [values[0], values[-1]]
