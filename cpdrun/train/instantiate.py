"""A part of a run from its section of the config: the class that `_target_` names, called with the other keys."""

import contextlib
import importlib
import re
from collections.abc import Iterator
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate

from cpdrun.config.class_names import PRESENT_NAME, with_present_names
from cpdrun.data.base import DataError
from cpdrun.errors import UserError

UNKNOWN_ARGUMENT = re.compile(r"unexpected keyword argument '(\w+)'")


class BuildError(UserError):
    """A part of the run cannot be made; the message names the key and the cause."""


def part(section: str, spec: dict[str, Any], **given: Any) -> Any:
    """That of config[section] = spec, with further arguments; `_partial_=True`: what makes it. Raises BuildError."""
    with naming(section):
        locate(spec["_target_"])
        return instantiate(with_present_names(spec), _convert_="all", **given)


def locate(target: str) -> Any:
    """What `target` (package.module.Class) names; Hydra's own look-up prints three lines where it finds nothing."""
    target = PRESENT_NAME.get(target, target)
    module, _, name = target.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]
        where = "; run where it lies, or name that folder in PYTHONPATH" if missing else ""
        raise ImportError(f"cannot import {target}: {error}{where}") from None


@contextlib.contextmanager
def naming(section: str) -> Iterator[None]:
    """What is raised in here becomes a BuildError that names the section."""
    try:
        yield
    except Exception as error:
        cause: BaseException = error
        while isinstance(cause, InstantiationException) and cause.__cause__ is not None:
            cause = cause.__cause__
        text = str(cause).splitlines()[0] if str(cause) else type(cause).__name__
        if isinstance(cause, TypeError) and (unknown := UNKNOWN_ARGUMENT.search(text)):
            raise BuildError(f"{section}: unknown key '{section}.{unknown[1]}'") from error
        known = isinstance(cause, DataError | InstantiationException | ImportError | ValueError)
        raise BuildError(f"{section}: {text if known else f'{type(cause).__name__}: {text}'}") from error
