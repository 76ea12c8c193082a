"""Check, before any process is started, whether a run would fail before its first step.

A model and data that do not match may train without an error, but with wrong results. For example, the cross-entropy of
float targets and a single output is always 0, and a head with 1,000 outputs learns 10 classes more slowly. Therefore
the first sample is checked, both for cpdrun's own models and datasets and for the user's.
"""

import json
import math
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import custom_fp
import torch
from custom_fp.formats.names import parse
from custom_fp.recipe.coverage import FLOAT32_LABEL, percent_text, shares_text

import cpdrun
from cpdrun.comm.gossip.base import Gossip
from cpdrun.errors import UserError
from cpdrun.train.build import BuildError, Parts, build
from cpdrun.train.instantiate import find_memory_error, first_line
from cpdrun.train.preflight.products import emulated_products

IRRELEVANT = ("seed", "format", "nproc", "threads")  # settings that do not affect whether parts can be made
# The prefixes of paths of files that do not belong to the user
NOT_THE_USERS = (
    str(Path(cpdrun.__file__).parent),
    str(Path(custom_fp.__file__).parent),
    "<",
    *sysconfig.get_paths().values(),
)
INSTALLED = {"site-packages", "dist-packages"}


def check(configs: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Check whether runs with these configs can be built and given a sample.

    Returns:
        "problems": one line for each reason why a run cannot start, such as missing data, a class that cannot be
        imported, or unknown arguments. "notes": one line for each part of the settings that has no effect, such as
        products that stay in float32.
    """
    return check_configs(configs, _check_run)


def check_configs(
    configs: list[dict[str, Any]], check_config: Callable[[dict[str, Any]], Iterable[str]]
) -> dict[str, list[str]]:
    """Call `check_config` for each config and collect the notes it returns and the errors it raises.

    Configs without relevant differences are checked once. Any error of the user's code becomes one line, even if the
    code tries to exit the process.

    Returns:
        "problems" and "notes".
    """
    problems: dict[str, None] = {}
    notes: dict[str, None] = {}
    for config in _distinct(configs):
        try:
            notes |= dict.fromkeys(check_config(config))
        except UserError as error:
            problems[_describe_user_error(error)] = None
        except (Exception, SystemExit) as error:
            problems[_describe_unexpected_error(error)] = None
    return {"problems": list(problems), "notes": list(notes)}


def _check_run(config: dict[str, Any]) -> list[str]:
    """Build the parts of a run and return notes about products that stay in float32.

    Raises:
        BuildError: The run cannot be trained, or rounds less of the arithmetic than `min_coverage`, a key of searches.
    """
    parts = build(config, torch.device("cpu"))
    check_sample(config, parts)
    products, notes = emulated_products(parts), _schedule_notes(config, parts) + _momentum_notes(parts)
    if products is None:
        return notes
    recipe = config.get("recipe")
    rules = f"recipe={recipe}" if recipe else parts.precision.rounds_products
    if unrounded := products["in float32"]:
        shares = shares_text(products["coverage"])
        text = f"{rules}: {shares} of the multiply-accumulates; in float32: {_first(unrounded)}"
        rounded = 1 - products["coverage"][FLOAT32_LABEL]
        if rounded < config.get("min_coverage", 0):
            raise BuildError(
                f"{text}. A certificate would say little about the format, because it reaches less than "
                f"{percent_text(config['min_coverage'])} of the arithmetic. To search anyway, add "
                f"search.min_coverage={math.floor(100 * rounded) / 100:g}"
            )
        notes.append(text)
    if never_called := products.get("never called"):
        notes.append(
            f"{rules}: these layers are never called, so they are not rounded: {_first(never_called)}"
        )
    return notes


def _schedule_notes(config: dict[str, Any], parts: Parts) -> list[str]:
    """Return a note if a run of `max_steps` ends during the warm-up, whose default length is an epoch."""
    warmup, length = getattr(parts.schedule, "warmup_epochs", 0), parts.duration.length
    if config.get("max_steps") is None or warmup < length:
        return []
    return [
        f"the run ends during the warm-up of {warmup:g} epochs, because max_steps={config['max_steps']} are "
        f"{length:.2g} epochs. Type schedule=constant or schedule.warmup_epochs=0"
    ]


def _momentum_notes(parts: Parts) -> list[str]:
    """Return a note if the quasi-global momentum of a gossip algorithm diverges on its graph."""
    sync = parts.sync
    growth = sync.momentum_growth() if isinstance(sync, Gossip) else None
    if growth is None or growth <= 1:
        return []
    return [
        f"sync.quasi_global_momentum={sync.beta:g} diverges on this graph of {sync.world_size} workers: even without "
        f"gradients, the differences between the workers grow by {growth - 1:.1%} per step. Type "
        "sync.quasi_global_momentum=null optim.momentum=0.9, or a topology with two-way links, such as topology=ring"
    ]


def _first(names: list[str], most: int = 4) -> str:
    return "; ".join(names[:most]) + (f"; and {len(names) - most} more" if len(names) > most else "")


def check_sample(config: dict[str, Any], parts: Parts) -> None:
    """Check whether data, model and task fit each other, with the first training sample.

    Raises:
        BuildError: The sample cannot be used for training. The message names the part that causes the problem.
    """
    model, data, task = (config[part]["_target_"].rsplit(".", 1)[-1] for part in ("model", "data", "task"))
    try:
        batch = parts.batches.fetch(torch.tensor([0]), 0, 0)
        problem = parts.task.unfit_targets(batch)
    except Exception as error:
        raise BuildError(f"data: the first sample of {data} cannot be read: {_reason(error)}") from error
    if problem:
        raise BuildError(f"data: the targets of {data} {problem}")
    parts.model.eval()
    try:
        with torch.no_grad():
            outputs = parts.task.outputs(parts.model, batch)
    except Exception as error:
        raise BuildError(
            f"model: {model} does not accept the samples of data {data}: {_reason(error)}"
        ) from error
    if problem := parts.task.unfit_outputs(outputs, batch):
        raise BuildError(f"model: {model} {problem}")
    try:
        with torch.no_grad():
            _check_metrics(parts, outputs, batch)
    except Exception as error:
        raise BuildError(f"task: {task} cannot evaluate the outputs of {model}: {_reason(error)}") from error


def _check_metrics(parts: Parts, outputs: Any, batch: Any) -> None:
    """Raise ValueError if the loss is not a scalar, or if the metrics differ from those that the task declares."""
    task = parts.task
    loss = task.loss(outputs, batch)
    if loss.dim():
        raise ValueError(
            f"its loss has the shape {tuple(loss.shape)}, but must be a scalar, the mean over the batch"
        )
    found, declared = set(task.metrics(task.sums(outputs, batch))), set(task.measures)
    if found != declared:
        raise ValueError(
            f"it returns the metrics {', '.join(sorted(found))}, but declares {', '.join(sorted(declared))}"
        )
    for name in ("loss", task.judged_by):
        if name not in declared:
            raise ValueError(f"{name} must be among its metrics")


def _reason(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else ""
    is_clear = isinstance(error, RuntimeError | ValueError | IndexError) and text
    return text if is_clear else f"{type(error).__name__}: {text}".rstrip(": ")


def _describe_user_error(error: UserError) -> str:
    """Return the message of an error. If a lack of memory caused it, the message says so."""
    if (cause := find_memory_error(error)) is not None:
        return f"{str(error).partition(':')[0]}: out of memory: {first_line(cause)}"
    return f"{error}{_location(error)}"


def _describe_unexpected_error(error: BaseException) -> str:
    text = str(error).splitlines()[0] if str(error) else ""
    if (cause := find_memory_error(error)) is not None:
        return f"out of memory while one run is built and given a sample: {first_line(cause)}"
    if isinstance(error, SystemExit):
        return f"the code of the run ends the process (sys.exit({text})){_location(error)}"
    return f"{type(error).__name__}: {text}".rstrip(": ") + _location(error)


def _location(error: BaseException) -> str:
    """Return the last line of the user's own code in a traceback, such as ` (mine.py, line 7)`, or ""."""
    while error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame
        for frame in frames
        if not frame.filename.startswith(NOT_THE_USERS) and not INSTALLED & set(Path(frame.filename).parts)
    ]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


def _distinct(configs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one of each group of configs that differ only in irrelevant settings."""
    distinct: dict[str, dict[str, Any]] = {}
    for config in configs:
        relevant = {key: value for key, value in config.items() if key not in IRRELEVANT}
        # Some parts support only fp32, or only formats without scales.
        relevant["kind of format"] = (config["format"] == "fp32", _has_scales(config["format"]))
        distinct.setdefault(json.dumps(relevant, sort_keys=True, default=str), config)
    return list(distinct.values())


def _has_scales(number_format: str) -> bool | None:
    try:
        return parse(number_format).has_scales
    except ValueError:  # The error is reported when the run is built.
        return None
