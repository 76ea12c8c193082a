"""Inside the process of a user's script: what is set up before its first line, and what is looked at after its last.

    python -m cpdrun.attach [-m MODULE | SCRIPT.py] ARGS

is the same for a process that another launcher started.
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

from cpdrun.attach.environment import ATTEMPT_DIR
from cpdrun.attach.hold import Hold
from cpdrun.attach.integrations import watch
from cpdrun.config.script import SCRIPT, filled, found, is_module, words
from cpdrun.errors import FAILED, OK, UserError
from cpdrun.record import Attempt, RunDir, read_object, write_json
from cpdrun.train.ranks import heartbeat
from cpdrun.train.ranks.torch_settings import configure_torch
from cpdrun.train.state.provenance import write_environment

MOST_NAMED = 8  # parameters or layers in a line


def main(run_dir: Path, config: dict[str, Any]) -> int:
    """The script in a process that was forked for it, from its first line to its handlers of exit."""
    atexit._clear()  # of the process that it was forked from
    os.environ["PYTHONUNBUFFERED"] = "1"  # for what the script starts itself
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)
    code = run(run_dir, config)
    with suppress(Exception):
        threading._shutdown()
        atexit._run_exitfuncs()
        multiprocessing.util._exit_function()
    return code


def run(run_dir: Path, config: dict[str, Any], arguments: Sequence[str] | None = None) -> int:
    """Run the script of `config` here and return its exit code, as python would; 2 where it is held to something it
    cannot be held to, or nothing of it took hold.

    Its first line sees the working directory, sys.path, sys.argv and __name__ of `python SCRIPT ARGS`, random numbers
    seeded from the run's seed, and `config["threads"]` threads. arguments: in place of those that the config gives.
    """
    script = config[SCRIPT]
    file = found(config)
    os.chdir(filled(script["work_dir"], config, run_dir))
    argv = words(config, run_dir) if arguments is None else list(arguments)
    module = is_module(script)
    sys.argv = [str(file) if module else _as_typed(script["path"], file), *argv]
    sys.path[0] = str(Path.cwd()) if module else str(file.parent)
    if module:  # packages are found from where the command was typed
        sys.path.insert(1, script["typed_in_dir"])
    _seed(config["seed"])
    configure_torch(config)
    _show_life()
    try:
        _check_ranks(config)
        hold = Hold(config)
        hold.install()
    except UserError as error:
        return _refused(error)
    watch()
    run = RunDir(run_dir)
    before = (read_object(run.env) or {}).get("attached")
    # Records of earlier versions lack the facts of an attempt that was killed; its checkpoint shows that it trained.
    has_trained = hold.was_attached(before) or (before is None and run.saved_at() > 0)
    is_first_rank = int(os.environ.get("RANK", "0")) == 0
    if is_first_rank:
        _record_early(hold, run)
    code = _execute(file, module, hold)
    hold.products.note_models_in_float32()
    nothing_was_left = has_trained and hold.steps.none_so_far
    facts = before if nothing_was_left and before else hold.facts()
    if code == OK:
        if nothing_was_left:
            print("cpdrun: nothing was left to train: an earlier attempt had taken the last step")
        _tell(facts)
    if is_first_rank:
        with suppress(OSError):
            write_environment(run, _device(), None, config, attached=facts)
    if code == OK and not nothing_was_left:
        try:
            hold.check()
        except UserError as error:
            return _refused(error)
    return code


def _record_early(hold: Hold, run: RunDir) -> None:
    """Write to env.json what is attached, after the first step and whenever a later step reaches more parameters.

    A script may be killed between its last checkpoint and its end. Its next attempt then takes no step, and only this
    record shows what the steps before were attached to.
    """
    recorded = -1

    def after_step(*_: Any) -> None:
        nonlocal recorded
        if len(hold.script.reached) > recorded:
            recorded = len(hold.script.reached)
            with suppress(OSError):
                write_json(run.env, {**(read_object(run.env) or {}), "attached": hold.facts()})

    register_optimizer_step_post_hook(torch.compiler.disable(after_step))


def _execute(file: Path, module: str | None, hold: Hold) -> int:
    try:
        if module:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(str(file), run_name="__main__")
    except UserError as error:
        _print_place(error, file)
        return _refused(error)
    except BaseException as error:
        code = _exit_code(error, file)
        if code != OK:
            hold.say_not_finite()  # now, because the traceback keeps the script's models alive
        return code
    return OK


def _print_place(error: UserError, file: Path) -> None:
    """Print which line of the script called what is refused. Frames of torch and of cpdrun would say no more."""
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
    of_script = _of_script(error, file)
    sys.excepthook(type(error), error.with_traceback(of_script), of_script)
    return FAILED


def _of_script(error: BaseException, file: Path) -> Any:
    """Its traceback from the script's own first frame on."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename != str(file):
        frame = frame.tb_next
    return frame or error.__traceback__


def _as_typed(path: str, file: Path) -> str:
    """sys.argv[0] as python has it: the path as it was typed, where that leads to the file from here."""
    return path if Path(path).exists() else str(file)


def _check_ranks(config: dict[str, Any]) -> None:
    """Another launcher may start another number of ranks than the run is named for."""
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


def _show_life() -> None:
    """Every step of every optimizer is a sign of life."""
    if folder := os.environ.get(ATTEMPT_DIR):
        heartbeat.start(Attempt(Path(folder)).pulse)
        register_optimizer_step_post_hook(lambda *_: heartbeat.beat())


def _tell(facts: dict[str, Any]) -> None:
    """What was attached and what was left alone; the names of all of it are in env.json."""
    gradients, products = facts["gradients"], facts["products"]
    reached = f", {gradients['parameters']} parameters, world_size={gradients['workers']}"
    print(
        f"cpdrun: gradients {' and '.join(gradients['exchange'])}{reached if gradients['parameters'] else ''}"
    )
    for what, names in (
        ("in fp32 as full_precision says", gradients["in_fp32"]),
        ("never exchanged", gradients["left_alone"]),
        ("products rounded", list(products["rounded"])),
        ("products in fp32", list(products["in_fp32"]) if products["rounded"] else []),
    ):
        if names:
            print(
                f"cpdrun: {what}: {', '.join(names[:MOST_NAMED])}{', ...' if len(names) > MOST_NAMED else ''}"
            )
    for note in facts["notes"]:
        print(f"cpdrun: {note}")
    sys.stdout.flush()


def _device() -> torch.device:
    in_use = torch.cuda.is_available() and torch.cuda.is_initialized()
    return torch.device("cuda", torch.cuda.current_device()) if in_use else torch.device("cpu")


def _refused(error: UserError) -> int:
    print(f"error: {error}", file=sys.stderr, flush=True)
    return error.exit_code
