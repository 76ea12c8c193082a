"""Find executor classes, and create executors from the section `launcher` of a config."""

import inspect
import pkgutil
from collections.abc import Callable
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
    """Create an executor. Raises LaunchError if the class cannot be imported or does not accept the arguments."""
    arguments = {key: value for key, value in launcher.items() if key != "_target_"}
    make: Callable[..., Executor] = executor_class(launcher)
    return make(**arguments, sweep=sweep, options=options, warm=warm)


def executor_class(launcher: dict[str, Any]) -> type[Executor]:
    """Return the class that `launcher` names. Raises LaunchError if it does not exist or has other arguments."""
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
    """Return the class that `launcher` names if it belongs to cpdrun, and otherwise None. No user code is run."""
    try:
        return executor_class(launcher) if launcher["_target_"].startswith(OWN) else None
    except LaunchError:  # The error is reported at the start.
        return None


def would_write(
    launcher: dict[str, Any], sweep: SweepDir, jobs: list[Job], options: LaunchOptions
) -> dict[Path, str]:
    """Return the scripts that a launch would write, keyed by path. Nothing is written.

    The result is empty for the user's own executor, because it would have to be imported.

    Raises:
        LaunchError: The executor cannot be created.
    """
    if not launcher["_target_"].startswith(OWN):
        return {}
    return make_executor(launcher, sweep, options).would_write(jobs)


def advice(launcher: dict[str, Any], sweep: SweepDir, jobs: list[Job], options: LaunchOptions) -> list[str]:
    """Return notes for the user before a launch of these jobs. The list is empty if the launch would be refused."""
    if not jobs or own_class(launcher) is None:
        return []
    try:
        return make_executor(launcher, sweep, options).advice(jobs)
    except LaunchError:  # This error is reported when the runs are launched.
        return []


def schedulers() -> list[type[Executor]]:
    """Return cpdrun's executors for schedulers. They are in the packages of cpdrun.launch with an executor.py."""
    packages = [m.name for m in pkgutil.iter_modules(cpdrun.launch.__path__, "cpdrun.launch.") if m.ispkg]
    modules = [
        import_module(f"{package}.executor") for package in packages if find_spec(f"{package}.executor")
    ]
    return [
        found
        for module in modules
        for found in vars(module).values()
        if inspect.isclass(found) and issubclass(found, Executor) and found.__module__ == module.__name__
    ]
