"""Run a sweep's jobs to their ends: write their configs, drive an executor, show it, count the outcomes."""

import contextlib
import inspect
import json
import signal
import threading
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from cpdrun.config.format_facts import format_facts
from cpdrun.launch.base import Event, Executor, FolderGoneError, Job, LaunchError, LaunchOptions, Summary
from cpdrun.launch.engine import WarmEngine
from cpdrun.launch.progress.axes import axes_of
from cpdrun.launch.progress.display import DISK_FULL, Display, print_summary
from cpdrun.record import SweepDir, cancellation, read_json, record_of, write_json, write_text

POLL_S = 0.25
STOPPING = "stopping: runs save at their next step (Ctrl-C again: at once)"


class _Warm:
    """The one warm engine of this process, and when work on the sweep began."""

    engine: WarmEngine | None = None
    began: float | None = None


def warm_up() -> None:
    """Start importing torch in a process beside this one; the earlier, the sooner runs start."""
    if _Warm.engine is None:
        _Warm.began = time.monotonic()
        _Warm.engine = WarmEngine()


def preflight(configs: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """What keeps `configs` from being trained here (a model that does not import, missing data), and what their users
    should know before they are (products that stay in float32): a line each.

    Writes nothing. The process that looks is the one the runs are forked from afterwards. Raises LaunchError for a
    launcher that cannot be had.
    """
    launchers = {
        json.dumps(config["launcher"], default=str): config["launcher"]
        for config in configs
        if "launcher" in config
    }
    for launcher in launchers.values():
        make, _ = _executor_class(launcher)
        if problem := make.unavailable(configs):
            return [problem], []
    warm_up()
    return _Warm.engine.look(configs)


def launch(
    sweep: SweepDir,
    jobs: list[Job],
    launcher: dict[str, Any],
    options: LaunchOptions,
    console: Console,
    cancelled_before: int | None,
) -> Summary:
    """Run `jobs`, show their progress and their end on `console`, and return the counts.

    `launcher` is the config's group of that name: an Executor by `_target_`, and its arguments. `cancelled_before` is
    what `cancellation` said of the sweep before anything was looked at. Ctrl-C stops gently (runs save and can be
    resumed), a second one at once. Raises LaunchError when the sweep as a whole cannot go on: results_dir cannot be
    written, the scheduler is not there; FolderGoneError where its folder is gone.
    """
    began = _Warm.began or time.monotonic()
    executor = _executor(sweep, launcher, options)
    summary = Summary()
    started: dict[str, float] = {}
    executed: dict[str, tuple[Job, float]] = {}  # by name: the job, the seconds it took
    try:
        write_configs(jobs)
        executor.submit(jobs)
        if options.wait:
            with Display(console, len(jobs), axes_of(sweep)) as display:
                for event in _events(executor, sweep, options, display, cancelled_before):
                    display.event(event)
                    _count(summary, event)
                    name = event.job.run.name
                    if event.kind == "started":
                        started[name] = time.monotonic()
                    elif not event.outcome.get("elsewhere"):
                        executed[name] = (event.job, time.monotonic() - started.get(name, began))
    finally:
        executor.close()
        if _Warm.engine is not None:
            _Warm.engine.close()
            _Warm.engine = _Warm.began = None
    if options.wait:
        summary.interrupted = len(jobs) - summary.done - summary.diverged - len(summary.failed)
    else:
        summary.submitted = len(jobs)
    summary.wall_seconds = time.monotonic() - began
    summary.training_share = training_share(list(executed.values()), executor.slots, summary.wall_seconds)
    print_summary(console, summary)
    return summary


def would_write(
    sweep: SweepDir, jobs: list[Job], launcher: dict[str, Any], options: LaunchOptions
) -> dict[Path, str]:
    """The scripts that `launch` would write beside the runs, by path. Nothing is written or asked for; an executor of
    the user's own, which would have to be imported, has none. Raises LaunchError."""
    if not launcher["_target_"].startswith("cpdrun."):
        return {}
    return _executor(sweep, launcher, options).would_write(jobs)


def training_share(jobs: list[tuple[Job, float]], slots: int, wall_seconds: float) -> float | None:
    """The part of wall time x slots that was spent training by `jobs`, each with the seconds it took here.

    None where no job ended well, or where slots is 0: they are not ours to count.
    """
    training = 0.0
    for job, seconds in jobs:
        done = record_of(job.run)
        if done is not None:  # a resumed run also counts the training of earlier launches; not here
            training += min(done["train_seconds"], seconds) * min(job.nproc, slots)
    return training / (wall_seconds * slots) if training else None


def _executor(sweep: SweepDir, launcher: dict[str, Any], options: LaunchOptions) -> Executor:
    make, arguments = _executor_class(launcher)
    return make(**arguments, sweep=sweep, options=options, warm=_Warm.engine)


def _executor_class(launcher: dict[str, Any]) -> tuple[type[Executor], dict[str, Any]]:
    """The class that `launcher` names, and what it is given. Raises LaunchError where they do not fit."""
    arguments = dict(launcher)
    target = arguments.pop("_target_")
    module, _, name = target.rpartition(".")
    try:
        make = getattr(import_module(module), name)
        inspect.signature(make).bind(**arguments, sweep=None, options=None, warm=None)
    except (ImportError, AttributeError) as error:
        raise LaunchError(f"launcher: cannot import {target}: {error}") from None
    except TypeError as error:
        raise LaunchError(f"launcher: {name}: {error}") from None
    return make, arguments


def write_configs(jobs: list[Job]) -> None:
    """Put config.yaml, overrides.txt and format.json of each job on disk, where they are not there already."""
    for job in jobs:
        config = yaml.dump(job.config, Dumper=yaml.CSafeDumper, sort_keys=False)
        overrides = "".join(f"{line}\n" for line in job.overrides)
        try:
            job.run.path.mkdir(parents=True, exist_ok=True)
            for path, text in ((job.run.overrides, overrides), (job.run.config, config)):
                if not path.exists() or path.read_text(encoding="utf-8") != text:
                    write_text(path, text)
            facts = format_facts(job.config["format"])
            if read_json(job.run.format_facts) != facts:
                write_json(job.run.format_facts, facts)
        except OSError as error:
            raise LaunchError(f"cannot write {job.run.path}: {error.strerror}") from error


def _events(
    executor: Executor,
    sweep: SweepDir,
    options: LaunchOptions,
    display: Display,
    cancelled_before: int | None,
) -> Iterator[Event]:
    """Every event of the sweep, as it happens.

    Stops the executor on Ctrl-C, on `cpdrun cancel` from another shell, where the disk is full and, if asked to, on a
    failure. Raises FolderGoneError.
    """
    presses = 0
    with _stop_signals() as signals:
        while executor.unfinished:
            for event in executor.poll(POLL_S):
                _check_folder(sweep, executor)
                yield event
                if (
                    event.kind == "ended"
                    and _failed(event)
                    and not presses
                    and (why := _stops(event, options))
                ):
                    display.say(f"stopping {why}; runs save at their next step")
                    executor.cancel(now=False)
                    signals.append(signal.SIGTERM)
                    presses = 1
            _check_folder(sweep, executor)
            if not presses and cancellation(sweep) != cancelled_before:
                signals.append(signal.SIGTERM)
            while len(signals) > presses:
                executor.cancel(now=presses > 0)
                display.say("stopping now" if presses else STOPPING)
                presses += 1
            display.update(executor.running)


@contextlib.contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """Collect SIGINT, SIGTERM and SIGHUP in a list instead of dying of them; a SIGHUP that nohup ignores stays so."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = [signal.signal(number, lambda number, _: received.append(number)) for number in numbers]
    try:
        yield received
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _check_folder(sweep: SweepDir, executor: Executor) -> None:
    if not sweep.path.is_dir():
        with contextlib.suppress(OSError, LaunchError):
            executor.cancel(now=True)
        raise FolderGoneError(f"{sweep.path} was moved or deleted while its runs trained; they were stopped")


def _stops(event: Event, options: LaunchOptions) -> str:
    """Why a failed run stops the others, or ""."""
    if DISK_FULL in event.outcome["reason"]:
        return "because the disk is full"
    return "at the first failure" if options.fail_fast else ""


def _failed(event: Event) -> bool:
    return event.outcome["outcome"] not in ("finished", "diverged", "preempted")


def _count(summary: Summary, event: Event) -> None:
    if event.kind != "ended":
        return
    outcome = event.outcome["outcome"]
    if outcome == "finished":
        summary.done += 1
    elif outcome == "diverged":
        summary.diverged += 1
    elif outcome != "preempted":
        summary.failed.append((event.job.run, event.outcome["reason"]))
