"""Execution of a user's script in this process, with interception and a record of what was intercepted.

`python -m cpdrun.attach [-m MODULE | SCRIPT.py] ARGS` does the same in a process that another launcher started. `check`
checks, before launch, whether scripts can be controlled.
"""

import atexit
import importlib.util
import multiprocessing.util
import os
import random
import runpy
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from cpdrun.attach.environment import ATTEMPT_DIR, NOT_FINITE
from cpdrun.attach.integrations import watch
from cpdrun.attach.intercept.interceptor import LEFT_ALONE, Interceptor
from cpdrun.comm.sync.statistics import count_nonfinite
from cpdrun.config.script import SCRIPT, filled, found, is_module, words
from cpdrun.errors import FAILED, OK, UserError
from cpdrun.record import Attempt, RunDir, read_object, write_json
from cpdrun.train.preflight.check import check_configs
from cpdrun.train.ranks import heartbeat
from cpdrun.train.ranks.torch_settings import configure_torch
from cpdrun.train.state.provenance import write_environment

MOST_NAMED = 8  # the largest number of parameters or layers that are named in a line
EXIT_FUNCTIONS = (  # the functions with which Python ends a process
    (threading, "_shutdown"),
    (atexit, "_run_exitfuncs"),
    (multiprocessing.util, "_exit_function"),
)


def check(configs: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Check, before launch, whether the scripts of these configs can be controlled. The scripts are not executed.

    Returns:
        The problems and notes, under the keys of `cpdrun.train.preflight.check.check`.
    """

    def intercept(config: dict[str, Any]) -> list[str]:
        Interceptor(config)
        return []

    return check_configs(configs, intercept)


def main(run_dir: Path, config: dict[str, Any]) -> int:
    """Run the script in a process that was forked for it, call the exit handlers, and return the exit code."""
    atexit._clear()  # Remove the exit handlers of the parent process.
    os.environ["PYTHONUNBUFFERED"] = "1"  # This also affects the processes that the script starts.
    streams: Any = (sys.stdout, sys.stderr)
    for stream in streams:
        stream.reconfigure(line_buffering=True)
    code = run(run_dir, config)
    with suppress(Exception):
        for module, function in EXIT_FUNCTIONS:
            getattr(module, function)()
    return code


def run(run_dir: Path, config: dict[str, Any], arguments: Sequence[str] | None = None) -> int:
    """Run the script of `config` in this process.

    The working directory, sys.path, sys.argv and __name__ are the same as with `python SCRIPT ARGS`. Before the
    script's first line, random numbers are seeded from the run's seed, and the number of threads is set to
    `config["threads"]`.

    Args:
        run_dir: The folder of the run.
        config: The run's config.
        arguments: The script's arguments, by default those in the config.

    Returns:
        The exit code that python would return, or 2 if the script cannot be controlled or nothing was intercepted.
    """
    script = config[SCRIPT]
    file = found(config)
    os.chdir(filled(script["work_dir"], config, run_dir))
    argv = words(config, run_dir) if arguments is None else list(arguments)
    module = is_module(script)
    typed = script["path"] if Path(script["path"]).exists() else str(file)
    sys.argv = [str(file) if module else typed, *argv]
    sys.path[0] = str(Path.cwd()) if module else str(file.parent)
    if module:  # Like python -m, find packages in the folder in which the command was typed.
        sys.path.insert(1, script["typed_in_dir"])
    _seed(config["seed"])
    configure_torch(config)
    if folder := os.environ.get(
        ATTEMPT_DIR
    ):  # Every step of an optimizer counts as progress for the watchdog.
        heartbeat.start(Attempt(Path(folder)).pulse)
        register_optimizer_step_post_hook(lambda *_: heartbeat.beat())
    try:
        _check_ranks(config)
        interceptor = Interceptor(config)
        interceptor.install()
    except UserError as error:
        return _print_error(error)
    watch()
    run = RunDir(run_dir)
    before = (read_object(run.env) or {}).get("attached")
    # In records of earlier versions, the facts of a killed attempt are missing, but a checkpoint shows that it trained.
    has_trained = _was_attached(interceptor, before) or (before is None and run.saved_at() > 0)
    is_first_rank = int(os.environ.get("RANK", "0")) == 0
    if is_first_rank:
        _record_early(interceptor, run)
    code = _execute(file, module, interceptor)
    interceptor.loaded_models.add_notes()
    nothing_was_left = has_trained and not interceptor.events.has_trained
    first_step = interceptor.rounding.first_step
    if code == OK and not nothing_was_left:
        try:
            first_step.end()
        except UserError as error:
            code = _print_error(error)
    products = (read_object(run.env) or {}).get("products") if nothing_was_left else first_step.products()
    facts = before if nothing_was_left and before else interceptor.facts()
    if code == OK:
        if nothing_was_left:
            print(
                "cpdrun: there was nothing left to train, because an earlier attempt has taken the last step"
            )
        _print_facts(facts)
    if is_first_rank:
        with suppress(OSError):
            write_environment(run, _device(), None, config, products, attached=facts)
    if code == OK and not nothing_was_left:
        try:
            interceptor.check()
        except UserError as error:
            return _print_error(error)
    return code


def _was_attached(interceptor: Interceptor, facts: Any) -> bool:
    """Return whether the facts of an earlier attempt show that its gradients were exchanged as configured."""
    gradients = facts.get("gradients") if isinstance(facts, dict) else None
    if not isinstance(gradients, dict) or not facts.get("optimizer_steps"):
        return False
    return interceptor.settings.plain or gradients.get("exchange") not in (None, [], [LEFT_ALONE])


def _record_early(interceptor: Interceptor, run: RunDir) -> None:
    """Write the description of what was intercepted into env.json while the script is still running.

    env.json is written after the first step, after each step that exchanges more parameters than before, and after the
    step in which the counting of products ends.

    This matters if a script is killed between its last checkpoint and its end. Its next attempt then takes no step, so
    only env.json shows what was intercepted in the earlier steps.
    """
    recorded = (-1, False)

    def after_step(*_: Any) -> None:
        nonlocal recorded
        reached = len(interceptor.script.reached), interceptor.rounding.first_step.is_over
        if reached > recorded:
            recorded = reached
            products = interceptor.rounding.first_step.products()
            entries = {"attached": interceptor.facts(), **({"products": products} if products else {})}
            with suppress(OSError):
                write_json(run.env, (read_object(run.env) or {}) | entries)

    register_optimizer_step_post_hook(torch.compiler.disable(after_step))


def _execute(file: Path, module: str | None, interceptor: Interceptor) -> int:
    try:
        if module:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(str(file), run_name="__main__")
    except UserError as error:
        _print_place(error, file)
        return _print_error(error)
    except BaseException as error:
        code = _exit_code(error, file)
        if code != OK:
            print_nonfinite(
                interceptor
            )  # This must happen now, while the traceback keeps the script's models alive.
        return code
    return OK


def print_nonfinite(interceptor: Interceptor) -> None:
    """Print a line with advice if the weights of a failed script are not finite.

    Many scripts do not detect such weights, but fail later with another error.
    """
    weights = [p.detach() for p in interceptor.script.parameters()]
    with suppress(RuntimeError):  # After an error, a GPU may be unusable.
        if count := count_nonfinite(weights):
            total = sum(p.numel() for p in weights)
            line = f"{NOT_FINITE} ({count} of {total}){interceptor.settings.overflow_advice}"
            print(line, file=sys.stderr, flush=True)


def _print_place(error: UserError, file: Path) -> None:
    """Print the line of the script that caused an error of cpdrun, without the frames of torch and cpdrun."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    if frames:
        print(f"cpdrun: at {file.name}, line {frames[-1].lineno}: {frames[-1].line}", file=sys.stderr)


def _exit_code(error: BaseException, file: Path) -> int:
    """Print the exception that ended the script as Python does, and return the exit code."""
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return error.code or OK
        print(error.code, file=sys.stderr)
        return FAILED
    of_script = _traceback_of_script(error, file)
    sys.excepthook(type(error), error.with_traceback(of_script), of_script)
    return FAILED


def _traceback_of_script(error: BaseException, file: Path) -> Any:
    """Return the part of the traceback that begins with the script's first frame."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename != str(file):
        frame = frame.tb_next
    return frame or error.__traceback__


def _check_ranks(config: dict[str, Any]) -> None:
    """Raise UserError if another launcher has started a number of ranks that differs from nproc."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks != config["nproc"]:
        raise UserError(
            f"script.launch_with started {ranks} rank{'s' if ranks != 1 else ''}, but nproc={config['nproc']}. Use "
            "{nproc} in script.launch_with, such as accelerate launch --multi_gpu --num_processes {nproc} or torchrun "
            "--nproc-per-node {nproc}"
        )


def _seed(seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)
    if importlib.util.find_spec("numpy") is not None:
        import numpy

        numpy.random.seed(seed % 2**32)


def _print_facts(facts: dict[str, Any]) -> None:
    """Print what was intercepted and what was not changed. Long lists are shortened. env.json has all names."""
    gradients, products = facts["gradients"], facts["products"]
    reached = f", {gradients['parameters']} parameters, world_size={gradients['workers']}"
    print(
        f"cpdrun: gradients {' and '.join(gradients['exchange'])}{reached if gradients['parameters'] else ''}"
    )
    for title, names in (
        ("in fp32 as full_precision says", gradients["in_fp32"]),
        ("never exchanged", gradients["left_alone"]),
        ("products rounded", list(products["rounded"])),
        ("products in fp32", list(products["in_fp32"]) if products["rounded"] else []),
    ):
        if names:
            rest = ", ..." if len(names) > MOST_NAMED else ""
            print(f"cpdrun: {title}: {', '.join(names[:MOST_NAMED])}{rest}")
    for note in facts["notes"]:
        print(f"cpdrun: {note}")
    sys.stdout.flush()


def _device() -> torch.device:
    in_use = torch.cuda.is_available() and torch.cuda.is_initialized()
    return torch.device("cuda", torch.cuda.current_device()) if in_use else torch.device("cpu")


def _print_error(error: UserError) -> int:
    print(f"error: {error}", file=sys.stderr, flush=True)
    return error.exit_code
