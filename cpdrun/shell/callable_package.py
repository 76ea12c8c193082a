"""Packages that can also be called as functions.

`cpdrun.sweep` is a package (`from cpdrun.sweep import plan`) and a function (`cpdrun.sweep(...)`).
"""

import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    """A package that can be called like a function in cpdrun.api, with its signature and docstring."""

    def __call__(self, *words: Any, **keywords: Any) -> Any:
        return self._function(*words, **keywords)

    @property
    def _function(self) -> Callable[..., Any]:
        # An import statement is not allowed here, because lower packages must not import cpdrun.api.
        return getattr(import_module("cpdrun.api"), self.__name__.rpartition(".")[2])

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._function)

    @property
    def __doc__(self) -> str:  # type: ignore[override]  # because a package has a docstring of its own
        first, _, rest = (inspect.getdoc(self._function) or "").partition("\n")
        return f"{first}\n\n{self._function.__name__}{self.__signature__}\n{rest}"


def is_function_too(package: str) -> None:
    """Make a package callable as the function of the same name in cpdrun.api."""
    sys.modules[package].__class__ = _CallablePackage
