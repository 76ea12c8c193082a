"""Make one part of a run from its section of the config, and explain in one line why a part cannot be made."""

import contextlib
import importlib
import re
from collections.abc import Iterator
from typing import Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate

from cpdrun.config.class_names import PRESENT_NAME, with_present_names
from cpdrun.data.base import DataError
from cpdrun.errors import UserError

UNKNOWN_ARGUMENT = re.compile(r"unexpected keyword argument '(\w+)'")
OUT_OF_MEMORY = re.compile("can't allocate memory|out of memory")


class BuildError(UserError):
    """Raised if a part of the run cannot be made. The message contains the key and the cause."""


def part(section: str, spec: dict[str, Any], **arguments: Any) -> Any:
    """Instantiate the class that `_target_` of a config section names.

    Args:
        section: Name of the section, for error messages.
        spec: The section. Its other keys are arguments of the class.
        **arguments: Further arguments. With `_partial_=True`, the result is a function that makes the part.

    Raises:
        BuildError: The class cannot be imported or does not take these arguments.
    """
    with naming(section):
        locate(spec["_target_"])
        return instantiate(with_present_names(spec), _convert_="all", **arguments)


def locate(target: str) -> Any:
    """Import the object that `target` (package.module.Class) names.

    If the object is missing, this function raises an ImportError with a message of one line. (Hydra's own function uses
    three lines.)
    """
    target = PRESENT_NAME.get(target, target)
    module, _, name = target.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]
        hint = "; run in the folder that contains it, or add that folder to PYTHONPATH" if is_missing else ""
        raise ImportError(f"cannot import {target}: {error}{hint}") from None


@contextlib.contextmanager
def naming(section: str) -> Iterator[None]:
    """Convert every exception to a BuildError that names the config section."""
    try:
        yield
    except Exception as error:
        cause: BaseException = error
        while isinstance(cause, InstantiationException) and cause.__cause__ is not None:
            cause = cause.__cause__
        text = str(cause).splitlines()[0] if str(cause) else type(cause).__name__
        if isinstance(cause, TypeError) and (unknown := UNKNOWN_ARGUMENT.search(text)):
            raise BuildError(f"{section}: unknown key '{section}.{unknown[1]}'") from error
        is_clear = isinstance(cause, DataError | InstantiationException | ImportError | ValueError)
        raise BuildError(f"{section}: {text if is_clear else f'{type(cause).__name__}: {text}'}") from error


def find_memory_error(error: BaseException) -> BaseException | None:
    """Return the innermost exception among `error` and its causes that reports a lack of memory, or None."""
    found: BaseException | None = None
    cause: BaseException | None = error
    while cause is not None:
        # torch's CPU allocator and some CUDA kernels raise a plain RuntimeError.
        if isinstance(cause, MemoryError | torch.OutOfMemoryError) or OUT_OF_MEMORY.search(str(cause)):
            found = cause
        cause = cause.__cause__
    return found


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or the name of its class."""
    return (str(error).splitlines() or [type(error).__name__])[0]
