"""Packages that are functions too: `cpdrun.sweep(...)` beside `from cpdrun.sweep import plan`."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Called(ModuleType):
    """cpdrun.NAME(...) is cpdrun.api.NAME(...)."""

    def __call__(self, *words: Any, **keywords: Any) -> Any:
        # by its name: the packages below know nothing of what stands above them
        return getattr(import_module("cpdrun.api"), self.__name__.rpartition(".")[2])(*words, **keywords)


def is_function_too(package: str) -> None:
    """Let the package of this name be called as the function that cpdrun.api has of it."""
    sys.modules[package].__class__ = _Called
