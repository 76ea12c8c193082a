"""Run a user's script in this process: intercept it, execute it, and record what was intercepted.

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

MOST_NAMED = 8  # parameters or layers in a line
EXIT_FUNCTIONS = (  # what Python calls when a process ends
    (threading, "_shutdown"),
    (atexit, "_run_exitfuncs"),
    (multiprocessing.util, "_exit_function"),
)


def check(configs: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Check, before launch, whether the scripts of these configs can be controlled. No line of them is executed.

    Returns:
        The problems and notes, under the keys of `cpdrun.train.preflight.check.check`.
    """

    def intercept(config: dict[str, Any]) -> list[str]:
        Interceptor(config)
        return []

    return check_configs(configs, intercept)


def main(run_dir: Path, config: dict[str, Any]) -> int:
    """Run the script in a process that was forked for it, call its exit handlers, and return its exit code."""
    atexit._clear()  # of the process that it was forked from
    os.environ["PYTHONUNBUFFERED"] = "1"  # for what the script starts itself
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

    Its first line sees the working directory, sys.path, sys.argv and __name__ of `python SCRIPT ARGS`, random numbers
    seeded from the run's seed, and `config["threads"]` threads.

    Args:
        run_dir: The folder of the run.
        config: The run's config.
        arguments: The script's arguments, in place of those in the config.

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
    if module:  # packages are found from where the command was typed
        sys.path.insert(1, script["typed_in_dir"])
    _seed(config["seed"])
    configure_torch(config)
    if folder := os.environ.get(ATTEMPT_DIR):  # every step of every optimizer is a sign of life
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
    # Records of earlier versions lack the facts of an attempt that was killed; its checkpoint shows that it trained.
    has_trained = _was_attached(interceptor, before) or (before is None and run.saved_at() > 0)
    is_first_rank = int(os.environ.get("RANK", "0")) == 0
    if is_first_rank:
        _record_early(interceptor, run)
    code = _execute(file, module, interceptor)
    interceptor.loaded_models.add_notes()
    nothing_was_left = has_trained and not interceptor.events.has_trained
    facts = before if nothing_was_left and before else interceptor.facts()
    if code == OK:
        if nothing_was_left:
            print("cpdrun: nothing was left to train: an earlier attempt had taken the last step")
        _print_facts(facts)
    if is_first_rank:
        with suppress(OSError):
            write_environment(run, _device(), None, config, attached=facts)
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
    """Write to env.json what is attached, after the first step and whenever a later step reaches more parameters.

    A script may be killed between its last checkpoint and its end. Its next attempt then takes no step, and only this
    record shows what the steps before were attached to.
    """
    recorded = -1

    def after_step(*_: Any) -> None:
        nonlocal recorded
        if len(interceptor.script.reached) > recorded:
            recorded = len(interceptor.script.reached)
            with suppress(OSError):
                write_json(run.env, {**(read_object(run.env) or {}), "attached": interceptor.facts()})

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
            print_nonfinite(interceptor)  # now, because the traceback keeps the script's models alive
        return code
    return OK


def print_nonfinite(interceptor: Interceptor) -> None:
    """Print, for a script that has failed, if its weights are not finite, and what to do about it.

    Many scripts notice such weights only by a later error.
    """
    weights = [p.detach() for p in interceptor.script.parameters()]
    with suppress(RuntimeError):  # a GPU may be unusable by now
        if count := count_nonfinite(weights):
            total = sum(p.numel() for p in weights)
            line = f"{NOT_FINITE} ({count} of {total}){interceptor.settings.overflow_advice}"
            print(line, file=sys.stderr, flush=True)


def _print_place(error: UserError, file: Path) -> None:
    """Print the line of the script that called what is refused. Frames of torch and of cpdrun would add nothing."""
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
    """Return the traceback from the script's first frame on."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename != str(file):
        frame = frame.tb_next
    return frame or error.__traceback__


def _check_ranks(config: dict[str, Any]) -> None:
    """Raise UserError if another launcher has started another number of ranks than nproc."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks != config["nproc"]:
        raise UserError(
            f"script.launch_with started {ranks} rank{'s' if ranks != 1 else ''}, and nproc={config['nproc']}: let it "
            "start {nproc} (accelerate launch --multi_gpu --num_processes {nproc}; torchrun --nproc-per-node {nproc})"
        )


def _seed(seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)
    if importlib.util.find_spec("numpy") is not None:
        import numpy

        numpy.random.seed(seed % 2**32)


def _print_facts(facts: dict[str, Any]) -> None:
    """Print what was intercepted and what was left alone. env.json has all names."""
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
