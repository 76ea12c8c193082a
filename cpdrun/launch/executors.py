"""Which executors there are, and how one is made of a config's `launcher`."""

import inspect
import pkgutil
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cpdrun.launch
from cpdrun.launch.attempt.connection import WarmEngine
from cpdrun.launch.base import Executor, Job, LaunchError, LaunchOptions
from cpdrun.record import SweepDir

OWN = "cpdrun."


def make_executor(
    launcher: dict[str, Any], sweep: SweepDir, options: LaunchOptions, warm: WarmEngine | None = None
) -> Executor:
    """Raises LaunchError where the class cannot be had, or does not take what it is given."""
    arguments = {key: value for key, value in launcher.items() if key != "_target_"}
    return executor_class(launcher)(**arguments, sweep=sweep, options=options, warm=warm)


def executor_class(launcher: dict[str, Any]) -> type[Executor]:
    """The class that `launcher` names. Raises LaunchError where there is none, or its arguments are others."""
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
    return make


def own_class(launcher: dict[str, Any]) -> type[Executor] | None:
    """The class that `launcher` names where it is one of cpdrun's, so that no code of a user's is run; else None."""
    try:
        return executor_class(launcher) if launcher["_target_"].startswith(OWN) else None
    except LaunchError:  # is said when it is to start
        return None


def would_write(
    launcher: dict[str, Any], sweep: SweepDir, jobs: list[Job], options: LaunchOptions
) -> dict[Path, str]:
    """The scripts that a launch would write beside the runs, by path. Nothing is written or asked for; an executor of
    the user's own, which would have to be imported, has none. Raises LaunchError."""
    if not launcher["_target_"].startswith(OWN):
        return {}
    return make_executor(launcher, sweep, options).would_write(jobs)


def advice(launcher: dict[str, Any], sweep: SweepDir, jobs: list[Job], options: LaunchOptions) -> list[str]:
    """Return what a user should know before a launch of these jobs; nothing if the launch would be refused."""
    if not jobs or own_class(launcher) is None:
        return []
    try:
        return make_executor(launcher, sweep, options).advice(jobs)
    except LaunchError:  # says itself what is wrong
        return []


def schedulers() -> list[type[Executor]]:
    """The executors of cpdrun that hand runs to a scheduler: of each wing of cpdrun.launch with an executor.py."""
    wings = [m.name for m in pkgutil.iter_modules(cpdrun.launch.__path__, "cpdrun.launch.") if m.ispkg]
    modules = [import_module(f"{wing}.executor") for wing in wings if find_spec(f"{wing}.executor")]
    return [
        found
        for module in modules
        for found in vars(module).values()
        if inspect.isclass(found) and issubclass(found, Executor) and found.__module__ == module.__name__
    ]
