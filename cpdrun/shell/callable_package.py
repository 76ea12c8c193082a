"""Support for packages that can also be called as functions.

`cpdrun.sweep` is a package, as in `from cpdrun.sweep import plan`, and a function, as in `cpdrun.sweep(...)`.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Called(ModuleType):
    """A module that calls the function of the same name in cpdrun.api."""

    def __call__(self, *words: Any, **keywords: Any) -> Any:
        # import_module instead of an import statement, because lower packages must not import cpdrun.api.
        return getattr(import_module("cpdrun.api"), self.__name__.rpartition(".")[2])(*words, **keywords)


def is_function_too(package: str) -> None:
    """Make a package callable.

    Args:
        package: The full name of the package. Calls go to the function of the same name in cpdrun.api.
    """
    sys.modules[package].__class__ = _Called
